"""Publish a finished draft: its files, its licence, its card, and the push to the hub."""
