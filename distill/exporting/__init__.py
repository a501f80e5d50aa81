"""A checkpoint becomes a draft folder."""
