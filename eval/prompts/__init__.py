"""Prompt sets: where their rows come from, what a row asks, and how that becomes token ids."""
