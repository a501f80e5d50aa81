"""The kinds of GGUF file that are written, and the number type of each tensor in them. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from architectures.gguf_export.names import GgufKind

F32, F16, Q8_0, Q4_0 = (GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0", "Q4_0"))
MATRICES: Mapping[str, GGMLQuantizationType] = {"f16": F16, "q8_0": Q8_0, "q4_0": Q4_0}
FILE_TYPES: Mapping[str, LlamaFileType] = {
    "f16": LlamaFileType.MOSTLY_F16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
# Its errors go straight into the choice of a token: llama.cpp's quantiser keeps it wider too (as Q6_K, which the gguf
# package cannot write).
HEAD_OF: Mapping[str, GGMLQuantizationType] = {**MATRICES, "q4_0": Q8_0}


@dataclass(frozen=True)
class Stored:
    """How a tensor lies in the file."""

    size: tuple[int, ...]
    type: GGMLQuantizationType

    @property
    def num_bytes(self) -> int:
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        return prod(self.size) // block_size * block_bytes


def stored_tensors(sizes: Mapping[str, tuple[int, ...]], kind: GgufKind) -> dict[str, Stored]:
    """How each tensor of a file of a kind is stored.

    Vectors stay in F32, as llama.cpp wants them. A matrix whose rows are no whole blocks is F16.

    Args:
        sizes: Of every tensor, under its GGUF name.
        kind: Of the file.
    """
    head = "output.weight" if "output.weight" in sizes else "token_embd.weight"
    return {name: Stored(size, number_type(size, kind, is_head=name == head)) for name, size in sizes.items()}


def number_type(size: tuple[int, ...], kind: GgufKind, *, is_head: bool) -> GGMLQuantizationType:
    """The number type of one tensor."""
    if len(size) == 1:
        return F32
    wanted = (HEAD_OF if is_head else MATRICES)[kind]
    return F16 if size[-1] % GGML_QUANT_SIZES[wanted][0] else wanted


def fallen_back(stored: Mapping[str, Stored], kind: GgufKind) -> list[str]:
    """The matrices that are F16 in a file of narrower ones."""
    return [] if kind == "f16" else [name for name, tensor in stored.items() if tensor.type == F16]
