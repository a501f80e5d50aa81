"""Which blocks of the target's encoder a draft's encoder is made of. Pure and deterministic; no torch."""

from architectures.pruning.depth import evenly_spaced, first_last, random_layers
from architectures.pruning.scores import Scores
from architectures.pruning.width import Kept, best
from architectures.shapes.shape import Shape

ENCODER_SCORES = {"block_influence": "encoder_block_influence_L"}


def kept_encoder_layers(source: Shape, draft: Shape, method: str, scores: Scores, *, seed: int) -> Kept:
    """The source's block of each block of the draft's encoder; none where there is no encoder."""
    num_source, num_kept = source.encoder_layers, draft.encoder_layers
    if num_kept == num_source:
        return tuple(range(num_source))
    if method == "block_influence":
        return best(scores.need(ENCODER_SCORES[method]), num_kept)
    if method == "random":
        return random_layers(num_source, num_kept, seed=seed)
    return {"first_last": first_last, "evenly_spaced": evenly_spaced}[method](num_source, num_kept)
