"""What a family is: the modules of its checkpoints with their axes, what its config leaves unsaid, and who loads it.

Data only, no torch.

Axes are written as text. One name is one axis of the weight as it is stored: hidden, intermediate, query (heads x
head_dim), key_value (kv_heads x head_dim), head_dim, vocab, head_rows (of the output head), positions. "a+b" is a fused
axis: a's rows, then b's. buckets are distances that share an attention bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from architectures.errors import UserError

BiasRule = bool | str  # True: always there; False: never; text: the config entry that decides
EMBEDDING_ROLES = ("embedding", "positions", "head")
Feature = Literal[  # what a recipe can ask for, and not every family can be given
    "merge",
    "learned_masks",
    "vocabulary",
    "stages",
    "packing",
    "text",
    "self_written_prompts",
    "answer engine",
    "sharded teacher",
    "fsdp2",
    "choose",
]
ModelEngine = Literal["vLLM", "SGLang", "llama.cpp"]  # whose code was read for a model of each family


@dataclass(frozen=True)
class Part:
    """A module of a checkpoint.

    Attributes:
        name: As the checkpoint names it, inside its layer, without .weight or .bias.
        axes: Of the weight, as stored.
        bias_axis: Of the bias; None where there is none.
        bias: Whether the bias is there: always, or where the Shape's flag of this name is set.
        when: The Shape's flag by which the module itself is there; empty where it always is.
    """

    name: str
    axes: tuple[str, ...]
    bias_axis: str | None = None
    bias: bool | str = True
    when: str = ""


def linear(name: str, rows: str, columns: str, *, bias: bool | str = False, when: str = "") -> Part:
    """A torch Linear: stored [output, input]."""
    return Part(name, (rows, columns), rows if bias else None, bias, when)


def conv1d(name: str, rows: str, columns: str) -> Part:
    """GPT-2's linear layer: stored [input, output], with a bias."""
    return Part(name, (rows, columns), columns)


def rms_norm(name: str, axis: str = "hidden") -> Part:
    """A norm with a weight alone."""
    return Part(name, (axis,))


def layer_norm(name: str) -> Part:
    """A norm with a weight and a bias."""
    return Part(name, ("hidden",), "hidden")


@dataclass(frozen=True)
class ConfigEntry:
    """An entry of config.json, and what transformers takes when it is absent."""

    key: str
    default: Any


@dataclass(frozen=True)
class Encoder:
    """The blocks that read a prompt, of a model whose decoder attends to what comes of them.

    Attributes:
        layer: Role -> module of one block.
        layer_prefix: What stands before a block's number.
    """

    layer: Mapping[str, Part]
    layer_prefix: str


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """How llama.cpp has a family: the name of its architecture, and what its loader demands of one.

    Attributes:
        name: `general.architecture`; where it is the model_type too, such a file is imported as this family.
        bias_tensors: Config entry -> a tensor that is there when the entry is true.
        scales: Config entry -> entry below the architecture's name, of numbers that the model multiplies or divides by.
        own_row_order: Whether query and key rows are stored in llama.cpp's rotary order, of neighbouring pairs.
        query_is_hidden: Whether the query's channels are taken to be as many as the hidden ones.
        attention_bias: Whether there may be biases behind the attention.
        ffn_bias: Whether there may be biases in the feed-forward.
        tied_head: Whether the output head may be left out, the embedding being it.
        rope_factors: Whether the layers read the factors that a Llama 3 divides rotary frequencies by.
        rope_period: The n by which each n-th layer has no rotary positions, which no entry says; None where all have.
        taken_for_eagle: Whether one layer with draft_vocab_size in its config is converted as a head of EAGLE-3.
    """

    name: str
    bias_tensors: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
    own_row_order: bool = False
    query_is_hidden: bool = False
    attention_bias: bool = True
    ffn_bias: bool = True
    tied_head: bool = True
    rope_factors: bool = False
    rope_period: int | None = None
    taken_for_eagle: bool = False

    def rotary_layers(self, layers: int) -> list[int] | None:
        """Of each layer 1 if llama.cpp gives it rotary positions, else 0; None where all have them."""
        return None if self.rope_period is None else all_but_each(self.rope_period, layers)


def all_but_each(period: int, layers: int) -> list[int]:
    """Of each layer 1, but of each period-th 0."""
    return [int((layer + 1) % period != 0) for layer in range(layers)]


