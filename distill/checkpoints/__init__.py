"""Composer's checkpoint files: which there are, whether they are whole, and whose code they may run."""
