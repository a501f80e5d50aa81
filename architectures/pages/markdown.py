"""Old names; go with their last importer."""

from architectures.tables import markdown
from architectures.tables import replace_between as between

__all__ = ["between", "markdown"]
