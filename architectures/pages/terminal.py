"""Old name; goes with its last importer."""

from architectures.tables import terminal

__all__ = ["terminal"]
