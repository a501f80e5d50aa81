"""A target in its proportions, small enough for seconds on a processor: what `--debug` puts in place of the real one.

Query and key/value heads keep their ratio, widths theirs to the width of all heads, and whatever is smaller in the
draft than in the target stays smaller. Pure; no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd, lcm
from typing import Any

from architectures.families import FAMILIES
from architectures.shapes import CONFIG_KEY, Shape

LAYERS, LEAST_LAYERS = 4, 2  # of the target, and of a draft that has as many: a first and a last one
HEAD_DIM, MIN_HEADS, POSITIONS = 16, 2, 512
VOCAB, HEAD_VOCAB = 264, 259  # 256 bytes, 3 special tokens, and padding, which a small output head leaves out
BOS_ID, EOS_ID, PAD_ID = 1, 2, 0
SIZES = ("layers", "encoder_layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab")
NOT_OF_A_TINY_MODEL = ("_name_or_path", "auto_map", "dtype", "torch_dtype", "transformers_version", CONFIG_KEY)


def tiny_shapes(target: Shape, drafts: Sequence[Shape] = ()) -> list[Shape]:
    """A target and the drafts cut out of it, all divided by the same numbers; the target first."""
    shapes = [target, *drafts]
    group = head_divisor(shapes)
    head_dim = min(target.head_dim, HEAD_DIM)
    divisor = target.head_dim * group / head_dim
    step = lcm(*(shape.heads // group for shape in shapes))  # no engine takes a width that heads do not divide
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
    """The largest number that divides all numbers of heads and leaves MIN_HEADS query heads; 1 where none does."""
    counts = [count for shape in shapes for count in (shape.heads, shape.kv_heads)]
    fewest = min(shape.heads for shape in shapes)
    common = gcd(*counts)
    return max((n for n in range(1, common + 1) if common % n == 0 and fewest // n >= MIN_HEADS), default=1)


def shrunk(sizes: Iterable[int], divisor: float, *, step: int = 1, least: int = 1) -> dict[int, int]:
    """Each size divided and rounded to a multiple of step; different sizes stay different, in the same order.

    Args:
        sizes: Of one axis, in the target and its drafts.
        divisor: Of all of them, >= 1.
        step: What every result is a multiple of.
        least: No result is below this, except of a size that is itself.
    """
    small: dict[int, int] = {}
    last = 0
    for size in sorted(set(sizes)):
        last = small[size] = max(last + step, round(size / divisor / step) * step, min(size, least))
    return small


def tiny_config(config: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """The config.json of a tiny random model: the target's, with the sizes of shape.

    Args:
        config: The target's.
        shape: What `tiny_shapes` made of it.
    """
    family = FAMILIES[shape.family]
    small = {key: value for key, value in config.items() if key not in NOT_OF_A_TINY_MODEL and not long_rope(value)}
    small |= {family.keys[size]: getattr(shape, size) for size in SIZES if size in family.keys}
    if "positions" in family.keys:
        small[family.keys["positions"]] = shape.positions - family.extra_positions
    small |= {key: config[key][: shape.layers] for key in family.per_layer_lists if config.get(key) is not None}
    if shape.head_vocab:
        small[CONFIG_KEY] = shape.head_vocab
    if "decoder_start_token_id" in config:  # of encoder-decoder models
        small["decoder_start_token_id"] = PAD_ID
    if "word_embed_proj_dim" in config:  # of OPT
        small["word_embed_proj_dim"] = shape.hidden
    return small | {
        "architectures": [family.architecture],
        "tie_word_embeddings": shape.tied,
        "initializer_range": 0.2,  # wide enough that a random model's choices differ from place to place
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
    }


def long_rope(value: Any) -> bool:
    """Whether a config entry holds a factor for each rotary pair of the real head, as Phi-3's long versions do."""
    return isinstance(value, Mapping) and any(isinstance(item, list) for item in value.values())
