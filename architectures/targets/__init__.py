"""A target wherever it is: a folder, a hub id, a GGUF file, or known by name alone."""
