"""Shape of a draft: its cost in parameters, FLOPs and bytes, known before any weight exists. No torch.

Includes the named shapes. A nominal size ("796M") is a published name and is always shown with the true count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

from architectures.errors import UserError
from architectures.families import FAMILIES, family_of
from architectures.families.config_entries import TEXT_PARTS, mistake_in
from architectures.families.family import EMBEDDING_ROLES, LLAMA, LLAMA_KEYS, Encoder, Family, LayerPart

CONFIG_KEY = "head_vocab_size"  # of config.json; `draft_vocab_size` would make llama.cpp take it for EAGLE-3
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Family and sizes of a decoder, and of its encoder if it has one."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    head_vocab: int = 0  # rows of the output head if it outputs fewer ids than vocab; 0 if it outputs all
    positions: int = 0  # rows of a learned position table; 0 if there is none
    tied: bool = False  # the output head shares the embedding
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    family: str = LLAMA.model_type
    encoder_layers: int = 0  # 0 for decoder-only models
    buckets: int = 0  # rows of a table of relative attention biases; 0 if there is none
    gated: bool = False  # for families whose feed-forward may or may not have a gate
    experts: int = 0  # feed-forward blocks of a layer that a router chooses from; 0 if there is no router
    active_experts: int = 0  # of those, used by each token

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, where: str = "config.json") -> "Shape":
        """Return the shape of a Hugging Face config of a known family; absent entries get transformers' defaults.

        Raises:
            UserError: If the family is unknown, an entry is missing, or the heads do not divide.
        """
        family = family_of(config, where=where)
        keys = family.keys
        if config.get(CONFIG_KEY) is not None:
            family.reject("vocabulary", f"{where}: {CONFIG_KEY}")
        hidden, heads = required(config, keys["hidden"], where), required(config, keys["heads"], where)
        kv_heads = optional(config, keys.get("kv_heads"), where, default=family.default_kv_heads or heads)
        if heads % kv_heads:
            raise UserError(
                f"{where}: {keys['kv_heads']} must divide {keys['heads']}, got {kv_heads} and {heads}. "
                "Use config.json and weights from the same checkpoint."
            )
        encoder_layers = required(config, keys["encoder_layers"], where) if family.encoder is not None else 0
        experts = required(config, first_key(config, EXPERTS), where) if "experts" in keys else 0
        return cls(
            layers=decoder_layers(config, family, encoder_layers, where),
            hidden=hidden,
            intermediate=intermediate_size(config, family, hidden, where),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_width(config, family, hidden, heads, where),
            vocab=required(config, keys["vocab"], where),
            head_vocab=head_vocab(config, required(config, keys["vocab"], where), where),
            positions=required(config, keys["positions"], where) + family.extra_positions if "positions" in keys else 0,
            tied=family.is_tied(config),
            **family.biases(config),
            family=family.model_type,
            encoder_layers=encoder_layers,
            buckets=optional(config, keys["buckets"], where, default=32) if "buckets" in keys else 0,
            gated=family.is_gated(config),
            experts=experts,
            active_experts=required(config, keys["active_experts"], where) if experts else 0,
        )

    @property
    def no_width(self) -> str:
        """Why heads, neurons and channels cannot be pruned; empty if they can."""
        return FAMILIES[self.family].no_width

    @property
    def norms_per_layer(self) -> int:
        """Norms over all channels."""
        return sum(part.axes == ("hidden",) for part in FAMILIES[self.family].layer.values())

    @property
    def head_rows(self) -> int:
        return self.head_vocab or self.vocab

    @property
    def expert_width(self) -> int:
        return self.intermediate

    @property
    def plain(self) -> bool:
        """True if the feed-forward has no gate, for families that may or may not have one."""
        return not self.gated

    def with_head_of(self, rows: int) -> "Shape":
        """Return this shape with an untied output head of `rows` ids."""
        return replace(self, head_vocab=rows, tied=False)

    def axis(self, name: str) -> int:
        """Return the length of an axis as families name it; a fused axis (joined by +) is the sum of its parts."""
        if "+" in name:
            return sum(self.axis(part) for part in name.split("+"))
        if name == "query":
            return self.heads * self.head_dim
        return self.kv_heads * self.head_dim if name == "key_value" else getattr(self, name)

    def part_tensors(self, parts: Mapping[str, LayerPart]) -> dict[str, tuple[int, ...]]:
        """Return the size of every tensor of some modules, under role.weight or role.bias; of all experts as one."""
        sizes: dict[str, tuple[int, ...]] = {}
        for role, part in parts.items():
            if part.when and not getattr(self, part.when):
                continue
            sizes[f"{role}.weight"] = tuple(self.axis(axis) for axis in part.axes)
            if part.bias_axis is not None and (getattr(self, part.bias) if isinstance(part.bias, str) else part.bias):
                sizes[f"{role}.bias"] = (self.axis(part.bias_axis),)
        return sizes

    def layer_tensors(self) -> dict[str, tuple[int, ...]]:
        return self.part_tensors(FAMILIES[self.family].layer)

    def encoder_layer_tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the size of every tensor of one encoder block; empty for decoder-only models."""
        encoder = FAMILIES[self.family].encoder
        return {} if encoder is None else self.part_tensors(encoder.layer)

    def parameters_per_layer(self) -> int:
        return sum(prod(size) for size in self.layer_tensors().values())

    def encoder_parameters(self) -> int:
        return self.encoder_layers * sum(prod(size) for size in self.encoder_layer_tensors().values())

    def parameters_without_embeddings(self) -> int:
        """Return the parameters of layers, outer norms and attention-bias tables; no embedding, positions or head."""
        outside = FAMILIES[self.family].outside
        norms = {role: part for role, part in outside.items() if role not in EMBEDDING_ROLES}
        layers = self.layers * self.parameters_per_layer() + self.encoder_parameters()
        return layers + sum(map(prod, self.part_tensors(norms).values()))

    def parameters(self) -> int:
        """Return the true count: everything in the checkpoint, a tied head counted once."""
        rows = self.vocab + (0 if self.tied else self.head_rows) + self.positions
        return self.parameters_without_embeddings() + rows * self.hidden

    def weight_bytes(self, dtype: str) -> int:
        return self.parameters() * DTYPE_BYTES[dtype]

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Return the bytes the key/value cache grows by with every token of one sequence."""
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[dtype]

    def flops_per_token(self, context: int) -> int:
        """Return the FLOPs of a forward pass for one more token; a multiply and an add count as two.

        Matrix products only, without norms, activations, rotary embeddings and biases.

        Source: Chowdhery et al. 2022, "PaLM", appendix B (arXiv 2204.02311): the forward third of 6N + 12LHQT, with
        the output head in N and the embedding not.

        Args:
            context: Positions the token attends to, itself included.
        """
        by_token = {3: self.active_experts, 2: 1, 1: 0}  # uses of a matrix, by the dimensions of its tensor
        matrices = sum(by_token[len(size)] * prod(size[-2:]) for size in self.layer_tensors().values())
        attention = 2 * self.heads * self.head_dim * context  # scores, then the weighted sum of values
        return 2 * (self.layers * (matrices + attention) + self.head_rows * self.hidden)


@dataclass(frozen=True, kw_only=True)
class OtherShape(Shape):
    """Shape of a model without an entry in FAMILIES, of which only layers can be pruned.

    Parameters and FLOPs follow from sizes that configs of transformers have; shared experts, latent attention and
    recurrent layers make them approximate.
    """

    experts: int = 1
    active_experts: int = 1
    approximate: bool = True  # tells this class from Shape in plan.json

    @property
    def no_width(self) -> str:
        return "architectures/families has no entry for this model type"

    @property
    def norms_per_layer(self) -> int:
        return 2

    def layer_tensors(self) -> dict[str, tuple[int, ...]]:
        query, key_value = self.axis("query"), self.axis("key_value")
        attention = {"query": (query, self.hidden), "attention_output": (self.hidden, query)}
        attention |= dict.fromkeys(("key", "value"), (key_value, self.hidden))
        return attention | dict.fromkeys(("gate", "up", "down"), (self.experts, self.intermediate, self.hidden))

    def encoder_layer_tensors(self) -> dict[str, tuple[int, ...]]:
        return {}

    def parameters_without_embeddings(self) -> int:
        return self.layers * self.parameters_per_layer()


OTHER_KEYS = {  # size: its entries in configs of transformers
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "intermediate": ("intermediate_size", "ffn_dim", "n_inner", "d_ff"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # entries of different families
ACTIVE_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


def model_shape(config: Mapping[str, Any], *, where: str = "config.json") -> Shape:
    """Return the shape of a model, which may be any causal LM of transformers.

    Raises:
        UserError: As Shape.from_config for a known family; if another one lacks a size, is quantised, or has its
            decoder in a nested config.
    """
    nested = any(isinstance(config.get(part), Mapping) for part in TEXT_PARTS)
    if config.get("model_type") in FAMILIES or nested or config.get("quantization_config") is not None:
        return Shape.from_config(config, where=where)
    keys = {name: first_key(config, names) for name, names in OTHER_KEYS.items()}
    hidden, heads = required(config, keys["hidden"], where), optional(config, keys["heads"], where, default=1)
    layers = len(config.get("layers_block_type") or ()) or required(config, keys["layers"], where)
    widths = config.get(keys["intermediate"])  # a list has one width per layer
    config = {**config, keys["intermediate"]: max(widths)} if isinstance(widths, list) and widths else config
    experts = next((config[key] for key in EXPERTS if config.get(key)), 1)
    dense = optional(config, keys["intermediate"], where, default=4 * hidden)
    return OtherShape(
        layers=layers,
        hidden=hidden,
        intermediate=optional(config, "moe_intermediate_size", where, default=dense) if experts > 1 else dense,
        heads=heads,
        kv_heads=optional(config, LLAMA_KEYS["kv_heads"], where, default=heads),
        head_dim=optional(config, "head_dim", where, default=hidden // heads),
        vocab=required(config, LLAMA_KEYS["vocab"], where),
        tied=bool(config.get("tie_word_embeddings", False)),
        family=str(config.get("model_type")),
        experts=experts,
        active_experts=next((config[key] for key in ACTIVE_EXPERTS if config.get(key)), 1),
    )


def first_key(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the first key that a config has; the first one if it has none."""
    return next((key for key in keys if config.get(key) is not None), keys[0])


