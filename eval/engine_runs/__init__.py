"""Engines that decode, each in its own environment, and certificate.json."""
