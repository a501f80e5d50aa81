"""Work, memory and disk of a recipe, from shapes and counts alone."""
