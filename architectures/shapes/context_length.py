"""How many tokens a model was made for: the one rule that check, generation, training and scoring go by. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.shapes.shape import required

KEYS_OF_OTHERS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length", "max_sequence_length")
STATED_WITH_SCALING = ("default", "llama3", "longrope", "su", "mrope", "proportional")


@dataclass(frozen=True)
class ContextLength:
    """Tokens of a text at most, prompt and answer together.

    Attributes:
        tokens: > 0.
        origin: Where the number comes from, as "n_positions is 1024".
    """

    tokens: int
    origin: str


def context_length(config: Mapping[str, Any], *, where: str) -> ContextLength | None:
    """How long texts may be by a model's config; None where nothing in it is bound to a position.

    That is the entry of its family (max_position_embeddings, or GPT-2's n_positions; transformers' default where it is
    absent), of another model the smallest of KEYS_OF_OTHERS. Of a learned position table it is the number of texts'
    places, without the two rows more that OPT's has. Attention biases by distance (ALiBi, T5's buckets) have no end.

    Rotary scaling, as vLLM serves it and transformers computes it:
        linear, dynamic           the entry is the length before scaling: times factor
        yarn                      original_max_position_embeddings (else the entry) times factor
        llama3, longrope          the entry is the length after scaling, and counts as it stands
        Gemma 3, whatever type    likewise

    Sources: vLLM, `_get_and_verify_max_len` in vllm/config/model.py; transformers 5.17 and 5.23, modeling_rope_utils
    (`original_max_position_embeddings` beside the scaling comes before that inside it, and the entry stands in for
    both).

    Args:
        config: Of config.json, or of transformers' `to_dict`; of a model with several parts its text part.
        where: The file, for messages.

    Raises:
        UserError: If an entry it goes by is not a positive number.
    """
    family = FAMILIES.get(config.get("model_type", ""))
    key = smallest_of_others(config, where) if family is None else family.context_key
    if key is None:
        return None
    default = 0 if family is None else family.default_context
    tokens = default if config.get(key) is None else required(config, key, where)
    plain = ContextLength(tokens, f"{key} is {tokens}")
    stated_scaled = is_gemma_3(config) if family is None else family.scaled_context
    scaled = [] if stated_scaled else [scale(plain, rope, config, where) for rope in ropes(config, where)]
    return max(scaled, key=lambda each: each.tokens, default=plain)


def smallest_of_others(config: Mapping[str, Any], where: str) -> str | None:
    """The entry that holds the length of a model of no family of ours."""
    attention = config.get("attn_config")
    by_distance = (
        config.get("alibi"),
        config.get("relative_attention_num_buckets"),
        attention.get("alibi") if isinstance(attention, Mapping) else None,
    )
    given = [key for key in KEYS_OF_OTHERS if config.get(key) is not None]
    return None if any(by_distance) else min(given, key=lambda key: required(config, key, where), default=None)


def is_gemma_3(config: Mapping[str, Any]) -> bool:
    """Whether a model of no family of ours is a larger Gemma 3, which states its length after scaling as well."""
    return str(config.get("model_type")).startswith("gemma3")


def ropes(config: Mapping[str, Any], where: str) -> Iterator[Mapping[str, Any]]:
    """The rotary scalings of a config: one, or one for each type of layer."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key) or {}
    nested = isinstance(rope, Mapping) and rope and all(isinstance(part, Mapping | None) for part in rope.values())
    for part in rope.values() if nested else [rope]:
        if part is not None and not isinstance(part, Mapping):
            raise UserError(
                f"{where}: {key} must be a section, got {part!r}. Take the config.json the checkpoint came with."
            )
        if part:
            yield part


def has_scaled_positions(config: Mapping[str, Any], where: str) -> bool:
    """Whether rotary positions are scaled for a length; those of rope_theta alone are for any."""
    return any(kind_of(rope) != "default" for rope in ropes(config, where))


def kind_of(rope: Mapping[str, Any]) -> Any:
    """The type of a rotary scaling, by either of its names."""
    return rope.get("rope_type", rope.get("type", "default"))


def scale(plain: ContextLength, rope: Mapping[str, Any], config: Mapping[str, Any], where: str) -> ContextLength:
    """The length that one rotary scaling makes of the config's own."""
    kind = kind_of(rope)
    if kind in STATED_WITH_SCALING:
        return plain
    factor = rope.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not isfinite(factor) or factor <= 0:
        raise UserError(
            f"{where}: factor of the rotary scaling {kind!r} must be a number > 0, got {factor!r}. "
            "Take the config.json the checkpoint came with."
        )
    if kind != "yarn":
        return times(plain, kind, factor)
    name = "original_max_position_embeddings"
    original = next((part for part in (config, rope) if part.get(name) is not None), None)
    if original is None:
        return times(plain, kind, factor)
    tokens = required(original, name, where)
    return times(ContextLength(tokens, f"{name} is {tokens}"), kind, factor)


def times(plain: ContextLength, kind: str, factor: float) -> ContextLength:
    """So many times a length; the same where the factor is 1."""
    tokens = max(1, int(plain.tokens * factor))
    if tokens == plain.tokens:
        return plain
    return ContextLength(tokens, f"{plain.origin}, times {factor:g} by its rotary scaling {kind!r} is {tokens}")
