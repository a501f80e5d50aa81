"""What the reader of a report sees first: one sentence, one picture, and what to do next."""
