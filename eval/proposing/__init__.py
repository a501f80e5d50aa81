"""Who proposes tokens: the text itself, the draft, or nobody, and where a draft's doubt ends a round. No torch."""
