"""Which number types a recipe may name, and which of them this machine computes in. No torch.

A processor without bfloat16 instructions converts every product: on an Intel Xeon with avx512f but not avx512_bf16 a
bfloat16 product takes 4.3 times as long as a float32 one (docs/log.md), where an AMD EPYC with it takes half as long.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # x86, x86, ARM
GPU_DEVICES = ("nvidia[0-9]*", "kfd", "accel*")  # in /dev

Dtype = Literal["float32", "bfloat16", "float16"]
Precision = Literal["amp_bf16", "fp32"]


@cache
def has_bfloat16(devices: Path = Path("/dev"), cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine has a GPU, or a processor with instructions for bfloat16.

    Args:
        devices: Where the system lists devices.
        cpuinfo: Where it lists what its processors can do.
    """
    if any(next(devices.glob(pattern), None) for pattern in GPU_DEVICES):
        return True
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return any(CPU_FLAGS & set(line.split()) for line in lines if line.startswith(("flags", "Features")))


def dtype_here(value: Any) -> Any:
    """For "auto" bfloat16 where this machine computes in it, else float32; anything else as it is."""
    return value if value != "auto" else "bfloat16" if has_bfloat16() else "float32"


def precision_here(value: Any) -> Any:
    """For "auto" amp_bf16 where this machine computes in bfloat16, else fp32; anything else as it is."""
    return value if value != "auto" else "amp_bf16" if has_bfloat16() else "fp32"


DtypeOrAuto = Annotated[Dtype, BeforeValidator(dtype_here, json_schema_input_type=Dtype | Literal["auto"])]
PrecisionOrAuto = Annotated[
    Precision, BeforeValidator(precision_here, json_schema_input_type=Precision | Literal["auto"])
]
