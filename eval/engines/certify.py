"""`widedraft certify`: check that an engine serves a draft as scored, or that it could (--dry-run).

The engine decodes without and with the draft; exact replay runs over its texts; eval/engines/runs.py checks the laws.
Imports torch only when run.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from pydantic import Field, model_validator

from architectures.compatibility import ENGINES, EngineName, Pair, TensorParallel, read_model, report
from architectures.errors import UserError
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
from eval.engines.certificate import (
    Certificate,
    Engine,
    EngineRun,
    ServedCertificate,
    ServedEngine,
    Speed,
    pooled,
    write_certificate,
)
from eval.tasks import PromptWords, TemplateKwargs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from eval.engines.runs import OwnTokens
    from eval.prompts import Prompt

FILES = {"llama.cpp": "`widedraft export --gguf`", "openvino": "`optimum-cli export openvino`"}
PACKAGES = {"vllm": "vLLM", "llama.cpp": "xllamacpp", "openvino": "openvino-genai"}

NEEDS = {"revision": "dry_run", "tensor_parallel": "dry_run", "max_model_len": "as_served"}
RESAMPLES, CONFIDENCE = 2000, 0.95


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


def certify(settings: CertifySettings) -> None:
    """Print every finding and the speed; exit code 1 if a law does not hold."""
    if settings.dry_run:
        engines = ENGINES if settings.engine is None else (settings.engine,)
        draft = read_model(settings.draft)
        k = settings.num_speculative_tokens
        if "num_speculative_tokens" not in settings.model_fields_set:
            k = draft.num_assistant_tokens or k
        pair = Pair(
            draft=draft,
            target=read_model(settings.target, settings.revision),
            revision=settings.revision,
            tensor_parallel=settings.tensor_parallel,
            num_speculative_tokens=k,
        )
        text, serves = report(engines, pair)
        print(text)
        if not serves:
            raise SystemExit(1)
        return

    from architectures.hub import resolve_checkpoint
    from architectures.manifest import fingerprint_checkpoint
    from eval.machine import torch_threads

    target, draft = (resolve_checkpoint(each) for each in (settings.target, settings.draft))
    with torch_threads(settings.num_threads) as threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # for the engine's own process
        make = make_served_certificate if settings.as_served else make_certificate
        certificate = make(settings, target, draft, threads=threads)
    prints = {"target": fingerprint_checkpoint(target), "draft": fingerprint_checkpoint(draft)}
    path = write_certificate(settings.out or draft, certificate, **prints)
    print_certificate(certificate)
    print(f"{path}: {settings.engine} {'matches the replay' if certificate.holds else 'FAILS'}")
    if not certificate.holds:
        raise SystemExit(1)


@dataclass(frozen=True)
class Prepared:
    """Prompts for an engine, all raw text or none, rendered by the target's own tokenizer and template."""

    prompts: "list[Prompt]"
    ids: list[list[int]]
    tokenizer: "PreTrainedTokenizerBase"
    own: "OwnTokens | None"
    chat_template_kwargs: Mapping[str, Any]
    is_chat: bool


def prepared(settings: CertifySettings, target: Path, draft: Path) -> Prepared:
    """Raises UserError if the draft has a reduced vocabulary, or there are too few prompts."""
    from eval.chat import TEXT, render_prompt
    from eval.engines.runs import MIN_PROMPTS, own_tokens, require_engine_form
    from eval.models import load_tokenizer
    from eval.pair import prompts_of

    require_engine_form(draft)
    kwargs = settings.chat_template_kwargs
    if "chat_template_kwargs" not in settings.model_fields_set:
        kwargs = read_model(str(draft)).chat_template_kwargs
    prompts = prompts_of(settings.prompts, settings.num_prompts, kwargs)
    raw = {prompt.messages[0]["role"] == TEXT for prompt in prompts}
    if len(prompts) < MIN_PROMPTS or len(raw) > 1:
        raise UserError(
            f"--prompts: {MIN_PROMPTS} prompts are needed, either all or none raw text, got {len(prompts)}. Use others."
        )
    if any(prompt.tools for prompt in prompts):
        raise UserError("--prompts: rows with tools are not supported by certify. Use others.")
    tokenizer = load_tokenizer(target)
    return Prepared(
        prompts=prompts,
        ids=[render_prompt(tokenizer, prompt) for prompt in prompts],
        tokenizer=tokenizer,
        own=own_tokens(target, draft),
        chat_template_kwargs=kwargs,
        is_chat=bool(tokenizer.chat_template) and raw == {False},
    )


def make_served_certificate(settings: CertifySettings, target: Path, draft: Path, *, threads: int) -> ServedCertificate:
    """Serve a pair of directories as in production; errors as for make_certificate."""
    from eval.engines.as_served import ServedSetup, certify_as_served, served_length

    given = prepared(settings, target, draft)
    assert settings.python is not None  # validated by the settings
    setup = ServedSetup(
        engine=cast("ServedEngine", settings.engine),
        python=settings.python,
        target=settings.target_file or target,
        draft=settings.draft_file or draft,
        prompts=given.prompts,
        ids=given.ids,
        tokenizer=given.tokenizer,
        own=given.own,
        num_speculative_tokens=settings.num_speculative_tokens,
        max_new_tokens=settings.max_new_tokens,
        max_model_len=served_length((target, draft), settings.max_model_len),
        dtype=settings.dtype,
        threads=threads,
        seed=settings.seed,
    )
    return certify_as_served(setup, (target, draft))


