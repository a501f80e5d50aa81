"""How a recipe file and the command line become plain values, and mistakes become sentences."""