@dataclass(frozen=True)
class TensorLocation:
    """Location of a tensor in a checkpoint.

    Attributes:
        part: Its module.
        kind: weight or bias.
        layer: Index of its layer; None outside the layers.
        prefix: Of the name of its layer, before the index.
        in_encoder: True for a layer of the encoder.
        expert: Index of its expert, if each has such a tensor.
    """

    role: str
    part: LayerPart
    kind: str
    size: tuple[int, ...]
    layer: int | None
    prefix: str
    in_encoder: bool
    expert: int


def tensor_locations(shape: Shape) -> dict[str, TensorLocation]:
    """Return the location of every tensor of a checkpoint by its Hugging Face name, in forward order."""
    family, after = FAMILIES[shape.family], ("final_norm", "head")
    found: dict[str, TensorLocation] = {}

    def add(parts: Mapping[str, LayerPart], layer: int | None = None, stack: Family | Encoder = family) -> None:
        before = "" if layer is None else f"{stack.layer_prefix}{layer}."
        for tensor, whole in shape.part_tensors(parts).items():
            role, kind = tensor.rsplit(".", 1)
            part, size = parts[role], whole[1:] if parts[role].stacked else whole
            for expert, name in enumerate(part.names(shape.experts)):
                at = (layer, stack.layer_prefix, stack is family.encoder, expert)
                found[f"{before}{name}.{kind}"] = TensorLocation(role, part, kind, size, *at)

    outside = {role: part for role, part in family.outside.items() if not (role == "head" and shape.tied)}
    add({role: part for role, part in outside.items() if role not in after})
    if family.encoder is not None:
        for layer in range(shape.encoder_layers):
            add(family.encoder.layer, layer, family.encoder)
    for layer in range(shape.layers):
        add(family.layer, layer)
    add({role: outside[role] for role in after if role in outside})
    return found


