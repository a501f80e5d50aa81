"""Scorecards, grids and traces as the report reads them."""
