"""Scripts that run in an engine's environment and import nothing of this project."""
