"""Files as every stage reads and writes them: whole or not at all, with errors that name the file and the line."""
