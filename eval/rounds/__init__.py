"""The trace of every round, and the figures that are made of it."""
