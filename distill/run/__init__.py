"""One run: its folder, its target, what its stages make and of what, and when a stage is skipped or refused."""
