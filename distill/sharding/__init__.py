"""How processes share what is trained, and what a backward pass computes again."""
