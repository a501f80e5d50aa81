"""Engines as they are asked: servers by HTTP or a worker of ours, what is sent to them, and what may come back."""
