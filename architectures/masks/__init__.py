"""Masks over the parts of a model that are learned, and the plan that they become."""
