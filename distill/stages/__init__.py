"""The stages of a run, each an entry of a table, and a run through all of them."""
