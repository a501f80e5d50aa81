"""Hugging Face folders: weights, fingerprints, what is carried along, and the manifest of what a stage made."""
