"""Rules of the source broken one by one, drawn by a seed; each must turn a test red: `make mutants`."""
