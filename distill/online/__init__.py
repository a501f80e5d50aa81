"""Train drafts on the requests they serve."""
