"""Which token ids a recipe's draft outputs: counted in its run's answers or text, or named, and how much they cover."""
