"""Distances that a search of layers has found, in the order in which it asks for them, which its inputs decide."""

import numpy as np

from architectures.kept import Arrays, Kept
from architectures.sharing import Share

Distances = dict[int, float]  # by candidate


class KnownDistances:
    """What is recalled of an interrupted search, and what this one adds.

    Args:
        name: Of the search.
        kept: Where they are, and go now and then; None to recall and keep nothing.
        share: Of processes that all ask the same, of which the first reads and writes.
    """

    def __init__(self, name: str, kept: Kept | None, share: Share) -> None:
        self.name, self.kept, self.leads = name, kept, share.leads
        self.found: list[Distances] = share.lead(lambda: unpacked(kept.read(name))) if kept is not None else []
        self.num_recalled, self.num_asked = len(self.found), 0

    def recall(self) -> Distances | None:
        """The distances that are asked for now; None where they must be found, and added."""
        self.num_asked += 1
        return self.found[self.num_asked - 1] if self.num_asked <= self.num_recalled else None

    def add(self, distances: Distances) -> None:
        """Note what was found."""
        self.found.append(distances)
        if self.kept is not None and self.leads and self.kept.is_due:
            self.kept.write(self.name, packed(self.found))


def packed(found: list[Distances]) -> Arrays:
    """Distances as arrays."""
    return {
        "counts": np.array([len(each) for each in found]),
        "candidates": np.array([candidate for each in found for candidate in each]),
        "values": np.array([value for each in found for value in each.values()]),
    }


def unpacked(arrays: Arrays | None) -> list[Distances]:
    """The same back, to the last bit; nothing of no arrays."""
    if arrays is None:
        return []
    pairs = zip(arrays["candidates"].tolist(), arrays["values"].tolist(), strict=True)
    return [dict(next(pairs) for _ in range(count)) for count in arrays["counts"].tolist()]
