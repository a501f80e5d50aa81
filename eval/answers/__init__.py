"""Answers of a target on the disk: shards, the trace of each prompt, and what was kept beside it."""
