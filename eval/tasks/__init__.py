"""What a named task says of itself, and those of single papers. Data only."""
