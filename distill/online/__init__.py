"""Drafts that learn from the requests they serve."""
