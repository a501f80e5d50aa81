"""A draft on the hub: what is published of a run, and that it arrived."""
