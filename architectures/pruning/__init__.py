"""Which parts of a target a draft keeps, and the cut."""
