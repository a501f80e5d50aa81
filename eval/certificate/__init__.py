"""Whether an engine that others wrote does with a draft what it must, and what it gains: run, counted, compared."""
