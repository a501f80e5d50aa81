"""The model card of a published draft."""