def checkpoint_tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the size of every tensor of a checkpoint under its Hugging Face name, in forward order."""
    return {name: location.size for name, location in tensor_locations(shape).items()}


def decoder_layers(config: Mapping[str, Any], family: Family, encoder_layers: int, where: str) -> int:
    """Return the decoder's layers; by default as deep as the encoder, if there is one."""
    key = family.keys["layers"]
    return optional(config, key, where, default=encoder_layers) if encoder_layers else required(config, key, where)


def intermediate_size(config: Mapping[str, Any], family: Family, hidden: int, where: str) -> int:
    """Return the feed-forward width; families before LLaMA may omit it, and it is then four times the hidden width."""
    key = family.keys.get("intermediate")
    if key is not None and family.width:
        return required(config, key, where)
    return optional(config, key, where, default=4 * hidden)


def head_vocab(config: Mapping[str, Any], vocab: int, where: str) -> int:
    """Return the rows of a head that outputs fewer ids than the embedding reads; 0 if it outputs all."""
    rows = optional(config, CONFIG_KEY, where, default=0)
    if rows >= vocab:
        raise UserError(f"{where}: {CONFIG_KEY} must be below vocab_size {vocab}, got {rows}. Remove it.")
    if rows and config.get("tie_word_embeddings"):
        raise UserError(
            f"{where}: {CONFIG_KEY} is {rows} and tie_word_embeddings true, but a reduced head cannot be tied. "
            "Use the config.json that came with the draft."
        )
    return rows


