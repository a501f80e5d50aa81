"""At which lookahead each way is fastest, and which of several drafts: picked and judged on the same turns.

The best of several owes some of its lead to chance. What is told of it has an interval that holds for all that were
compared at once, so that picking the best of them costs no confidence.
"""

from collections.abc import Sequence
from itertools import permutations, product

from eval.acceptance.estimates import Columns, Estimate, Resampling
from eval.acceptance.paired_ratios import paired_ratio_quotients
from eval.records.speed import AgainstLookup, BehindFastest, BestWay
from eval.speed.measure import Times, columns, whole_seconds
from eval.speed.ways import BESIDE, DRAFT, LOOKUP, PLAIN, Way


def best_of_each(times: Times, resampling: Resampling) -> list[BestWay]:
    """Each draft, looking up, and both together, each at its fastest lookahead, the reading of the prompt included.

    Args:
        times: Of all ways.
        resampling: How intervals are made.
    """
    compared = [way for way in times if way.kind in (DRAFT, LOOKUP, BESIDE)]
    alone = spent(times, Way(PLAIN))
    estimates = paired_ratio_quotients([(alone, spent(times, way)) for way in compared], resampling)
    best: dict[tuple[str, str], tuple[Way, Estimate]] = {}
    for way, estimate in zip(compared, estimates, strict=True):
        held = best.get((way.kind, way.draft))
        if held is None or estimate.value > held[1].value:
            best[way.kind, way.draft] = way, estimate
    return [
        BestWay(
            way=way.kind,
            draft=way.draft or None,
            lookahead=way.lookahead,
            speedup=estimate,
            compared=len(compared),
        )
        for way, estimate in best.values()
    ]


def behind_the_fastest(best: Sequence[BestWay], times: Times, resampling: Resampling) -> list[BehindFastest]:
    """How many times as fast as each other draft the fastest is, in the same turns; the fastest of these first.

    Each draft counts as it is faster, alone or with its policy.

    Args:
        best: From `best_of_each`.
        times: Of all ways.
        resampling: How intervals are made. They hold for every two drafts in any way of each.
    """
    rows = sorted((row for row in best if row.way in (DRAFT, BESIDE)), key=lambda row: row.speedup.value)
    by_draft = {row.draft: row for row in rows}  # the last of each draft is its fastest
    if len(by_draft) < 2:
        return []
    first, *others = sorted(by_draft.values(), key=lambda row: -row.speedup.value)
    compared = pairs_of_drafts(list(times))
    pairs = [(spent(times, slower), spent(times, faster)) for faster, slower in compared]
    estimates = dict(zip(compared, paired_ratio_quotients(pairs, resampling), strict=True))
    return [
        BehindFastest(
            way=row.way,
            draft=row.draft or "",
            fastest=estimates[way_of(first), way_of(row)],
            compared=len(compared),
        )
        for row in others
    ]


def against_lookup(best: Sequence[BestWay], times: Times, resampling: Resampling) -> list[AgainstLookup]:
    """How many times as fast as looking up alone each draft is, with and without it beside, each at its best.

    Args:
        best: From `best_of_each`.
        times: Of all ways.
        resampling: How intervals are made. They hold for every way with a draft beside every lookahead of looking up.
    """
    drafted, lookups = ([way for way in times if way.kind in kinds] for kinds in ((DRAFT, BESIDE), (LOOKUP,)))
    compared = list(product(drafted, lookups))
    if not compared:
        return []
    pairs = [(spent(times, lookup), spent(times, way)) for way, lookup in compared]
    estimates = dict(zip(compared, paired_ratio_quotients(pairs, resampling), strict=True))
    [lookup] = [Way(LOOKUP, row.lookahead) for row in best if row.way == LOOKUP]
    return [
        AgainstLookup(way=row.way, draft=row.draft or "", ratio=estimates[way_of(row), lookup], compared=len(compared))
        for row in best
        if row.way in (DRAFT, BESIDE)
    ]


def pairs_of_drafts(ways: Sequence[Way]) -> list[tuple[Way, Way]]:
    """Every way of every draft beside every way of every other."""
    by_draft: dict[str, list[Way]] = {}
    for way in ways:
        if way.kind in (DRAFT, BESIDE):
            by_draft.setdefault(way.draft, []).append(way)
    return [pair for first, second in permutations(by_draft.values(), 2) for pair in product(first, second)]


def way_of(row: BestWay) -> Way:
    """The way of a draft's row."""
    return Way(row.way, row.lookahead, row.draft or "")


def spent(times: Times, way: Way) -> Columns:
    """Seconds of everything and tokens, of every group."""
    per_group = columns(times[way], whole_seconds)
    assert per_group is not None
    return per_group
