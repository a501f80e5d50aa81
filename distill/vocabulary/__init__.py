"""Which token ids a recipe's draft says: counted in its run's answers or text, or named, and how much they cover."""
