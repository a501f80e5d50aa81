"""Which heads, neurons and channels a draft keeps. Pure and deterministic; no torch.

Shape suffixes used in this file:
    L = draft layers, N = query heads, F = neurons, H = channels
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from architectures.pruning.scores import Scores
from architectures.shapes.shape import Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kept = tuple[int, ...]


def width_scores(
    scores: Scores, method: str, part: str, groups: Sequence[Sequence[int]], sizes: tuple[int, int], *, seed: int
) -> "NDArray[np.float64]":
    """Scores of part ("neurons_LF" or "heads_LN") for each draft layer: the mean over the layers it is made of.

    Args:
        scores: Of the target; not looked at for "random".
        method: activation, flap, magnitude or random.
        part: Which scores.
        groups: The source layers of each draft layer.
        sizes: The target's layers, and its neurons or heads.
        seed: Of "random".
    """
    import numpy as np  # imported here: `widedraft check` must answer at once

    source = np.random.default_rng(seed).random(sizes) if method == "random" else scores.need(f"{method}.{part}")
    return np.stack([source[list(group)].mean(axis=0) for group in groups])


def channel_scores(scores: Scores, method: str, num_channels: int, *, seed: int) -> "NDArray[np.float64]":
    """Scores of the residual stream's channels."""
    import numpy as np  # imported here: `widedraft check` must answer at once

    if method == "random":
        return np.random.default_rng(seed).random(num_channels)
    return scores.need(f"{method}.channels_H")


def best(scores_X: "Sequence[float] | NDArray[np.float64]", count: int) -> Kept:
    """The count best indices, in order; of equals the earlier."""
    ranked = sorted(range(len(scores_X)), key=lambda index: (-scores_X[index], index))
    return tuple(sorted(ranked[:count]))


def best_heads(scores_N: "NDArray[np.float64]", source: Shape, draft: Shape) -> tuple[Kept, Kept]:
    """Query heads and key/value heads to keep: the best whole groups, and in each the same number of best heads.

    A group is the query heads that share one key/value head. Its worth is that of the heads that would stay.
    """
    group, kept = source.heads // source.kv_heads, draft.heads // draft.kv_heads
    inside = [best(scores_N[start : start + group], kept) for start in range(0, source.heads, group)]
    worth = [sum(scores_N[i * group + head] for head in heads) for i, heads in enumerate(inside)]
    groups = best(worth, draft.kv_heads)
    return tuple(i * group + head for i in groups for head in inside[i]), groups
