"""How large a file of a cache becomes. No torch."""

# A change of either limit needs another FORMAT.
MAX_SHARD_BYTES = 2**28  # of memory while a shard is made
MAX_SHARD_TOKENS = 2**16  # of work that an interruption loses


def shard_tokens(token_bytes: int, *, most_tokens: int = MAX_SHARD_TOKENS, most_bytes: int = MAX_SHARD_BYTES) -> int:
    """Answer tokens of a full shard, whose rows are of so many bytes."""
    return min(most_tokens, max(1, most_bytes // token_bytes))
