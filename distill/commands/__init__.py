"""Commands on recipes: their arguments, and what they print."""
