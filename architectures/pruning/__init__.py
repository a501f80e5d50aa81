"""Pruning plans and their application to a checkpoint."""