def make_certificate(settings: CertifySettings, target: Path, draft: Path, *, threads: int) -> Certificate:
    """Run the engine on a pair of directories, replay its texts, and check the laws.

    Raises:
        UserError: If the draft has a reduced vocabulary, there are too few prompts, or the engine fails.
    """
    import transformers

    from architectures.manifest import processor_name
    from architectures.target_files import TEMPLATES, TOKENIZERS, bytes_below
    from eval.engines.runs import (
        AssistedGeneration,
        differs,
        engine_run,
        find,
        find_ties,
        replay_run,
        run_external,
    )
    from eval.engines.worker import decode_all
    from eval.models import load_model, stop_token_ids

    given = prepared(settings, target, draft)
    ids, own = given.ids, given.own

    # The engine decodes each greedily without and with the draft, interleaved, and with the target as its own draft.
    role = {} if given.is_chat else {"role": "user"}
    request: dict[str, Any] = {
        "target": str((settings.target_file or target).resolve()),
        "draft": str((settings.draft_file or draft).resolve()),
        "conversations": [[{**message, **role} for message in prompt.messages] for prompt in given.prompts],
        "is_chat": given.is_chat,
        "chat_template_kwargs": given.chat_template_kwargs,
        "num_speculative_tokens": settings.num_speculative_tokens,
        "max_new_tokens": settings.max_new_tokens,
        "max_model_len": max(map(len, ids)) + settings.max_new_tokens + settings.num_speculative_tokens + 1,
        "dtype": settings.dtype,
        "threads": threads,
        "seed": settings.seed,
        "draft_settings": {} if own is None else {"use_heterogeneous_vocab": True},
    }
    if settings.engine == "transformers":
        models = {str(each.resolve()): load_model(each, dtype=settings.dtype) for each in (target, draft)}
        response = decode_all(partial(AssistedGeneration, models), {**request, "conversations": ids})
        run = engine_run("transformers", request, {**response, "version": transformers.__version__})
    else:
        assert settings.python is not None  # validated by the settings
        run = run_external(cast("Engine", settings.engine), settings.python, request)

    # Files that differ from the target's; texts that differ at a near-tie. The target is loaded only if any text
    # differs.
    kinds = {"tokenizer": () if own is not None else TOKENIZERS, "chat template": TEMPLATES}
    differing = [
        kind
        for kind, names in kinds.items()
        if any(bytes_below(target / name) != bytes_below(draft / name) for name in names)
    ]
    ties: list[int] = []
    if any(differs(text) for text in run.texts):
        model = load_model(target, dtype="float32")
        ties = find_ties(model, run.texts, run.dtype, next(iter(sorted(stop_token_ids(model))), 0))

    # The draft reads the engine's texts in the engine's dtype; in float32 for llama.cpp, whose files have their own.
    model = load_model(draft, dtype="float32" if settings.engine == "llama.cpp" else settings.dtype)
    replay = pooled(replay_run(model, run, own))
    return Certificate(
        run=run,
        replay=replay,
        findings=tuple(find(run, ids, replay, differing=differing, ties=ties)),
        speed=speed_of(run, settings.seed),
        hardware=f"{processor_name()}, {threads} threads",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def speed_of(run: EngineRun, seed: int) -> Speed:
    from eval.intervals import Resampling, paired_ratio_quotient

    plain = [text.plain_s for text in run.texts], [float(len(text.plain_ids)) for text in run.texts]
    drafted = [text.drafted_s for text in run.texts], [float(len(text.drafted_ids)) for text in run.texts]
    quotient = paired_ratio_quotient(plain, drafted, Resampling(CONFIDENCE, RESAMPLES, seed))
    return Speed(
        plain_tokens_per_s=sum(plain[1]) / sum(plain[0]),
        drafted_tokens_per_s=sum(drafted[1]) / sum(drafted[0]),
        value=quotient.value,
        interval=quotient.interval,
    )


def print_certificate(certificate: Certificate | ServedCertificate) -> None:
    is_single = isinstance(certificate, Certificate)
    run = certificate.run if is_single else certificate
    if not is_single:
        print(
            f"exercised: {', '.join(certificate.exercised)}; not: {', '.join(certificate.not_exercised) or 'nothing'}"
        )
    print(f"{run.engine} {run.version}, {run.dtype}, k = {run.num_speculative_tokens}, {certificate.hardware}")
    print(f"  {run.command}")
    for finding in certificate.findings:
        print(f"  {'ok' if finding.holds else 'FAIL':4} {finding.law}: {finding.detail}")
    if is_single:
        speed = certificate.speed
        interval = "" if speed.interval is None else " [{:.2f}, {:.2f}]".format(*speed.interval)
        print(
            f"  speedup {speed.value:.2f}x{interval}: {speed.plain_tokens_per_s:.1f} tokens/s without, "
            f"{speed.drafted_tokens_per_s:.1f} with the draft"
        )
