"""Prompts and answers: written by the target or given, laid out, packed and cut into batches."""
