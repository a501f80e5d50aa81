"""Shapes that may be chosen: what a command asks for, and the recipe of each."""
