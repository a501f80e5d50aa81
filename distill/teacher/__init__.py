"""The frozen target while a draft learns: live, in shards, or read from a cache."""
