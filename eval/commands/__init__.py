"""Commands on any pair of models: their arguments, and what they print."""
