"""Shape: what a draft costs, in parameters, FLOPs and bytes, known before any weight exists. No torch.

Holds the named shapes too. A nominal size ("796M") is a published name and is always shown beside the true count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from architectures.errors import UserError
from architectures.families import EMBEDDING, FINAL_NORM, HEAD, LAYER_PREFIX, Family, family_of

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a decoder of the LLaMA kind."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False  # the output head is the embedding
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    query_key_norm: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, where: str = "config.json") -> "Shape":
        """The shape of a Hugging Face config of a known family; absent entries mean what transformers takes them to be.

        Args:
            config: The parsed config.json.
            where: The file, for messages.

        Raises:
            UserError: If the family is unknown, an entry is missing, or the heads do not divide.
        """
        family = family_of(config, where=where)
        hidden, heads = required(config, "hidden_size", where), required(config, "num_attention_heads", where)
        kv_heads = optional(config, "num_key_value_heads", where, default=family.default_kv_heads or heads)
        if heads % kv_heads:
            raise UserError(
                f"{where}: num_key_value_heads must divide num_attention_heads, got {kv_heads} and {heads}. "
                "Take config.json and weights from the same checkpoint."
            )
        return cls(
            layers=required(config, "num_hidden_layers", where),
            hidden=hidden,
            intermediate=required(config, "intermediate_size", where),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=optional(config, "head_dim", where, default=family.default_head_dim or hidden // heads),
            vocab=required(config, "vocab_size", where),
            tied=bool(config.get("tie_word_embeddings", False)),
            **family.biases(config),
            query_key_norm=family.query_key_norm,
        )

    def layer_tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of one layer with its size, under role.weight or role.bias, as the families name roles."""
        query, key_value = self.heads * self.head_dim, self.kv_heads * self.head_dim
        linears = {
            "query": (query, self.hidden, self.qkv_bias),
            "key": (key_value, self.hidden, self.qkv_bias),
            "value": (key_value, self.hidden, self.qkv_bias),
            "attention_output": (self.hidden, query, self.output_bias),
            "ffn_gate": (self.intermediate, self.hidden, self.ffn_bias),
            "ffn_up": (self.intermediate, self.hidden, self.ffn_bias),
            "ffn_down": (self.hidden, self.intermediate, self.ffn_bias),
        }
        norms = {"attention_norm": self.hidden, "ffn_norm": self.hidden}
        if self.query_key_norm:
            norms |= {"query_norm": self.head_dim, "key_norm": self.head_dim}
        weights = {f"{role}.weight": (rows, columns) for role, (rows, columns, _) in linears.items()}
        added = {f"{role}.bias": (rows,) for role, (rows, _, has_bias) in linears.items() if has_bias}
        return {**weights, **added, **{f"{role}.weight": (size,) for role, size in norms.items()}}

    def parameters_per_layer(self) -> int:
        """Parameters of one layer: attention, feed-forward, norms and biases."""
        return sum(prod(size) for size in self.layer_tensors().values())

    def parameters_without_embeddings(self) -> int:
        """Parameters of all layers and the final norm; neither the embedding nor the output head."""
        return self.layers * self.parameters_per_layer() + self.hidden

    def parameters(self) -> int:
        """The true count: everything the checkpoint holds, a tied head counted once."""
        return self.parameters_without_embeddings() + (1 if self.tied else 2) * self.vocab * self.hidden

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights.

        Args:
            dtype: float32, bfloat16 or float16.
        """
        return self.parameters() * DTYPE_BYTES[dtype]

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes the key/value cache grows by with every token of one sequence."""
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[dtype]

    def flops_per_token(self, context: int) -> int:
        """FLOPs of a forward pass for one more token; a multiply and an add count as two.

        Matrix products only; norms, activations, rotary embeddings and biases are left out.

        Source: Chowdhery et al. 2022, "PaLM", appendix B (arXiv 2204.02311): the forward third of 6N + 12LHQT,
        with the output head in N and the embedding not.

        Args:
            context: Positions the token attends to, itself included.
        """
        matrices = sum(prod(size) for size in self.layer_tensors().values() if len(size) == 2)
        attention = 2 * self.heads * self.head_dim * context  # scores, then the weighted sum of values
        return 2 * (self.layers * (matrices + attention) + self.vocab * self.hidden)


