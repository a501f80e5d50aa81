"""The teacher on disk: what it said at every answer token, written once and read in place of running it."""
