"""Checkpoints, files and sharded directories: listing, integrity, and safe reading and writing."""
