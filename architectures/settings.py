"""Settings of commands and recipe sections: base class, common fields, dtypes, and command-line flags made from them.

A CPU without bfloat16 instructions converts every product: on an Intel Xeon with avx512f but not avx512_bf16 a
bfloat16 product takes 4.3 times as long as a float32 one, while on an AMD EPYC with it, it takes half as long. An
Intel Xeon with avx512_bf16 but no amx_bf16 lies between: work that reads weights once for a few rows, such as decoding
one sequence, is no slower in bfloat16; work that multiplies many rows, such as training or batched generation, takes
1.5 to 1.8 times as long (docs/benchmarks.md).

Why not a library: pydantic-settings 2.16 adds 0.2 s to every start, accepts several numbers only as `--n 1 --n 2`, and
reports a wrong one with a traceback and exit code 1; tyro 1.0 prints pydantic's own messages in a frame.

A section picks a field type and sets its own default (`max_new_tokens: MaxNewTokens = 64`).
"""

import argparse
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import TaggedUnionSchema

from architectures.errors import UserError


class Section(BaseModel):
    """Group of settings: rejects unknown keys, strict types (1 is accepted as 1.0), finite numbers, immutable."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        serialize_by_alias=True,  # for keys that are Python keywords, such as `from`
    )


CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # x86, x86, ARM
FEW_ROWS_ALONE = "avx512_bf16"  # a CPU with no other flag multiplies many rows faster in float32
SUCH_A_PROCESSOR = "GenuineIntel"
GPU_DEVICES = ("nvidia[0-9]*", "kfd", "accel*")  # in /dev

Dtype = Literal["float32", "bfloat16", "float16"]
Precision = Literal["amp_bf16", "fp32"]


@cache
def has_bfloat16(devices: Path = Path("/dev"), cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if this machine has a GPU or a CPU with bfloat16 instructions."""
    return has_gpu(devices) or bool(bfloat16_flags(cpuinfo))


@cache
def many_rows_gain(devices: Path = Path("/dev"), cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if products of many rows are faster in bfloat16 than in float32."""
    return has_gpu(devices) or bool(bfloat16_flags(cpuinfo) and not few_rows_gain_only(cpuinfo))


@cache
def few_rows_gain_only(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True if the CPU multiplies few rows no slower in bfloat16, but many rows slower."""
    return bfloat16_flags(cpuinfo) == {FEW_ROWS_ALONE} and SUCH_A_PROCESSOR in words_of(cpuinfo, ("vendor_id",))


def has_gpu(devices: Path) -> bool:
    """Return True if there is an accelerator; all of them compute in bfloat16."""
    return any(next(devices.glob(pattern), None) for pattern in GPU_DEVICES)


def bfloat16_flags(cpuinfo: Path) -> set[str]:
    return CPU_FLAGS & words_of(cpuinfo, ("flags", "Features"))


def words_of(cpuinfo: Path, starts: tuple[str, ...]) -> set[str]:
    """Return every word of the lines that start with one of `starts`."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return {word for line in lines if line.startswith(starts) for word in line.split()}


def dtype_here(value: Any) -> Any:
    """Replace "auto" with bfloat16 if this machine computes in it, else float32; keep other values."""
    return value if value != "auto" else "bfloat16" if has_bfloat16() else "float32"


def batch_dtype_here(value: Any) -> Any:
    """Replace "auto" with bfloat16 if it multiplies many rows faster, else float32; keep other values."""
    return value if value != "auto" else "bfloat16" if many_rows_gain() else "float32"


def precision_here(value: Any) -> Any:
    """Replace "auto" with amp_bf16 if bfloat16 multiplies many rows faster, else fp32; keep other values."""
    return value if value != "auto" else "amp_bf16" if many_rows_gain() else "fp32"


DtypeOrAuto = Annotated[Dtype, BeforeValidator(dtype_here, json_schema_input_type=Dtype | Literal["auto"])]
BatchDtypeOrAuto = Annotated[Dtype, BeforeValidator(batch_dtype_here, json_schema_input_type=Dtype | Literal["auto"])]
PrecisionOrAuto = Annotated[
    Precision, BeforeValidator(precision_here, json_schema_input_type=Precision | Literal["auto"])
]


Placement = Literal["whole", "spread", "layers"]


@dataclass(frozen=True)
class Holding:
    """Placement, memory limit and bit width of the target's weights.

    Attributes:
        placement: whole: on one device. spread: over GPUs, CPU memory and disk of this machine. layers: on disk, each
            layer read when it runs.
        device_memory_gib: Limit on each device that computes; None uses the free memory.
        bits: 8 or 4 per weight of the linear layers; None keeps their dtype.
    """

    placement: Placement = "whole"
    device_memory_gib: float | None = None
    bits: int | None = None

    @property
    def claimed(self) -> dict[str, int]:
        """Settings that change the target's outputs, for manifests and scorecards; empty if there are none."""
        return {} if self.bits is None else {"bits": self.bits}

    @property
    def mistake(self) -> str | None:
        """Why the values are inconsistent, with a hint; None if they are valid."""
        if self.placement == "whole" and self.device_memory_gib is not None:
            return f"device_memory_gib is {self.device_memory_gib:g}, but placement: whole has no limit. {CHOOSE}"
        if self.placement != "whole" and self.bits is not None:
            return (
                f"bits is {self.bits} with placement: {self.placement}, but packed weights are on one device. Remove "
                "one of the two."
            )
        return None


CHOOSE = "Choose spread or layers, or remove the limit."
WHOLE = Holding()


def command_of(stage: str, *flags: str) -> str:
    """Return a command on a recipe, in backticks."""
    return f"`{shlex.join(['widedraft', stage, 'RECIPE', *flags])}`"


Schema: TypeAlias = Mapping[str, Any]

NEAR = 0.7  # closeness from which a suggestion helps more than it misleads; `methd` and `method` have 0.91
MAX_CHARS = 80  # of a value in a message


class _AnyOf(GenerateJsonSchema):
    """JSON Schema generator that writes a tagged union as anyOf, since the tag may be a ${...}."""

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}


