"""Recipes that came with this installation: listed, copied with their prompts, and a target out of its package."""
