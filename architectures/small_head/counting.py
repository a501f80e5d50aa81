"""Which ids a text holds how often, the most frequent ones, and how much of a text some ids cover. Pure; no torch."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence


def token_counts(texts: Iterable[Sequence[int]]) -> Counter[int]:
    """How often each token id stands in some texts."""
    counts: Counter[int] = Counter()
    for ids in texts:
        counts.update(ids)
    return counts


def most_frequent(counts: Mapping[int, int], always: Collection[int], size: int) -> tuple[int, ...]:
    """So many ids, ascending: those that are kept whatever they count, then the most frequent; of equal ones the first.

    Fewer where there are not so many that are kept or occur at all.

    Args:
        counts: By token id.
        always: Ids kept in any case, at most `size`.
        size: Ids wanted.
    """
    by_frequency = sorted((id_ for id_, count in counts.items() if count > 0), key=lambda id_: (-counts[id_], id_))
    kept = set(always)
    others = [id_ for id_ in by_frequency if id_ not in kept]
    return tuple(sorted([*kept, *others[: max(0, size - len(kept))]]))


def coverage(ids: Collection[int], counts: Mapping[int, int]) -> float:
    """Share of the tokens counted that are among some ids, in [0, 1]; NaN of no tokens."""
    total = sum(counts.values())
    return sum(counts.get(id_, 0) for id_ in ids) / total if total else float("nan")


def filled(ids: Collection[int], others: Collection[int], size: int) -> tuple[int, ...]:
    """So many ids, ascending: some, and as many of others as are missing, the lowest first.

    Merges of byte pairs and pieces of sentencepiece are numbered from the most frequent on, so that the lowest id that
    never occurred is the likeliest to occur yet.

    Args:
        ids: At most `size`.
        others: Ids to fill up with; with `ids` at least `size` of them.
        size: Ids wanted.
    """
    kept = set(ids)
    unsaid = sorted(set(others) - kept)
    return tuple(sorted([*kept, *unsaid[: size - len(kept)]]))
