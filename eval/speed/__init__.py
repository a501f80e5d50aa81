"""Tokens per second with and without a draft: the same prompts, in turns."""
