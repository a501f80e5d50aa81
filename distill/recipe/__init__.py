"""Recipe sections, and loading a recipe file."""
