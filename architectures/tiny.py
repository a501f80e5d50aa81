"""Tiny target with the proportions of the real one, which runs in seconds on a CPU (`--debug`). No torch.

Ratios of query to key/value heads and of widths to the width of all heads are preserved, and sizes that are smaller in
the draft than in the target stay smaller.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd, lcm
from typing import Any

from architectures.families import FAMILIES
from architectures.shapes import CONFIG_KEY, Shape

LAYERS, LEAST_LAYERS = 4, 2  # of the target, and minimum of a draft: a first and a last layer
HEAD_DIM, MIN_HEADS, POSITIONS = 16, 2, 512
VOCAB, HEAD_VOCAB = 264, 259  # 256 bytes, 3 special tokens, and padding, which a reduced output head omits
BOS_ID, EOS_ID, PAD_ID = 1, 2, 0
SIZES = ("layers", "encoder_layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab")
NOT_OF_A_TINY_MODEL = ("_name_or_path", "auto_map", "dtype", "torch_dtype", "transformers_version", CONFIG_KEY)


def tiny_shapes(target: Shape, drafts: Sequence[Shape] = ()) -> list[Shape]:
    """Return the shapes of a target and its drafts, divided by the same numbers; the target first."""
    shapes = [target, *drafts]
    group = head_divisor(shapes)
    head_dim = min(target.head_dim, HEAD_DIM)
    divisor = target.head_dim * group / head_dim
    step = lcm(*(shape.heads // group for shape in shapes))  # engines require that the heads divide the hidden width
    layers = shrunk((shape.layers for shape in shapes), max(1, target.layers / LAYERS), least=LEAST_LAYERS)
    hidden = shrunk((shape.hidden for shape in shapes), divisor, step=step)
    encoder = shrunk((shape.encoder_layers for shape in shapes), max(1, target.encoder_layers / LAYERS), least=2)
    intermediate = shrunk((shape.intermediate for shape in shapes), divisor)
    return [
        replace(
            shape,
            layers=layers[shape.layers],
            hidden=hidden[shape.hidden],
            intermediate=intermediate[shape.intermediate],
            heads=shape.heads // group,
            kv_heads=shape.kv_heads // group,
            head_dim=head_dim,
            vocab=VOCAB,
            head_vocab=HEAD_VOCAB if shape.head_vocab else 0,
            encoder_layers=encoder[shape.encoder_layers] if shape.encoder_layers else 0,
            positions=min(shape.positions, POSITIONS + FAMILIES[shape.family].extra_positions),
        )
        for shape in shapes
    ]


def head_divisor(shapes: Sequence[Shape]) -> int:
    """Return the largest common divisor of all head counts that leaves MIN_HEADS query heads; 1 if there is none."""
    counts = [count for shape in shapes for count in (shape.heads, shape.kv_heads)]
    fewest = min(shape.heads for shape in shapes)
    common = gcd(*counts)
    return max((n for n in range(1, common + 1) if common % n == 0 and fewest // n >= MIN_HEADS), default=1)


def shrunk(sizes: Iterable[int], divisor: float, *, step: int = 1, least: int = 1) -> dict[int, int]:
    """Divide sizes and round to multiples of step, at least `least`; different sizes stay different and ordered."""
    small: dict[int, int] = {}
    last = 0
    for size in sorted(set(sizes)):
        last = small[size] = max(last + step, round(size / divisor / step) * step, min(size, least))
    return small


def tiny_config(config: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """Return the config.json of a tiny random model: the target's, with the sizes of shape."""
    family = FAMILIES[shape.family]
    small = {key: value for key, value in config.items() if key not in NOT_OF_A_TINY_MODEL and not long_rope(value)}
    small |= {family.keys[size]: getattr(shape, size) for size in SIZES if size in family.keys}
    if "positions" in family.keys:
        small[family.keys["positions"]] = shape.positions - family.extra_positions
    small |= {key: config[key][: shape.layers] for key in family.per_layer_lists if config.get(key) is not None}
    if shape.head_vocab:
        small[CONFIG_KEY] = shape.head_vocab
    if "decoder_start_token_id" in config:  # encoder-decoder models
        small["decoder_start_token_id"] = PAD_ID
    if "word_embed_proj_dim" in config:  # OPT
        small["word_embed_proj_dim"] = shape.hidden
    return small | {
        "architectures": [family.architecture],
        "tie_word_embeddings": shape.tied,
        "initializer_range": 0.2,  # wide enough that a random model's choices differ between positions
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
    }


def long_rope(value: Any) -> bool:
    """Return True if a config entry has a factor per rotary pair, as in Phi-3's long versions."""
    return isinstance(value, Mapping) and any(isinstance(item, list) for item in value.values())
