"""Choose the fastest draft shape: step times first, then short training runs, then a recipe."""
