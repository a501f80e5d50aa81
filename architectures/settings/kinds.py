"""Settings that several commands and recipe sections have: what each means and its range, declared once. No torch.

A section takes a kind and says its own default (`lookahead: Lookahead = 4`). What holds several values is a plural.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, WithJsonSchema

from architectures.files.number_types import DtypeOrAuto
from architectures.settings.flags import Flag
from architectures.settings.holding import Placement

MOST = 10**6  # of what is counted or sampled: beyond what any machine does
Value = TypeVar("Value")


def no_folder(path: Path | None) -> Path | None:
    """The path, where a file can be written."""
    if path is not None and path.is_dir():
        raise ValueError(f"{path}: is a folder. Name a file in it.")
    return path


def each_once(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values, where none stands there twice."""
    if len(set(values)) < len(values):
        raise ValueError(f"must name each value once, got {list(values)}.")
    return values


def packed_bits(bits: int) -> int:
    """The bits of a weight, where they are so many as bitsandbytes packs."""
    if bits not in (8, 4):
        raise ValueError(f"must be 8 or 4, got {bits}.")
    return bits


Once = AfterValidator(each_once)
Several = Field(strict=False, min_length=1)  # lists stand for tuples in recipes; at least one value

Target = Annotated[
    str, Field(min_length=1, description="Folder or hub id of the model to draft for."), Flag(metavar="A")
]
Draft = Annotated[str, Field(min_length=1, description="Folder or hub id of the draft."), Flag(metavar="B")]
Drafts = Annotated[
    tuple[str, ...], Field(strict=False, description="Folders or hub ids of drafts."), Once, Flag(metavar="B")
]
Revision = Annotated[str, Field(description="Branch, tag or commit of a target on the hub."), Flag(metavar="R")]
TargetPlacement = Annotated[
    Placement,
    Field(
        description="Where the target's weights are: whole on one device; spread over the GPUs, the memory and the "
        "disk of this machine; or, of layers, on the disk, read layer by layer."
    ),
]
DeviceMemoryGib = Annotated[
    float | None,
    Field(
        gt=0,
        le=MOST,
        description="GiB that a target which is not whole may take on each GPU, or of the memory where there is none; "
        "null takes what is free.",
    ),
]
TargetBits = Annotated[
    Annotated[int, AfterValidator(packed_bits), WithJsonSchema({"type": "integer", "enum": [8, 4]})] | None,
    Field(
        description="Pack the target's linear layers into 8 or 4 bits a weight (bitsandbytes): another model, which "
        "manifests and scorecards name; null leaves them as they are."
    ),
]

Lookahead = Annotated[int, Field(ge=1, le=MOST, description="Draft tokens per round.")]
Lookaheads = Annotated[
    tuple[Lookahead, ...], Several, Field(description="Numbers of draft tokens per round, each once."), Once
]
DraftPMin = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Confidence of the draft below which it proposes no more in this step, as llama.cpp's "
        "--spec-draft-p-min; 0 never stops early.",
    ),
]
Temperature = Annotated[float, Field(ge=0, le=MOST, description="Sampling temperature; 0 is greedy.")]
TopP = Annotated[
    float, Field(gt=0, le=1, description="Probability mass of the likeliest tokens that are sampled from; 1 is all.")
]
TopK = Annotated[
    int | None, Field(ge=1, le=MOST, description="Number of the likeliest tokens that are sampled from; none is all.")
]
MinP = Annotated[
    float,
    Field(ge=0, lt=1, description="Least chance of a token that is sampled, as a share of the likeliest one's."),
]
RepetitionPenalty = Annotated[
    float, Field(gt=0, le=MOST, description="Divides the logits of tokens that stand in the text already; 1 is none.")
]
Temperatures = Annotated[
    tuple[Temperature, ...], Several, Field(description="Sampling temperatures, each once; 0 is greedy."), Once
]
BatchSize = Annotated[int, Field(ge=1, le=MOST, description="Rows decoded together.")]
BatchSizes = Annotated[
    tuple[BatchSize, ...], Field(strict=False, description="Rows decoded together, each once."), Once
]
Context = Annotated[int, Field(ge=1, le=MOST, description="Tokens before a step.")]
Contexts = Annotated[tuple[Context, ...], Field(strict=False, description="Tokens before a step, each once."), Once]

NumPrompts = Annotated[int, Field(ge=1, le=MOST, description="Prompts used at most.")]
MaxNewTokens = Annotated[int, Field(ge=1, le=MOST, description="Tokens of a text at most.")]
MaxScoredTokens = Annotated[int, Field(ge=2, le=MOST, description="Tokens of an answer at most.")]  # one has no round
Repeats = Annotated[int, Field(ge=1, le=MOST, description="Repetitions.")]
Seed = Annotated[int, Field(ge=0, lt=2**32, description="Seed of every random choice.")]
NumberType = Annotated[
    DtypeOrAuto,
    Field(
        description="Number type of target and draft; auto is bfloat16 on a GPU and on processors that compute in it, "
        "else float32."
    ),
]

AUTO: Any = "auto"  # validation makes the number type of this machine of it

# Steps run by transformers, or by CUDA graphs of the same.
How = Literal["eager", "captured"]
Capture = Annotated[bool, Field(description="Capture the models' steps in CUDA graphs first; needs a GPU.")]
OutFile = Annotated[
    Path | None, Field(description="Write everything as JSON."), AfterValidator(no_folder), Flag(metavar="FILE")
]