LLAMA_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "norm_eps": "rms_norm_eps",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of transformers.

    Attributes:
        layer: Role -> module of one layer.
        outside: Role -> module outside the layers; `head` is left out of a checkpoint with tied embeddings.
        layer_prefix: What stands before a layer's number.
        base_prefix: What some checkpoints leave out before every name but the head's; empty where none does.
        keys: Size -> entry of config.json.
        window_layers: The entry that holds the first layer with a sliding window.
        window_pattern: The entry n by which each n-th layer is without window, where no layer_types says so.
        rope_pattern: The entry n by which each n-th layer is without rotary positions, where no no_rope_layers says so.
        fixed_entries: Config entries that must have this value, or be absent: others make another model.
        renamed_modules: Name in transformers' module -> name in a checkpoint, where they differ.
        texts_apart: What keeps several texts of one row apart. positions: transformers masks the earlier ones wherever
            positions begin again at 0. mask: it does so only by a mask. mask_and_bias: and has to be told the distances
            that its attention bias goes by.
        context_key: Entry with the tokens of a text at most; None where positions have no end.
        default_context: Where config.json has no such entry.
        scaled_context: Whether that entry is the length after rotary scaling, whatever the scaling.
        by_rows: Whether the model follows positions and masks it is given, so that texts of different lengths are rows
            of one batch, each with tokens taken back; else rows only ever go on.
        mask_per_kind: Whether it asks for a mask of each kind of layer, where it is given masks.
        no_width: Why heads, neurons and channels cannot be cut; empty where they can.
        engines: Those with a model of its own for the family.
        heads_share_hidden: Of these, those that take hidden / heads for the width of a head, whatever the config says.
        head_is_embedding: Of these, those whose model has no output head but the embedding: lm_head.weight is left out.
        gguf: As which its folders become GGUF files; None where they do not.
        no_gguf: Why they do not.
        encoder: Of an encoder-decoder model; `layer` is then of its decoder. None where one stack does both.
        untied_entry: The entry that is false where the head is not the embedding, whatever tie_word_embeddings says.
        gated_entry: The entry whose text begins with "gated" where the feed-forward has a gate.
        copies: Modules that are the embedding under other names; a checkpoint may hold them, and none of ours does.
        refused: What a recipe cannot ask for, with the reason.
    """

    model_type: str
    label: str  # as its authors write it
    architecture: str  # the class a config.json names
    layer: Mapping[str, Part]
    outside: Mapping[str, Part]
    layer_prefix: str = "model.layers."
    base_prefix: str = ""
    keys: Mapping[str, str] = field(default_factory=lambda: LLAMA_KEYS)
    no_width: str = ""
    qkv_bias: BiasRule = False
    output_bias: BiasRule = False
    ffn_bias: BiasRule = False
    tied: bool = False  # where config.json has no tie_word_embeddings
    default_kv_heads: int | None = None  # where config.json has none; None: as many as heads
    default_head_dim: int | None = None  # where config.json has none; None: hidden / heads
    extra_positions: int = 0  # rows of the position table beyond those the config names
    default_norm_eps: float = 1e-6  # where config.json has none
    norm_offset: float = 0.0  # a norm multiplies by weight + this
    scaled_embedding: bool = False  # embeddings are multiplied by sqrt(hidden) in the forward pass
    ignored_suffixes: tuple[str, ...] = ("self_attn.rotary_emb.inv_freq",)  # buffers old checkpoints stored
    per_layer_lists: tuple[str, ...] = ("layer_types",)  # config entries with one value for each layer
    window_layers: ConfigEntry | None = None
    window_pattern: ConfigEntry | None = None
    rope_pattern: ConfigEntry | None = None
    fixed_entries: Mapping[str, Any] = field(default_factory=dict)
    renamed_modules: Mapping[str, str] = field(default_factory=dict)
    texts_apart: Literal["positions", "mask", "mask_and_bias"] = "positions"
    context_key: str | None = "max_position_embeddings"
    default_context: int = 2048
    scaled_context: bool = False
    by_rows: bool = False
    mask_per_kind: bool = False
    engines: tuple[ModelEngine, ...]
    heads_share_hidden: tuple[ModelEngine, ...] = ()
    head_is_embedding: tuple[ModelEngine, ...] = ()
    gguf: Gguf | None = None
    no_gguf: str = "it is not written"
    encoder: Encoder | None = None
    untied_entry: ConfigEntry | None = None
    gated_entry: ConfigEntry | None = None
    copies: tuple[str, ...] = ()
    refused: Mapping[Feature, str] = field(default_factory=dict)

    @property
    def width(self) -> bool:
        """Whether heads, neurons and channels can be cut; else layers alone."""
        return not self.no_width

    @property
    def norms_over_heads(self) -> bool:
        """Whether queries and keys are normalised over all heads together, so that none is by itself."""
        return "query_norm" in self.layer and self.layer["query_norm"].axes == ("query",)

    def rotary_layers(self, config: Mapping[str, Any], layers: int) -> list[int] | None:
        """Of each layer 1 if it has rotary positions, else 0, as the config says or implies; None where all have."""
        if self.rope_pattern is None or config.get("no_rope_layers") is not None:
            return config.get("no_rope_layers")
        return all_but_each(config.get(self.rope_pattern.key, self.rope_pattern.default), layers)

    def biases(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Which biases a checkpoint with this config has."""
        rules = {"qkv_bias": self.qkv_bias, "output_bias": self.output_bias, "ffn_bias": self.ffn_bias}
        return {name: bool(config.get(rule, False)) if isinstance(rule, str) else rule for name, rule in rules.items()}

    @property
    def stored_copies(self) -> tuple[str, ...]:
        """The weights that are the embedding's under other names."""
        return tuple(f"{module}.weight" for module in self.copies)

    def refuse(self, feature: Feature, asked: str) -> None:
        """Raise UserError if a family cannot be given what a recipe or command asks for.

        Args:
            feature: As `refused` names it.
            asked: The key or command; begins the message.
        """
        if feature in self.refused:
            raise UserError(
                f"{asked}: not for targets of model_type {self.model_type}: {self.refused[feature]}. "
                "Leave it out, or take another target."
            )

    def is_tied(self, config: Mapping[str, Any]) -> bool:
        """Whether the head of a checkpoint with this config is its embedding."""
        entry = self.untied_entry
        untied = entry is not None and not config.get(entry.key, entry.default)
        return not untied and bool(config.get("tie_word_embeddings", self.tied))

    def is_gated(self, config: Mapping[str, Any]) -> bool:
        """Whether the feed-forward of a checkpoint with this config has a gate, where there are both kinds."""
        entry = self.gated_entry
        return entry is not None and str(config.get(entry.key, entry.default)).startswith("gated")

    def weight(self, role: str) -> str:
        """The full name of the weight of a module outside the layers."""
        return f"{self.outside[role].name}.weight"

    def layer_module(self, layer: int, role: str) -> str:
        """The full name of a module of one layer."""
        return f"{self.layer_prefix}{layer}.{self.layer[role].name}"
