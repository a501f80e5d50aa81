"""Which training makes the best draft in equal minutes: loss, teacher, depth and vocabulary, by successive halving."""
