"""What is known of a target and a draft that an engine is to serve."""
