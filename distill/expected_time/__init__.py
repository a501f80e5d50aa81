"""How long a recipe takes on a device: figures measured there, else assumptions in words. No torch."""
