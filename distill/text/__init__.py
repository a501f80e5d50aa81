"""Plain text as training data: domains, packed sequences, and the mixture that follows their losses."""
