"""Old name; goes with its last importer."""

from architectures.tables import plural as number_of

__all__ = ["number_of"]
