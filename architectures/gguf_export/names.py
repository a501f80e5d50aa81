"""The kinds of GGUF file that are written, as the command line names them. No torch."""

from typing import Literal

GgufKind = Literal["f16", "q8_0", "q4_0"]
