"""What the acceptance and step times of a scorecard promise: at which lookahead, how surely, and of which draft."""
