"""A target as it is held: whole on one device, spread over several, or on the disk and read layer by layer."""
