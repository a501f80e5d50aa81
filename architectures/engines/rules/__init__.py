"""What each engine demands of a pair."""
