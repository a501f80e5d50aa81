"""Short trainings of candidates, longer ones of those that are still in play."""
