"""Sizes of a model: read from a config, asked for in a recipe, compared, counted."""
