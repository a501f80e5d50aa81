"""Which of the target's layers a draft is made of. Pure and deterministic; no torch.

Every method is nested in nothing but its own order: `removal_order` and `merge_order` hold for every depth at once.
"""

from architectures.pruning.scores import Scores


def first_last(num_source: int, num_kept: int) -> tuple[int, ...]:
    """The first num_kept - 1 layers and the last one: the middle of a deep model is the least missed.

    A single layer is the first: only it was trained to read plain embeddings. (SmolLM2-135M on 1024 tokens of GSM8K
    answers, greedy agreement with the target: 0.079 for layer 0 alone, 0.002 for layer 29 alone.)

    Source: the order in which ShortGPT (Men et al. 2024, arXiv 2403.03853) and Minitron (Sreenivas et al. 2024,
    arXiv 2408.11796) drop layers, taken to its end.
    """
    if num_kept == 1:
        return (0,)
    return (*range(num_kept - 1), num_source - 1)


def evenly_spaced(num_source: int, num_kept: int) -> tuple[int, ...]:
    """The first layer, the last, and the others at equal distances between, each rounded to the nearest, halves up.

    A step is never below 1, so no layer comes twice. A single layer is the first, as in first_last.
    """
    if num_kept == 1:
        return (0,)
    gaps = num_kept - 1
    return tuple((2 * i * (num_source - 1) + gaps) // (2 * gaps) for i in range(num_kept))


def random_layers(num_source: int, num_kept: int, *, seed: int) -> tuple[int, ...]:
    """Any num_kept layers, in order: the control that other methods must beat."""
    import numpy as np  # imported here: `widedraft check` must answer at once

    return tuple(sorted(int(i) for i in np.random.default_rng(seed).permutation(num_source)[:num_kept]))


def most_influential(scores: Scores, num_kept: int) -> tuple[int, ...]:
    """The layers that turn the residual stream most; of equals the earlier.

    Source: Men et al. 2024, "ShortGPT", sec. 3 (arXiv 2403.03853): block influence 1 - E[cos(x_l, x_l+1)].
    """
    influence_L = scores.need("block_influence_L")
    ranked = sorted(range(len(influence_L)), key=lambda layer: (-influence_L[layer], layer))
    return tuple(sorted(ranked[:num_kept]))


def without_removed(order: list[int], num_source: int, num_kept: int) -> tuple[int, ...]:
    """The layers left after the first num_source - num_kept steps of a removal order."""
    removed = set(order[: num_source - num_kept])
    return tuple(layer for layer in range(num_source) if layer not in removed)


def followers(starts: tuple[int, ...], num_source: int) -> tuple[tuple[int, ...], ...]:
    """For each first layer of a group, the other layers of its group, which end before the next one starts."""
    ends = (*starts[1:], num_source)
    return tuple(tuple(range(start + 1, end)) for start, end in zip(starts, ends, strict=True))
