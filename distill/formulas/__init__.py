"""Losses, one entry each: the formula, the options with their defaults, and what each needs to know of a teacher."""