@cache
def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a section; callers must not change the cached dict."""
    return model.model_json_schema(schema_generator=_AnyOf)


def options(node: Schema, schema: Schema) -> list[Schema]:
    """Return the alternatives of a node as a flat list, references resolved."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return [option for each in node["anyOf"] for option in options(each, schema)] if "anyOf" in node else [node]


def known_keys(schema: Schema) -> dict[str, Schema]:
    """Return the schema of every dotted key, a section before its keys; [] denotes any list item."""
    known: dict[str, Schema] = {}
    for key, node in _below("", schema, schema):
        known.setdefault(key, node)
    return known


def _below(prefix: str, node: Schema, schema: Schema) -> Iterator[tuple[str, Schema]]:
    for option in options(node, schema):
        for name, child in option.get("properties", {}).items():
            key = f"{prefix}.{name}".removeprefix(".")
            yield key, child
            yield from _below(key, child, schema)
        for child in [*option.get("prefixItems", [])[:1], *([option["items"]] if "items" in option else [])]:
            yield from _below(f"{prefix}[]", child, schema)


def nearest_key(path: tuple[str | int, ...], known: Iterable[str]) -> str | None:
    """Return the known key closest to a path, as a whole or by its last part; None if none is close."""
    name = ".".join(str(step) for step in path if isinstance(step, str))

    def closeness(key: str) -> float:
        plain = key.replace("[]", "")
        whole = SequenceMatcher(None, name, plain).ratio()
        last = SequenceMatcher(None, name.rsplit(".", 1)[-1], plain.rsplit(".", 1)[-1]).ratio()
        return max(whole, 0.95 * last) if last >= 0.5 else 0.0  # two keys of one section share most of their letters

    best = max(known, key=closeness, default="")
    return best if best and closeness(best) >= NEAR else None


def short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}..."


AnySection = TypeVar("AnySection", bound=Section)

