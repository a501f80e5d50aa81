"""What is published of a run."""
