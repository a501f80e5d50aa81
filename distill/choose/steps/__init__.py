"""Step times of candidates that nobody has trained, and which of them no training is worth."""
