"""A teacher's outputs written to the disk, and read while training."""
