"""Checkpoints, files and folders of shards: which there are, whether they are whole, and whose code they may run."""
