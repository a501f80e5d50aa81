"""Old names of architectures.tables."""
