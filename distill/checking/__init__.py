"""Everything that is wrong with a recipe, before anything is computed."""
