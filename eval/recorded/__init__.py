"""Targets that are not here: their recorded answers, and the text files others keep them in."""
