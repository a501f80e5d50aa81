"""What one process of every stage takes at most, measured, beside what `widedraft check` says of it."""
