"""Learned masks: the target trained to do with less, before anything is cut."""
