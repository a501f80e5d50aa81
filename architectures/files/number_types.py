"""Which number types a recipe may name, and which of them this machine computes in. No torch.

A processor without bfloat16 instructions converts every product: on an Intel Xeon with avx512f but not avx512_bf16 a
bfloat16 product takes 4.3 times as long as a float32 one (docs/log.md), where an AMD EPYC with it takes half as long.
An Intel Xeon with avx512_bf16 and no amx_bf16 lies between: what reads weights once for a few rows, as decoding one
text does, is no slower in bfloat16; what multiplies many rows, as training and a batch of answers do, takes 1.5 to 1.8
times as long (docs/log.md, 2026-11-24).
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # x86, x86, ARM
FEW_ROWS_ALONE = "avx512_bf16"  # where it is all that such a processor has, many rows are multiplied faster in float32
SUCH_A_PROCESSOR = "GenuineIntel"
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
    return has_gpu(devices) or bool(bfloat16_flags(cpuinfo))


@cache
def many_rows_gain(devices: Path = Path("/dev"), cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether products of many rows are faster in bfloat16 than in float32; arguments as for has_bfloat16."""
    return has_gpu(devices) or bool(bfloat16_flags(cpuinfo) and not few_rows_gain_alone(cpuinfo))


@cache
def few_rows_gain_alone(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is one of those that multiply few rows no slower in bfloat16, and many slower."""
    return bfloat16_flags(cpuinfo) == {FEW_ROWS_ALONE} and SUCH_A_PROCESSOR in words_of(cpuinfo, ("vendor_id",))


def has_gpu(devices: Path) -> bool:
    """Whether there is an accelerator, all of which compute in bfloat16."""
    return any(next(devices.glob(pattern), None) for pattern in GPU_DEVICES)


def bfloat16_flags(cpuinfo: Path) -> set[str]:
    """What the processor has of CPU_FLAGS."""
    return CPU_FLAGS & words_of(cpuinfo, ("flags", "Features"))


def words_of(cpuinfo: Path, starts: tuple[str, ...]) -> set[str]:
    """Every word of the lines that begin so."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return {word for line in lines if line.startswith(starts) for word in line.split()}


def dtype_here(value: Any) -> Any:
    """For "auto" bfloat16 where this machine computes in it, else float32; anything else as it is."""
    return value if value != "auto" else "bfloat16" if has_bfloat16() else "float32"


def batch_dtype_here(value: Any) -> Any:
    """For "auto" bfloat16 where many rows are multiplied faster in it, else float32; anything else as it is."""
    return value if value != "auto" else "bfloat16" if many_rows_gain() else "float32"


def precision_here(value: Any) -> Any:
    """For "auto" amp_bf16 where many rows are multiplied faster in bfloat16, else fp32; anything else as it is."""
    return value if value != "auto" else "amp_bf16" if many_rows_gain() else "fp32"


DtypeOrAuto = Annotated[Dtype, BeforeValidator(dtype_here, json_schema_input_type=Dtype | Literal["auto"])]
BatchDtypeOrAuto = Annotated[Dtype, BeforeValidator(batch_dtype_here, json_schema_input_type=Dtype | Literal["auto"])]
PrecisionOrAuto = Annotated[
    Precision, BeforeValidator(precision_here, json_schema_input_type=Precision | Literal["auto"])
]
