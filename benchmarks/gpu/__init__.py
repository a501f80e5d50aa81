"""What a GPU is asked in the ten minutes that one can be had: tests, step times, training, drafts, profiles."""