def head_width(config: Mapping[str, Any], family: Family, hidden: int, heads: int, where: str) -> int:
    """Return the width of a head; by default hidden / heads."""
    key = family.keys.get("head_dim")
    stated = family.default_head_dim if key is None or config.get(key) is None else required(config, key, where)
    if stated is None and hidden % heads:
        raise UserError(
            f"{where}: {family.keys['heads']} must divide {family.keys['hidden']}, got {heads} and {hidden}. "
            "Use the config.json that came with the checkpoint."
        )
    return stated or hidden // heads


def required(config: Mapping[str, Any], key: str, where: str) -> int:
    """Return a positive integer that config must contain."""
    value = config.get(key)
    mistake = f"{key} is missing" if value is None else mistake_in({key: value})
    if value is None or mistake is not None:
        raise UserError(f"{where}: {mistake}. Use the config.json that came with the checkpoint.")
    return value


def optional(config: Mapping[str, Any], key: str | None, where: str, *, default: int) -> int:
    """Return a positive integer, or `default` if the family has no such entry or config omits it or sets null."""
    return default if key is None or config.get(key) is None else required(config, key, where)


@dataclass(frozen=True)
class NamedShape:
    """Published shape with its nominal size."""

    nominal: str
    shape: Shape


def llama_shape(layers: int, hidden: int, intermediate: int, heads: int) -> Shape:
    """Return a LLaMA-1/2 shape: vocabulary 32000, heads of 128, no grouped queries, separate output head."""
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=heads,
        head_dim=128,
        vocab=32000,
    )


# Sources: "Decoding Speculative Decoding" (arXiv 2402.01528) and its released checkpoints (wide-*, deep-1.3b),
# "Sheared LLaMA" (arXiv 2310.06694), table 8, and "LLaMA" (arXiv 2302.13971), table 2.
# The *-true rows are the 2560-wide shapes that the published names 796M, 543M and 290M fit exactly.
NAMED_SHAPES = {
    "wide-1.3b": NamedShape("1.3B", llama_shape(12, 2560, 9280, 20)),
    "wide-796m": NamedShape("796M", llama_shape(5, 4096, 11008, 32)),
    "wide-543m": NamedShape("543M", llama_shape(3, 4096, 11008, 32)),
    "wide-290m": NamedShape("290M", llama_shape(1, 4096, 11008, 32)),
    "wide-796m-true": NamedShape("796M", llama_shape(5, 2560, 11008, 32)),
    "wide-543m-true": NamedShape("543M", llama_shape(3, 2560, 11008, 32)),
    "wide-290m-true": NamedShape("290M", llama_shape(1, 2560, 11008, 32)),
    "wide-829m": NamedShape(
        "829M",
        Shape(
            layers=5, hidden=2048, intermediate=8192, heads=32, kv_heads=8, head_dim=64, vocab=128256, tied=True
        ),  # the name counts the tied head a second time
    ),
    "deep-1.3b": NamedShape("1.3B", llama_shape(24, 2048, 5504, 16)),
    "sheared-2.7b": NamedShape("2.7B", llama_shape(32, 2560, 6912, 20)),
    "llama-7b": NamedShape("7B", llama_shape(32, 4096, 11008, 32)),
    "llama-13b": NamedShape("13B", llama_shape(40, 5120, 13824, 40)),
    "llama-65b": NamedShape("65B", llama_shape(80, 8192, 22016, 64)),
}


def rope_for_transformers_4(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary entries that transformers 4 and engines with parsers of their own read, if they are missing.

    Transformers 5 writes only rope_parameters, from which others take no rope_theta: their default is another model.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping) or "rope_theta" not in rope or "rope_theta" in config:
        return {}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    is_scaled = scaling.get("rope_type", "default") not in ("default", "longrope")  # Phi-3 4.x takes other entries
    return {"rope_theta": rope["rope_theta"], **({"rope_scaling": scaling} if is_scaled else {})}


