"""Who proposes at a position: the text itself, the draft, or nobody; replayed and tuned."""
