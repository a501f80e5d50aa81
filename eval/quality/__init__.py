"""Do a target's answers stay right with a draft? GSM8K's exact answers, and products of two numbers."""