KEYS_OF_OTHERS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length", "max_sequence_length")
STATED_WITH_SCALING = ("default", "llama3", "longrope", "su", "mrope", "proportional")


@dataclass(frozen=True)
class ContextLength:
    """Maximum tokens of a sequence, prompt and response together.

    Attributes:
        tokens: > 0.
        origin: Source of the number, as "n_positions is 1024".
    """

    tokens: int
    origin: str


def context_length(config: Mapping[str, Any], *, where: str) -> ContextLength | None:
    """Return the context length of a model's config; None if nothing in it depends on absolute positions.

    It is the entry of the config's family (max_position_embeddings, or GPT-2's n_positions; transformers' default if
    absent), or the smallest of KEYS_OF_OTHERS for other models. For a learned position table it is the number of
    usable positions, without the two additional rows of OPT. Relative attention biases (ALiBi, T5's buckets) have no
    limit.

    Rotary scaling, as vLLM serves it and transformers computes it:
        linear, dynamic           the entry is the length before scaling: times factor
        yarn                      original_max_position_embeddings (else the entry) times factor
        llama3, longrope          the entry is the length after scaling, used unchanged
        Gemma 3, any type         the entry is the length after scaling, used unchanged

    Sources: vLLM, `_get_and_verify_max_len` in vllm/config/model.py; transformers 5.17 and 5.23, modeling_rope_utils
    (`original_max_position_embeddings` next to the scaling takes precedence over that inside it; the default for both
    is the entry).

    Args:
        config: Of config.json or transformers' `to_dict`; for a multi-part model its text part.

    Raises:
        UserError: If a used entry is not a positive number.
    """
    family = FAMILIES.get(config.get("model_type", ""))
    key = smallest_of_others(config, where) if family is None else family.context_key
    if key is None:
        return None
    default = 0 if family is None else family.default_context
    tokens = default if config.get(key) is None else required(config, key, where)
    plain = ContextLength(tokens, f"{key} is {tokens}")
    # A larger Gemma 3, of an unknown family, states its length after scaling too.
    stated_scaled = str(config.get("model_type")).startswith("gemma3") if family is None else family.scaled_context
    scaled = [] if stated_scaled else [scale(plain, rope, config, where) for rope in ropes(config, where)]
    return max(scaled, key=lambda each: each.tokens, default=plain)


def smallest_of_others(config: Mapping[str, Any], where: str) -> str | None:
    """Return the entry with the context length of a model of an unknown family."""
    attention = config.get("attn_config")
    by_distance = (
        config.get("alibi"),
        config.get("relative_attention_num_buckets"),
        attention.get("alibi") if isinstance(attention, Mapping) else None,
    )
    given = [key for key in KEYS_OF_OTHERS if config.get(key) is not None]
    return None if any(by_distance) else min(given, key=lambda key: required(config, key, where), default=None)


def ropes(config: Mapping[str, Any], where: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rotary scalings of a config, one or one per layer type."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key) or {}
    nested = isinstance(rope, Mapping) and rope and all(isinstance(part, Mapping | None) for part in rope.values())
    for part in rope.values() if nested else [rope]:
        if part is not None and not isinstance(part, Mapping):
            raise UserError(
                f"{where}: {key} must be a mapping, got {part!r}. Use the config.json that came with the checkpoint."
            )
        if part:
            yield part


def has_scaled_positions(config: Mapping[str, Any], where: str) -> bool:
    """Return True if rotary positions are scaled for a length; with only rope_theta they fit any."""
    return any(kind_of(rope) != "default" for rope in ropes(config, where))


def kind_of(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def scale(plain: ContextLength, rope: Mapping[str, Any], config: Mapping[str, Any], where: str) -> ContextLength:
    kind = kind_of(rope)
    if kind in STATED_WITH_SCALING:
        return plain
    factor = rope.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not isfinite(factor) or factor <= 0:
        raise UserError(
            f"{where}: factor of the rotary scaling {kind!r} must be a number > 0, got {factor!r}. "
            "Use the config.json that came with the checkpoint."
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
    tokens = max(1, int(plain.tokens * factor))
    if tokens == plain.tokens:
        return plain
    return ContextLength(tokens, f"{plain.origin}, times {factor:g} by its rotary scaling {kind!r} is {tokens}")
