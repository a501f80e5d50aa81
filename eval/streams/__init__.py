"""Requests as a stream: where they come from, in which order, and whose curve each is of. No torch."""