def checkpoint_tensors(shape: Shape, family: Family) -> dict[str, tuple[int, ...]]:
    """Every tensor a checkpoint of this shape holds, under its Hugging Face name, with its size; in reading order."""
    sizes: dict[str, tuple[int, ...]] = {EMBEDDING: (shape.vocab, shape.hidden)}
    for layer in range(shape.layers):
        for tensor, size in shape.layer_tensors().items():
            role, kind = tensor.rsplit(".", 1)
            sizes[f"{LAYER_PREFIX}{layer}.{family.layer_names[role]}.{kind}"] = size
    sizes[FINAL_NORM] = (shape.hidden,)
    if not shape.tied:
        sizes[HEAD] = (shape.vocab, shape.hidden)
    return sizes


def required(config: Mapping[str, Any], key: str, where: str) -> int:
    """A positive whole number that config must hold."""
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise UserError(
            f"{where}: {key} must be a whole number > 0, got {value!r}. Take the config.json the checkpoint came with."
        )
    return value


def optional(config: Mapping[str, Any], key: str, where: str, *, default: int) -> int:
    """As required, or the family's default where config leaves it out or says null."""
    return default if config.get(key) is None else required(config, key, where)


@dataclass(frozen=True)
class NamedShape:
    """A published shape: the size its authors call it by, and what it is."""

    nominal: str
    shape: Shape


def llama_shape(layers: int, hidden: int, intermediate: int, heads: int) -> Shape:
    """A LLaMA-1/2 shape: vocabulary 32000, heads of 128, no grouped queries, separate output head."""
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

TABLE_COLUMNS = (
    "name",
    "nominal",
    "layers",
    "hidden",
    "intermediate",
    "heads",
    "kv",
    "head_dim",
    "true parameters",
    "without embeddings",
    "bf16 GiB",
    "KV KiB/token",
)
TABLE_NOTES = """\
nominal is the published name; the true count is what the checkpoint holds (a tied head once), norms included.
without embeddings leaves out the embedding and the output head. KV is in bfloat16, for one sequence.
wide-829m is five layers of Llama-3.2-1B: its name counts the tied output head a second time (829.4M).
"""


def shapes_table() -> str:
    """What `widedraft shapes` prints: every named shape, its published name beside its true size."""
    rows = [TABLE_COLUMNS, *(table_row(name, named) for name, named in NAMED_SHAPES.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(TABLE_COLUMNS))]
    lines = ["  ".join(align(cell, widths[i], left=i == 0) for i, cell in enumerate(row)).rstrip() for row in rows]
    return "\n".join(lines) + "\n\n" + TABLE_NOTES


def table_row(name: str, named: NamedShape) -> tuple[str, ...]:
    """One line of the table, as text."""
    shape = named.shape
    return (
        name,
        named.nominal,
        str(shape.layers),
        str(shape.hidden),
        str(shape.intermediate),
        str(shape.heads),
        str(shape.kv_heads),
        str(shape.head_dim),
        millions(shape.parameters()),
        millions(shape.parameters_without_embeddings()),
        f"{shape.weight_bytes('bfloat16') / 2**30:.2f}",
        f"{shape.kv_bytes_per_token('bfloat16') / 2**10:g}",
    )


def align(cell: str, width: int, *, left: bool) -> str:
    """Pad a cell."""
    return cell.ljust(width) if left else cell.rjust(width)


def millions(count: int) -> str:
    """1274089472 -> "1274.1M"."""
    return f"{count / 1e6:.1f}M"
