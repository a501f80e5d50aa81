"""A shipped recipe's target out of its package."""
