"""What manifest.json holds, and how a damaged one is refused. No torch."""

from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from architectures.files.reading import read_json_object
from architectures.files.typed_file import checked

StageName = Literal[
    "masks", "scores", "prune", "generate", "cache", "distill", "export", "eval", "convert", "import-gguf",
    "export-recorded",
]  # fmt: skip


class Packed(TypedDict, total=False):
    """In how many bits a weight of a target's linear layers was, where that is not as its folder has them."""

    bits: int


class ModelReference(Packed):
    """A model as a recipe asks for it: a folder or hub id, and a branch, tag or commit."""

    path: str
    revision: str


class Source(TypedDict, total=False):
    """What a draft is cut out of, where that is not the target."""

    source: ModelReference


class SplitCounts(TypedDict):
    """Answers to train on, or held out; `sequences` and `split` of given conversations that are learned whole."""

    answers: int
    answer_tokens: int
    prompts: NotRequired[int]
    sequences: NotRequired[int]
    split: NotRequired[int]


class Counts(TypedDict):
    """Rows of prompts, those left out by reason, and what became of the others."""

    prompts: int
    self_written: NotRequired[int]
    duplicates: NotRequired[int]
    too_long: NotRequired[int]
    asked_in_eval: NotRequired[int]
    train: SplitCounts
    eval: NotRequired[SplitCounts]


class AnsweredBy(TypedDict):
    """An engine that wrote answers, which ones, and what the target said of a sample of them.

    `differing` counts answers of the sample that are not the target's own greedy ones, `largest_gap` is in logits where
    one parts from them; `sigmas` is of sampled ones.
    """

    engine: str
    of: str
    answers: int
    checked: int
    differing: int
    largest_gap: float
    sigmas: float


class Hardware(TypedDict):
    """The machine; GPUs are named where torch was loaded."""

    processor: str
    cores: int | None
    memory_gib: float
    accelerators: list[str]


class Provenance(TypedDict):
    """Command, code, versions and machine; null of a package that is absent and of code that git does not track."""

    argv: list[str]
    created: str
    git_commit: str | None
    python: str
    versions: dict[str, str | None]
    hardware: Hardware


class Details(Source, total=False):
    """What single stages add.

    `target` is the fingerprint alone where recorded answers name no more. The entries of `splits` and `files` have the
    form that `format` names, and are read by it.
    """

    recipe: str
    seed: int
    target: ModelReference | str | None
    answers: str
    answered_by: list[AnsweredBy]
    counts: Counts
    metrics: dict[str, float]
    finished: bool
    checkpoint: str | None
    init: str
    dtype: str
    form: str
    draft: str
    file: str
    format: str
    splits: dict[str, Any]
    files: dict[str, Any]
    captured_while: str
    max_seq_len: int


class Manifest(Details):
    """Where an artifact came from; entries beside these, which other versions wrote, are kept.

    `inputs` has a fingerprint for each input. `parts` has what an input is of: keys with their values, files with their
    fingerprints.
    """

    stage: StageName
    inputs: dict[str, str]
    parts: NotRequired[dict[str, dict[str, Any]]]
    provenance: NotRequired[Provenance]


@cache
def form() -> TypeAdapter[Manifest]:
    """Made when it is first asked."""
    return TypeAdapter(Manifest)


def manifest_of(path: Path, remedy: str) -> Manifest:
    """What a manifest.json holds, every value as it was read: stages fingerprint it.

    Raises:
        UserError: If it is no JSON object, lacks a field or has one of another type; the message names it.
    """
    manifest: Any = read_json_object(path, remedy)
    checked(form(), manifest, str(path), remedy)
    return manifest
