"""Scores of layers, heads, neurons and channels, from calibration text."""
