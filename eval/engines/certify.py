"""`widedraft certify`: a draft in an engine does what it was scored with, or whether it can be served (--dry-run).

The engine decodes without and with the draft; exact replay runs over its texts; findings.py decides. No torch until it
runs.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field, model_validator

from architectures.compatibility import ENGINES, EngineName, Pair, read_model, report
from architectures.errors import UserError
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.settings.flags import Flag, flag_of
from architectures.settings.kinds import MOST, Lookahead, MaxScoredTokens, Revision, Seed, Target
from architectures.shapes.serving import TensorParallel
from eval.engines.certificate import Certificate, Engine, EngineRun, Speed
from eval.tasks import PromptWords

if TYPE_CHECKING:
    from eval.prompts import Prompt

GgufFile = Annotated[Path | None, Flag(metavar="FILE")]
IrFolder = Annotated[Path | None, Flag(metavar="DIR")]
OWN_FORMS = {  # engine: suffix of its options, file in a folder of that form, how it is made
    "llama.cpp": ("gguf", "", "`widedraft export --gguf` writes a draft's"),
    "openvino": (
        "ir", "openvino_model.xml", "`optimum-cli export openvino --weight-format fp32` writes a model's"
    ),
}  # fmt: skip
PACKAGES = {"vllm": "vLLM", "llama.cpp": "xllamacpp", "openvino": "openvino-genai"}

DRY = ("revision", "tensor_parallel")  # options of a dry run only
RESAMPLES, CONFIDENCE = 2000, 0.95


class CertifySettings(Section):
    """Which draft is certified in which engine, and on what."""

    draft: Annotated[
        str,
        Field(min_length=1, description="Folder or hub id of a draft, in the form that the engine loads."),
        Flag(metavar="DRAFT", is_word=True),
    ]
    target: Target
    engine: Annotated[EngineName | None, Flag(absent="all of them, with --dry-run")] = Field(
        default=None, description="Which engine decodes; sglang and tensorrt-llm with --dry-run only."
    )
    dry_run: bool = Field(
        default=False,
        description="Load no weights: check vocabulary, tokenizer, shape, devices, dtype and length, and print the "
        "command that serves the pair; exit code 1 if an engine cannot.",
    )
    revision: Revision = "main"
    tensor_parallel: TensorParallel = 1
    prompts: PromptWords = ()
    num_prompts: Annotated[int, Field(ge=24, le=MOST, description="Prompts.")] = 24
    max_new_tokens: MaxScoredTokens = 64
    lookahead: Lookahead = 3
    dtype: Annotated[Dtype, Field(description="Number type of target and draft.")] = "float32"
    python: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="Of the environment that has vLLM, xllamacpp or openvino-genai."
    )
    target_gguf: GgufFile = Field(default=None, description="What llama.cpp loads of the target.")
    draft_gguf: GgufFile = Field(default=None, description="What llama.cpp loads of the draft.")
    target_ir: IrFolder = Field(default=None, description="What OpenVINO loads of the target.")
    draft_ir: IrFolder = Field(default=None, description="What OpenVINO loads of the draft.")
    num_threads: Annotated[
        int | None,
        Field(ge=1, le=1024, description="CPU threads; by default OMP_NUM_THREADS, or every core it may use."),
    ] = None
    out: Annotated[Path | None, Flag(metavar="DIR", absent="the draft's folder")] = Field(
        default=None, description="Where certificate.json goes."
    )
    seed: Seed = Field(default=17, description="Seed of the order in which both ways of decoding alternate.")

    @model_validator(mode="after")
    def _consistent(self) -> "CertifySettings":
        of_dry_run = {"draft", "target", "engine", "dry_run", "lookahead", *DRY}
        for name in self.model_fields_set:
            if self.dry_run and name not in of_dry_run:
                raise UserError(f"{flag_of(name)} has no effect with --dry-run. Leave it out.")
            if not self.dry_run and name in DRY:
                raise UserError(f"{flag_of(name)} is of --dry-run. Add that, or leave it out.")
        if self.dry_run:
            return self
        if self.engine not in get_args(Engine):
            raise UserError(f"--engine must be {' or '.join(get_args(Engine))}, got {self.engine}; or add --dry-run.")
        if self.engine in PACKAGES and self.python is None:
            raise UserError(f"--python must name the Python of an environment that has {PACKAGES[self.engine]}.")
        engine_files(self)
        return self


def engine_files(settings: CertifySettings) -> tuple[Path, Path] | None:
    """What the engine loads of target and draft, in a form of its own; None of an engine that has none.

    Raises:
        UserError: If one is missing, or another engine's is given.
    """
    found = None
    for engine, (suffix, marker, made_by) in OWN_FORMS.items():
        given = {flag_of(name): getattr(settings, name) for name in (f"target_{suffix}", f"draft_{suffix}")}
        for flag, path in given.items():
            if engine != settings.engine and path is not None:
                raise UserError(f"{flag} is for {engine}, not {settings.engine}. Leave it out.")
            if engine == settings.engine and (path is None or not (path / marker).is_file()):
                kind = f"folder with {marker}" if marker else "file"
                raise UserError(f"{flag}: {path or 'nothing'} is no {kind}. {made_by}.")
        if engine == settings.engine:
            target, draft = given.values()
            found = (target, draft)
    return found


def certify(settings: CertifySettings) -> None:
    """Print every finding and the speed; exit code 1 if a law does not hold."""
    if settings.dry_run:
        engines = ENGINES if settings.engine is None else (settings.engine,)
        draft = read_model(settings.draft)
        lookahead = settings.lookahead
        if "lookahead" not in settings.model_fields_set:
            lookahead = draft.num_assistant_tokens or lookahead
        pair = Pair(
            draft=draft,
            target=read_model(settings.target, settings.revision),
            revision=settings.revision,
            tensor_parallel=settings.tensor_parallel,
            lookahead=lookahead,
        )
        text, serves = report(engines, pair)
        print(text)
        if not serves:
            raise SystemExit(1)
        return

    from architectures.checkpoints.fingerprint import fingerprint_checkpoint
    from eval.engines.certificate import write_certificate
    from eval.machine import torch_threads

    with torch_threads(settings.num_threads) as threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of the engine's own process
        loaded = load(settings, threads)
        certificate = certify_loaded(settings, loaded)
    prints = {"target": fingerprint_checkpoint(loaded.target), "draft": fingerprint_checkpoint(loaded.draft)}
    path = write_certificate(settings.out or loaded.draft, certificate, **prints)
    print_certificate(certificate)
    print(f"{path}: {settings.engine} {'serves this draft as scored' if certificate.holds else 'FAILS'}")
    if not certificate.holds:
        raise SystemExit(1)


@dataclass(frozen=True)
class Loaded:
    """What every engine's run is made from.

    Attributes:
        target: Folder of the target.
        draft: Of the draft.
        prompts: Messages of each.
        ids: Of each prompt, as the target's own tokenizer and template render it.
        is_chat: Whether the template is applied.
        threads: Of the CPU.
    """

    target: Path
    draft: Path
    prompts: "list[Prompt]"
    ids: list[list[int]]
    is_chat: bool
    threads: int


def load(settings: CertifySettings, threads: int) -> Loaded:
    """Folders and prompts.

    Raises:
        UserError: If the pair cannot be found, the draft has a reduced vocabulary, or there are too few prompts.
    """
    from architectures.targets.target import read_config, resolve_checkpoint
    from architectures.vocabulary import CONFIG_KEY
    from eval.engines.findings import MIN_PROMPTS
    from eval.models.loading import load_tokenizer
    from eval.pair import prompts_of
    from eval.prompts import TEXT, render_prompt

    target, draft = (resolve_checkpoint(each) for each in (settings.target, settings.draft))
    if CONFIG_KEY in read_config(draft):
        raise UserError(
            f"{draft}: outputs a reduced vocabulary, which no engine loads. Certify a form of it: widedraft export "
            f"{draft} --form whole --to DIR."
        )
    prompts = prompts_of(settings.prompts, settings.num_prompts)
    if len(prompts) < MIN_PROMPTS:
        raise UserError(f"--prompts: at least {MIN_PROMPTS} are needed, got {len(prompts)}. Name more files.")
    tokenizer = load_tokenizer(target)
    raw = {prompt.messages[0]["role"] == TEXT for prompt in prompts}
    if len(raw) > 1:
        raise UserError("--prompts: raw texts and conversations cannot be certified together. Name them one by one.")
    is_chat = bool(tokenizer.chat_template) and raw == {False}
    ids = [render_prompt(tokenizer, prompt.messages) for prompt in prompts]
    return Loaded(target, draft, prompts, ids, is_chat, threads)


def certify_loaded(settings: CertifySettings, loaded: Loaded) -> Certificate:
    """Run the engine, replay its texts, and decide; errors as the engine's."""
    from architectures.checkpoints.manifest import processor_name
    from architectures.checkpoints.target_files import TEMPLATES, TOKENIZERS, bytes_below
    from architectures.shapes.context_length import context_length
    from architectures.targets.target import read_config
    from eval.engines.certificate import pooled
    from eval.engines.findings import PairFacts, differs, find, find_ties, likely_causes, own_tokens, replay_run
    from eval.models.loading import load_model, stop_token_ids

    own = own_tokens(loaded.target, loaded.draft)
    files = engine_files(settings)
    run = run_engine(settings, loaded, files, maps_tokens=own is not None)

    # Facts of the pair, and which texts part at a near-tie: the target is read only if any do.
    def same(names: tuple[str, ...]) -> bool:
        return all(bytes_below(loaded.target / name) == bytes_below(loaded.draft / name) for name in names)

    context = context_length(read_config(loaded.draft), where=str(loaded.draft / "config.json"))
    is_half = [any(kind in path.stem.upper() for kind in ("F16", "F32")) for path in files or ()]
    is_gguf = settings.engine == "llama.cpp"
    facts = PairFacts(
        same_tokenizer=same(TOKENIZERS) or own is not None,
        same_template=same(TEMPLATES),
        draft_context=None if context is None else context.tokens,
        quantised=[path.name for path, half in zip(files or (), is_half, strict=True) if is_gguf and not half],
    )
    ties: list[int] = []
    if any(differs(text) for text in run.texts):
        target = load_model(loaded.target, dtype="float32")
        ties = find_ties(target, run, next(iter(sorted(stop_token_ids(target))), 0))

    # The draft reads the engine's texts in the engine's dtype; in float32 next to files of llama.cpp's own.
    draft = load_model(loaded.draft, dtype="float32" if is_gguf else settings.dtype)
    replayed = replay_run(draft, run, own)
    findings = find(run, loaded.ids, pooled(replayed), facts, ties)
    return Certificate(
        run=run,
        replay=pooled(replayed),
        findings=tuple(findings),
        causes=tuple(likely_causes(run, findings, replayed, facts)),
        speed=speed_of(run, settings.seed),
        hardware=f"{processor_name()}, {loaded.threads} threads",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def run_engine(
    settings: CertifySettings, loaded: Loaded, files: tuple[Path, Path] | None, *, maps_tokens: bool
) -> EngineRun:
    """Decode every prompt greedily without and with the draft in turns, and with the target as its own draft."""
    from eval.engines.assisted_generation import run_transformers
    from eval.engines.external import Work, run_llama_cpp, run_openvino, run_vllm
    from eval.models.loading import load_model

    lengths: dict[str, Any] = {"lookahead": settings.lookahead, "max_new_tokens": settings.max_new_tokens}
    if settings.engine == "transformers":
        models = tuple(load_model(folder, dtype=settings.dtype) for folder in (loaded.target, loaded.draft))
        return run_transformers((models[0], models[1]), loaded.ids, **lengths, seed=settings.seed)
    role = {} if loaded.is_chat else {"role": "user"}
    target, draft = files or (loaded.target, loaded.draft)
    assert settings.python is not None  # the settings' own check
    work = Work(
        python=settings.python,
        target=target,
        draft=draft,
        conversations=[[{**message, **role} for message in prompt.messages] for prompt in loaded.prompts],
        is_chat=loaded.is_chat,
        longest=max(map(len, loaded.ids)),
        dtype=settings.dtype,
        threads=loaded.threads,
        seed=settings.seed,
        draft_settings={"use_heterogeneous_vocab": True} if maps_tokens else {},
        **lengths,
    )
    return {"vllm": run_vllm, "llama.cpp": run_llama_cpp, "openvino": run_openvino}[str(settings.engine)](work)


def speed_of(run: EngineRun, seed: int) -> Speed:
    """Tokens per second both ways and the speedup, prefill included."""
    from eval.acceptance.estimates import Resampling
    from eval.acceptance.paired_ratios import paired_ratio_quotient

    plain = [text.plain_s for text in run.texts], [float(len(text.plain_ids)) for text in run.texts]
    drafted = [text.drafted_s for text in run.texts], [float(len(text.drafted_ids)) for text in run.texts]
    quotient = paired_ratio_quotient(plain, drafted, Resampling(CONFIDENCE, RESAMPLES, seed))
    return Speed(
        plain_tokens_per_s=sum(plain[1]) / sum(plain[0]),
        drafted_tokens_per_s=sum(drafted[1]) / sum(drafted[0]),
        value=quotient.value,
        interval=quotient.interval,
    )


def print_certificate(certificate: Certificate) -> None:
    """Findings, likely causes and speed."""
    run, speed = certificate.run, certificate.speed
    interval = "" if speed.interval is None else " [{:.2f}, {:.2f}]".format(*speed.interval)
    print(f"{run.engine} {run.version}, {run.dtype}, lookahead {run.lookahead}, {certificate.hardware}")
    print(f"  {run.command}")
    for finding in certificate.findings:
        print(f"  {'ok' if finding.holds else 'FAIL':4} {finding.law}: {finding.detail}")
    for cause in certificate.causes:
        print(f"  likely cause: {cause}")
    print(
        f"  speedup {speed.value:.2f}x{interval}: {speed.plain_tokens_per_s:.1f} tokens/s without, "
        f"{speed.drafted_tokens_per_s:.1f} with the draft"
    )
