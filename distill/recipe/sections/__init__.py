"""Sections of a recipe: what each key may be."""
