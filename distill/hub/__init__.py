"""A finished draft is published: its files, its licence, its card, and the push to the hub."""
