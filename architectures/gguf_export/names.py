"""The kinds of GGUF file that are written, as the command line names them, and what the files are called. No torch."""

from typing import Literal

GgufKind = Literal["f16", "q8_0", "q4_0"]


def file_name(model: str, kind: GgufKind) -> str:
    """Of a model's file: llama.cpp finds the kind in it."""
    return f"{model}-{kind.upper()}.gguf"
