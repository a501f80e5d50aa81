"""Decoding by one model or by two: caches, steps, rules, batches, and the texts that come of them."""
