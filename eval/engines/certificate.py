"""Flags of `widedraft certify`, and types of certificate.json: an engine's run, its counters, and the laws checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, TypeAdapter, model_validator

from architectures.compatibility import EngineName, TensorParallel
from architectures.errors import UserError
from architectures.files import read_typed, write_text
from architectures.settings import (
    MOST,
    Dtype,
    Flag,
    MaxScoredTokens,
    NumSpeculativeTokens,
    Revision,
    Section,
    Seed,
    Target,
    flag_of,
)
from eval.tasks import PromptWords, TemplateKwargs

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


FILES = {"llama.cpp": "`widedraft export --gguf`", "openvino": "`optimum-cli export openvino`"}
PACKAGES = {"vllm": "vLLM", "llama.cpp": "xllamacpp", "openvino": "openvino-genai"}

NEEDS = {"revision": "dry_run", "tensor_parallel": "dry_run", "max_model_len": "as_served"}


class CertifySettings(Section):
    """Flags of `widedraft certify`."""

    draft: Annotated[
        str,
        Field(min_length=1, description="Directory or hub id of a draft, in the form that the engine loads."),
        Flag(metavar="DRAFT", is_word=True),
    ]
    target: Target
    engine: Annotated[EngineName | None, Flag(absent="all, with --dry-run")] = Field(
        default=None, description="Engine to decode with; sglang and tensorrt-llm only with --dry-run."
    )
    dry_run: bool = Field(
        default=False,
        description="Without loading weights, check vocabulary, tokenizer, shape, devices, dtype and length, and print "
        "the serving command; exit code 1 if an engine cannot serve the pair.",
    )
    as_served: bool = Field(
        default=False,
        description="Serve 16 requests at once with the engine's default settings, in two turns, long contexts and at "
        "temperature 1, instead of one prompt at a time; vllm and llama.cpp.",
    )
    max_model_len: Annotated[
        int | None, Field(ge=256, le=MOST), Flag(absent="that of the models; at most 4096 on a CPU")
    ] = Field(default=None, description="Context, prompt and response, that --as-served fills.")
    revision: Revision = "main"
    tensor_parallel: TensorParallel = 1
    prompts: PromptWords = ()
    chat_template_kwargs: Annotated[TemplateKwargs, Flag(metavar="JSON", absent="those of the draft's training")] = (
        Field(default="{}", validate_default=True)
    )
    num_prompts: Annotated[int, Field(ge=24, le=MOST, description="Prompts.")] = 24
    max_new_tokens: MaxScoredTokens = 64
    num_speculative_tokens: NumSpeculativeTokens = 3
    dtype: Annotated[Dtype, Field(description="Dtype of target and draft.")] = "float32"
    python: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="Python executable of the environment with vLLM, xllamacpp or openvino-genai."
    )
    target_file: Annotated[Path | None, Flag(metavar="PATH")] = Field(
        default=None, description="The target for llama.cpp (a GGUF file) or OpenVINO (a directory)."
    )
    draft_file: Annotated[Path | None, Flag(metavar="PATH")] = Field(
        default=None, description="The draft for that engine."
    )
    num_threads: Annotated[
        int | None,
        Field(ge=1, le=1024, description="CPU threads; default: OMP_NUM_THREADS, or all available cores."),
    ] = None
    out: Annotated[Path | None, Flag(metavar="DIR", absent="the draft's directory")] = Field(
        default=None, description="Output directory of certificate.json."
    )
    seed: Seed = Field(default=17, description="Seed of the order of runs, and of sampled responses.")

    @model_validator(mode="after")
    def _consistent(self) -> "CertifySettings":
        of_dry_run = {"draft", "target", "engine", "dry_run", "num_speculative_tokens", "revision", "tensor_parallel"}
        for name in self.model_fields_set:
            if self.dry_run and name not in of_dry_run:
                raise UserError(f"{flag_of(name)} has no effect with --dry-run. Remove it.")
            if name in NEEDS and not getattr(self, NEEDS[name]):
                raise UserError(f"{flag_of(name)} needs {flag_of(NEEDS[name])}. Add it, or remove {flag_of(name)}.")
        if self.dry_run:
            return self
        engines = get_args(ServedEngine if self.as_served else Engine)
        if self.engine not in engines:
            raise UserError(f"--engine must be {' or '.join(engines)}, got {self.engine}; or add --dry-run.")
        if self.engine in PACKAGES and self.python is None:
            raise UserError(f"--python must be the Python executable of an environment with {PACKAGES[self.engine]}.")
        for flag, path in (("--target-file", self.target_file), ("--draft-file", self.draft_file)):
            if self.engine not in FILES and path is not None:
                raise UserError(f"{flag} is for {' and '.join(FILES)}, not {self.engine}. Remove it.")
            if self.engine in FILES and (path is None or not path.exists()):
                raise UserError(f"{flag}: {path} does not exist. {FILES[str(self.engine)]} writes it.")
        return self


class Strict:
    """A part of certificate.json: pydantic rejects keys that it does not have."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Counted(Strict):
    """An engine's own counters.

    Attributes:
        by_position: Accepted tokens by position in a step; None if the engine does not report them.
    """

    steps: Count
    proposed: Count
    accepted: Count
    by_position: tuple[Count, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class TextPair(Strict):
    """One prompt, decoded by an engine without and with a draft.

    Attributes:
        prompt_ids: As read by the engine, with its own chat template.
    """

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
class RunFacts(Strict):
    """An engine, and how it ran a pair.

    Attributes:
        dtype: Of both models, or the quantisation.
    """

    engine: Engine
    version: str
    command: str
    dtype: str
    num_speculative_tokens: Annotated[int, Field(ge=1)]
    max_new_tokens: Annotated[int, Field(ge=2)]


@dataclass(frozen=True, kw_only=True)
class EngineRun(RunFacts):
    """An engine's run on a pair.

    Attributes:
        own: Counters with the target as its own draft.
    """

    own: Counted
    texts: Annotated[tuple[TextRun, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Finding(Strict):
    """A law, with True if it holds."""

    law: str
    holds: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Judged(Strict):
    """The laws checked of a certificate, where and when."""

    findings: tuple[Finding, ...]
    hardware: str
    created: str

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(finding.law for finding in self.findings if not finding.holds)

    @property
    def holds(self) -> bool:
        return not self.failed


@dataclass(frozen=True, kw_only=True)
class Speed(Strict):
    """Tokens per second without and with the draft, in interleaved runs, and the speedup."""

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

    run: EngineRun
    replay: Counted
    speed: Speed


@dataclass(frozen=True, kw_only=True)
class ServedPart(Strict):
    """Requests served together, without and with a draft (eval.engines.as_served).

    Attributes:
        counted: Counters of the engine with the draft.
        replay: Exact counts on the texts with the draft.
    """

    name: PartName
    texts: tuple[TextPair, ...]
    counted: Counted
    replay: Counted


@dataclass(frozen=True, kw_only=True)
class ServedCertificate(Judged, RunFacts):
    """Entry of certificate.json for one engine with its default settings, under load.

    Attributes:
        exercised: What was used, in words; not_exercised: what was not.
    """

    engine: ServedEngine
    exercised: tuple[str, ...]
    not_exercised: tuple[str, ...]
    parts: tuple[ServedPart, ...]


@dataclass(frozen=True, kw_only=True)
class CertificateFile(Strict):
    """certificate.json: certificates per engine, and fingerprints of the models."""

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
