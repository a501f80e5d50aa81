"""What an engine did with a pair, and certificate.json, which is read and written through one adapter."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, TypeAdapter

from architectures.files import read_typed, write_text

Engine = Literal["transformers", "vllm", "llama.cpp", "openvino"]
FILE_NAME = "certificate.json"
Schema = Literal["widedraft.certificate/1"]
[SCHEMA] = get_args(Schema)
REMEDY = "Make it again: widedraft certify."

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """An engine's own counters.

    Attributes:
        rounds: Draft-then-verify cycles.
        proposed: Draft tokens, kept or not.
        accepted: Kept ones.
        by_position: Kept ones by position in a round; None of an engine that does not tell.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    rounds: Count
    proposed: Count
    accepted: Count
    by_position: tuple[Count, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class TextRun:
    """One prompt, decoded by an engine without and with a draft.

    Attributes:
        prompt_ids: As the engine read it, its own chat template included.
        plain_ids: The text without a draft.
        drafted_ids: With it.
        plain_s: Seconds, the reading of the prompt included.
        drafted_s: The same with the draft.
        counted: What the engine counted meanwhile.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    prompt_ids: tuple[int, ...]
    plain_ids: tuple[int, ...]
    drafted_ids: tuple[int, ...]
    plain_s: Seconds
    drafted_s: Seconds
    counted: Counted


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """Everything an engine did.

    Attributes:
        version: Of the engine.
        command: How it was run, as one would run it again.
        dtype: Number type of both models there, or the quantisation.
        own: Its counters with the target as its own draft.
        texts: One for each prompt.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    engine: Engine
    version: str
    command: str
    dtype: str
    lookahead: Annotated[int, Field(ge=1)]
    max_new_tokens: Annotated[int, Field(ge=2)]
    own: Counted
    texts: Annotated[tuple[TextRun, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One law, and whether it holds."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    law: str
    holds: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast the engine was, in turns: tokens a second of both ways, and how many times as fast with the draft."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    plain_tokens_per_s: Finite
    drafted_tokens_per_s: Finite
    value: Finite
    interval: tuple[Finite, Finite] | None


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What certificate.json holds of one engine.

    Attributes:
        run: What was done and counted.
        replay: Our exact counts on the same texts.
        findings: The laws.
        speed: In this engine.
        hardware: What it ran on.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: EngineRun
    replay: Counted
    findings: tuple[Finding, ...]
    speed: Speed
    hardware: str
    created: str

    @property
    def holds(self) -> bool:
        return all(finding.holds for finding in self.findings)


@dataclass(frozen=True, kw_only=True)
class CertificateFile:
    """The file: one certificate for each engine, and which models they are of."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    schema: Schema
    target: str
    draft: str
    engines: dict[Engine, Certificate]


FORM = TypeAdapter(CertificateFile)


def read_certificates(folder: Path) -> CertificateFile:
    """The file in a folder.

    Raises:
        UserError: If there is none, or it is damaged.
    """
    return read_typed(folder / FILE_NAME, FORM, REMEDY)


def write_certificate(folder: Path, certificate: Certificate, *, target: str, draft: str) -> Path:
    """Put a certificate into the file of a folder, in the place of an earlier one of the same engine.

    Certificates of another target or draft are dropped: they are of what is no longer there.

    Args:
        folder: Where the file is.
        certificate: Of one engine.
        target: fingerprint_checkpoint of the target.
        draft: Of the draft.
    """
    path, engines = folder / FILE_NAME, {}
    if path.is_file():
        earlier = read_certificates(folder)
        engines = earlier.engines if (earlier.target, earlier.draft) == (target, draft) else {}
    written = CertificateFile(
        schema=SCHEMA, target=target, draft=draft, engines={**engines, certificate.run.engine: certificate}
    )
    write_text(FORM.dump_json(written, indent=2).decode() + "\n", path)
    return path


def pooled(counts: Sequence[Counted]) -> Counted:
    """Counters of several texts together."""
    positions = [text.by_position for text in counts if text.by_position is not None]
    return Counted(
        rounds=sum(text.rounds for text in counts),
        proposed=sum(text.proposed for text in counts),
        accepted=sum(text.accepted for text in counts),
        by_position=tuple(map(sum, zip(*positions, strict=True))) if len(positions) == len(counts) else None,
    )