METAVARS = {"integer": "N", "number": "X", "string": "TEXT"}


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Command-line form of a setting, beyond its type.

    Attributes:
        metavar: Placeholder of the value in the help.
        is_word: Positional; several values take all remaining words.
        is_repeated: The flag takes one value and may be repeated; otherwise one flag takes all values.
        absent: Text for the default in the help if the default is no value.
        bare: Value of the flag if it is given without one.
    """

    metavar: str | None = None
    is_word: bool = False
    is_repeated: bool = False
    absent: str | None = None
    bare: str | None = None


def read_settings(parser: argparse.ArgumentParser, model: type[AnySection], words: Sequence[str]) -> AnySection:
    """Parse command-line words into a section; argparse exits on flags that are not in the section."""
    add_flags(parser, model)
    given = {name: value for name, value in vars(parser.parse_intermixed_args(words)).items() if value is not None}
    try:
        return model.model_validate(given, strict=False)
    except ValidationError as error:
        raise UserError("\n".join(sentences(error, given, model))) from error


def add_flags(parser: argparse.ArgumentParser, model: type[Section]) -> None:
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        node = schema["properties"][name]
        options = {**spelling(field, node, schema), "help": help_of(field, options_of(node, schema))}
        if given_flag(field).is_word:
            parser.add_argument(name, **options)
        else:
            parser.add_argument(flag_of(name), default=None, required=field.is_required(), **options)


def spelling(field: FieldInfo, node: Schema, schema: Schema) -> dict[str, Any]:
    """Return the argparse options for the values of a field; an optional list may be empty."""
    flag, [own, *others] = given_flag(field), options_of(node, schema)
    if own.get("type") == "boolean":
        return {"action": "store_true"}
    if own.get("type") != "array":
        is_free = flag.is_word and not field.is_required()
        optional = {"nargs": "?", "const": flag.bare} if flag.bare is not None else {"nargs": "?"} if is_free else {}
        return {"metavar": flag.metavar or metavar([own, *others]), **optional}
    shape = {"metavar": flag.metavar or metavar(options_of(own["items"], schema))}
    if flag.is_word:
        return {**shape, "nargs": "+" if field.is_required() else "*"}
    several = {"action": "extend", "nargs": "*" if "anyOf" in node else "+"}
    return {**shape, **({"action": "append"} if flag.is_repeated else several)}


def options_of(node: Schema, schema: Schema) -> list[Schema]:
    return [option for option in options(node, schema) if option.get("type") != "null"]


def metavar(options: Sequence[Schema]) -> str:
    choices = [
        str(each) for option in options for each in option.get("enum", [option["const"]] if "const" in option else [])
    ]
    return f"{{{','.join(choices)}}}" if choices else METAVARS[options[0]["type"]]


def help_of(field: FieldInfo, options: Sequence[Schema]) -> str:
    flag, text = given_flag(field), str(field.description or options[0].get("description", "")).removesuffix(".")
    default, is_nothing = flag.absent, field.default is None or field.default is False or field.default == ()
    if default is None and not field.is_required() and not is_nothing:
        values = field.default if isinstance(field.default, tuple) else [field.default]
        default = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    often = "; repeatable" if flag.is_repeated else ""
    return f"{text}{often}{'' if default is None else f' (default: {default})'}".replace("%", "%%")


def given_flag(field: FieldInfo) -> Flag:
    return next((each for each in reversed(field.metadata) if isinstance(each, Flag)), Flag())


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def sentences(error: ValidationError, given: Mapping[str, Any], model: type[Section]) -> list[str]:
    """Format each error once, with its flag; skips the error of a list whose values have their own."""
    mistakes = error.errors(include_url=False)
    inner = {details["loc"][:-1] for details in mistakes if details["loc"]}
    return list(
        dict.fromkeys(
            sentence(mistake, given, model) for mistake in mistakes if not mistake["loc"] or mistake["loc"] not in inner
        )
    )


def sentence(details: ErrorDetails, given: Mapping[str, Any], model: type[Section]) -> str:
    location, problem = details["loc"], details["msg"].removeprefix("Value error, ")
    if not location:
        return problem
    flag = given_flag(model.model_fields[str(location[0])])
    name = str(flag.metavar) if flag.is_word else flag_of(str(location[0]))
    if details["type"] == "value_error":
        return f"{name} {problem}"
    value = given.get(str(location[0]))
    if isinstance(value, list) and len(location) > 1 and isinstance(location[1], int):
        value = value[location[1]]
    return f"{name}: {problem}, got {short(str(value)) or repr(value)}."


MOST = 10**6  # upper limit of counts and samples, beyond any machine
Value = TypeVar("Value")


def no_folder(path: Path | None) -> Path | None:
    if path is not None and path.is_dir():
        raise ValueError(f"{path}: is a directory. Pass a file in it.")
    return path


def each_once(values: tuple[Value, ...]) -> tuple[Value, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"must not repeat values, got {list(values)}.")
    return values


def packed_bits(bits: int) -> int:
    if bits not in (8, 4):
        raise ValueError(f"must be 8 or 4, got {bits}.")
    return bits


Once = AfterValidator(each_once)
Several = Field(strict=False, min_length=1)  # recipes write tuples as lists; at least one value

Target = Annotated[str, Field(min_length=1, description="Directory or hub id of the target."), Flag(metavar="A")]
Draft = Annotated[str, Field(min_length=1, description="Directory or hub id of the draft."), Flag(metavar="B")]
Drafts = Annotated[
    tuple[str, ...], Field(strict=False, description="Directories or hub ids of drafts."), Once, Flag(metavar="B")
]
Revision = Annotated[str, Field(description="Branch, tag or commit of a hub target."), Flag(metavar="R")]
TargetPlacement = Annotated[
    Placement,
    Field(
        description="whole: on one device; spread: over the GPUs, host memory and disk of this machine; layers: on "
        "disk, read layer by layer."
    ),
]
DeviceMemoryGib = Annotated[
    float | None,
    Field(
        gt=0,
        le=MOST,
        description="GiB per GPU (host memory without one) for a target with placement spread or layers; null: all "
        "free memory.",
    ),
]
TargetBits = Annotated[
    Annotated[int, AfterValidator(packed_bits), WithJsonSchema({"type": "integer", "enum": [8, 4]})] | None,
    Field(
        description="Quantize the target's linear layers to 8 or 4 bits (bitsandbytes). This changes the model; "
        "manifests and scorecards record it."
    ),
]

NumSpeculativeTokens = Annotated[int, Field(ge=1, le=MOST, description="Draft tokens per verification step.")]
SpeculativeTokenCounts = Annotated[
    tuple[NumSpeculativeTokens, ...], Several, Field(description="Numbers of draft tokens per verification step."), Once
]
DraftPMin = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Draft probability below which a step stops (llama.cpp's --spec-draft-p-min); 0: never.",
    ),
]
Temperature = Annotated[float, Field(ge=0, le=MOST, description="Sampling temperature; 0 is greedy.")]
TopP = Annotated[float, Field(gt=0, le=1, description="Nucleus sampling; 1: all tokens.")]
TopK = Annotated[int | None, Field(ge=1, le=MOST, description="Sample from the k most likely; none: all tokens.")]
MinP = Annotated[
    float,
    Field(ge=0, lt=1, description="Minimum probability of a token relative to the most likely one."),
]
RepetitionPenalty = Annotated[
    float, Field(gt=0, le=MOST, description="Repetition penalty, as in transformers; 1 disables it.")
]
Temperatures = Annotated[
    tuple[Temperature, ...], Several, Field(description="Sampling temperatures; 0 is greedy."), Once
]
BatchSize = Annotated[int, Field(ge=1, le=MOST, description="Sequences per batch.")]
BatchSizes = Annotated[tuple[BatchSize, ...], Field(strict=False, description="Batch sizes."), Once]
Context = Annotated[int, Field(ge=1, le=MOST, description="Context length of a step, in tokens.")]
Contexts = Annotated[tuple[Context, ...], Field(strict=False, description="Context lengths of steps, in tokens."), Once]

NumPrompts = Annotated[int, Field(ge=1, le=MOST, description="Maximum number of prompts.")]
MaxNewTokens = Annotated[int, Field(ge=1, le=MOST, description="Maximum tokens of a response.")]
# A single token has no verification step.
MaxScoredTokens = Annotated[int, Field(ge=2, le=MOST, description="Maximum tokens of a response.")]
Repeats = Annotated[int, Field(ge=1, le=MOST, description="Repetitions.")]
Seed = Annotated[int, Field(ge=0, lt=2**32, description="Random seed.")]
PairDtype = Annotated[
    DtypeOrAuto,
    Field(
        description="Dtype of target and draft; auto is bfloat16 on a GPU and on CPUs that compute in it, else float32."
    ),
]

AUTO: Any = "auto"  # validation replaces it with this machine's dtype

# Steps run by transformers eagerly, or as CUDA graphs.
How = Literal["eager", "captured"]
Capture = Annotated[bool, Field(description="Decode with CUDA graphs; needs a GPU.")]
OutFile = Annotated[
    Path | None, Field(description="Write all results as JSON."), AfterValidator(no_folder), Flag(metavar="FILE")
]
