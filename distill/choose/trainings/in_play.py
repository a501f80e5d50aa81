"""Who is trained on: the better half, and whoever is not plainly beaten. Pure; no torch.

Source: successive halving, Jamieson and Talwalkar 2016 (arXiv 1502.07943), which keeps the better half whatever its
figures are worth. Here a candidate beyond it stays too where the doubt of its figures leaves it a chance to be first.
"""

import math
from collections.abc import Sequence

from distill.choose.shapes.durations import FACTOR
from distill.choose.shapes.left_out import LeftOut
from eval.speedup import Ranked

RIVAL_SHARE = 0.025  # of the draws that name a rival: one of two equal drafts wins fewer in 5 % of runs


def is_rival(ranked: Ranked) -> bool:
    """Whether a draft that does not promise most may be the fastest all the same."""
    return ranked.interval is None or ranked.first_share >= RIVAL_SHARE


def in_play(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Those that are trained on, of candidates with the fastest first."""
    better = math.ceil(len(ranked) / FACTOR)
    return [each for place, each in enumerate(ranked) if place < better or is_rival(each)]


def beaten(ranked: Sequence[Ranked], after: str) -> list[LeftOut]:
    """The others, with the figures that they were beaten by."""
    best, kept = ranked[0], in_play(ranked)
    return [
        LeftOut(
            each.draft,
            "beaten",
            f"{each.speedup:.2f}x, where {best.draft} promises {best.speedup:.2f}x; the fastest in "
            f"{each.first_share:.1%} of draws",
            after,
        )
        for each in ranked
        if each not in kept
    ]
