"""Drafts that learn from the requests they served: what is kept, what is learned, and what is taken back."""
