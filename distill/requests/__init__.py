"""Requests and their answers: served live or replayed, noted on the disk, by drafts that may be others each time."""
