"""Scorecards, grids of step times and measured speeds as types: what their files hold, and what those must fulfil."""
