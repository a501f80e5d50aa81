"""Types of certificate.json: an engine's run on a pair, its counters, and the laws checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, TypeAdapter

from architectures.files import read_typed, write_text

Engine = Literal["transformers", "vllm", "llama.cpp", "openvino"]
ServedEngine = Literal["vllm", "llama.cpp"]  # with --as-served
PartName = Literal["short", "turns", "mixed", "middle", "long", "sampled"]
FILE_NAME = "certificate.json"
Schema = Literal["widedraft.certificate/2"]
[SCHEMA] = get_args(Schema)
HINT = "Run widedraft certify again."

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """An engine's own counters.

    Attributes:
        by_position: Accepted tokens by position in a step; None if the engine does not report them.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    steps: Count
    proposed: Count
    accepted: Count
    by_position: tuple[Count, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class TextPair:
    """One prompt, decoded by an engine without and with a draft.

    Attributes:
        prompt_ids: As read by the engine, with its own chat template.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    prompt_ids: tuple[int, ...]
    plain_ids: tuple[int, ...]
    drafted_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TextRun(TextPair):
    """The same with seconds, and the counters of the run with the draft."""

    plain_s: Seconds
    drafted_s: Seconds
    counted: Counted


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """An engine's run on a pair.

    Attributes:
        dtype: Of both models, or the quantisation.
        own: Counters with the target as its own draft.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    engine: Engine
    version: str
    command: str
    dtype: str
    num_speculative_tokens: Annotated[int, Field(ge=1)]
    max_new_tokens: Annotated[int, Field(ge=2)]
    own: Counted
    texts: Annotated[tuple[TextRun, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A law, with True if it holds."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    law: str
    holds: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The laws checked of a certificate."""

    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(finding.law for finding in self.findings if not finding.holds)

    @property
    def holds(self) -> bool:
        return not self.failed


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tokens per second without and with the draft, in interleaved runs, and the speedup."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    plain_tokens_per_s: Finite
    drafted_tokens_per_s: Finite
    value: Finite
    interval: tuple[Finite, Finite] | None


@dataclass(frozen=True, kw_only=True)
class Certificate(Judged):
    """Entry of certificate.json for one engine.

    Attributes:
        replay: Exact counts on the same texts.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: EngineRun
    replay: Counted
    speed: Speed
    hardware: str
    created: str


@dataclass(frozen=True, kw_only=True)
class ServedPart:
    """Requests served together, without and with a draft (eval.engines.as_served).

    Attributes:
        counted: Counters of the engine with the draft.
        replay: Exact counts on the texts with the draft.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: PartName
    texts: tuple[TextPair, ...]
    counted: Counted
    replay: Counted


@dataclass(frozen=True, kw_only=True)
class ServedCertificate(Judged):
    """Entry of certificate.json for one engine with its default settings, under load.

    Attributes:
        exercised: What was used, in words; not_exercised: what was not.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    engine: ServedEngine
    version: str
    command: str
    dtype: str
    num_speculative_tokens: Annotated[int, Field(ge=1)]
    max_new_tokens: Annotated[int, Field(ge=2)]
    exercised: tuple[str, ...]
    not_exercised: tuple[str, ...]
    parts: tuple[ServedPart, ...]
    hardware: str
    created: str


@dataclass(frozen=True, kw_only=True)
class CertificateFile:
    """certificate.json: certificates per engine, and fingerprints of the models."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    schema: Schema
    target: str
    draft: str
    engines: dict[Engine, Certificate]
    as_served: dict[ServedEngine, ServedCertificate] = field(default_factory=dict)


FORM = TypeAdapter(CertificateFile)


def read_certificates(folder: Path) -> CertificateFile:
    """Read the file in a directory; UserError if there is none, or it is damaged."""
    return read_typed(folder / FILE_NAME, FORM, HINT)


def write_certificate(folder: Path, certificate: Certificate | ServedCertificate, *, target: str, draft: str) -> Path:
    """Add a certificate to the file in a directory, replacing an earlier one of the same kind and engine.

    Certificates of another target or draft are dropped: they describe models that are no longer there.

    Args:
        target: fingerprint_checkpoint of the target.
        draft: fingerprint_checkpoint of the draft.
    """
    path = folder / FILE_NAME
    written = CertificateFile(schema=SCHEMA, target=target, draft=draft, engines={})
    if path.is_file():
        earlier = read_certificates(folder)
        written = earlier if (earlier.target, earlier.draft) == (target, draft) else written
    if isinstance(certificate, Certificate):
        written.engines[certificate.run.engine] = certificate
    else:
        written.as_served[certificate.engine] = certificate
    write_text(FORM.dump_json(written, indent=2).decode() + "\n", path)
    return path


def pooled(counts: Sequence[Counted]) -> Counted:
    positions = [text.by_position for text in counts if text.by_position is not None]
    return Counted(
        steps=sum(text.steps for text in counts),
        proposed=sum(text.proposed for text in counts),
        accepted=sum(text.accepted for text in counts),
        by_position=tuple(map(sum, zip(*positions, strict=True))) if len(positions) == len(counts) else None,
    )
