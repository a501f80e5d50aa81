"""Scorecards -> report.html: one page that needs no network, no script and no other file, and its plots as PNG."""
