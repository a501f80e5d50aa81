"""Importance scores of layers, heads, neurons and channels, from calibration text."""
