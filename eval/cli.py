"""Commands `benchmark`, `report` and `verify` on any two checkpoints. Torch is only imported when they run."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from architectures import settings as fields
from architectures.compatibility import DEFAULT_NUM_SPECULATIVE_TOKENS
from architectures.console import Table, TableSection, terminal
from architectures.errors import UserError
from architectures.settings import AUTO, MOST, Flag, Holding, How, Section, flag_of
from eval.config import SpeedEngine, requested_sampling, server_url
from eval.tasks import PromptWords, TemplateKwargs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from eval.benchmark import BenchmarkFile, Decode, Method, Prompts, Runs
    from eval.decoding.kv_cache import Opener
    from eval.decoding.sampling import Sampling, Speculation
    from eval.decoding.speculative import LookupFirst
    from eval.engines.engine_speed import Replay
    from eval.intervals import Resampling
    from eval.lossless import LosslessFinding
    from eval.prompts import Prompt
    from eval.scorecard_schema import GridCell, GridFile


class DecodingFlags(Section):
    """Target, prompts, sampling, speculation, and eager or captured steps."""

    target: fields.Target
    prompts: PromptWords = ()
    chat_template_kwargs: TemplateKwargs = Field(default="{}", validate_default=True)
    draft_p_min: fields.DraftPMin = 0.0
    top_p: fields.TopP = 1.0
    top_k: fields.TopK = None
    min_p: fields.MinP = 0.0
    repetition_penalty: fields.RepetitionPenalty = 1.0
    target_bits: fields.TargetBits = None
    capture: fields.Capture = False
    seed: fields.Seed = 17

    @model_validator(mode="after")
    def _one_way_of_each(self) -> "DecodingFlags":
        if self.target_bits is not None and self.how != "eager":
            raise UserError("--target-bits: packed weights do not support CUDA graphs. Remove --capture.")
        return self

    @property
    def how(self) -> How:
        return "captured" if self.capture else "eager"

    def sampling(self, temperature: float) -> "Sampling":
        from eval.decoding.sampling import Sampling

        return Sampling.of(temperature, requested_sampling(self))

    def speculation(self, num_speculative_tokens: int) -> "Speculation":
        from eval.decoding.sampling import Speculation

        return Speculation(num_speculative_tokens, draft_p_min=self.draft_p_min)

    def new_opener(self) -> "Opener":
        """Return an opener to share among all calls: it keeps its captured steps."""
        from eval.decoding.cuda_graphs import new_opener

        return new_opener(self.how)


GROUPS, MIN_PROMPTS = 12, 16  # defaults; enough to show a true 1.2x nearly always (docs/evaluate.md)
GRID_REPEATS = 30

GRID_ONLY = ("batch_sizes", "contexts")
WALL_CLOCK_ONLY = (
    *("num_prompts", "max_new_tokens", "concurrency", "draft_p_min", "temperature", "top_p", "top_k"),
    *("min_p", "repetition_penalty", "assisted", "ngram_size_n", "ngram_size_m", "precision", "engine", "url"),
)
IN_ENGINE_ONLY = ("python", "target_file")
NOT_OF_SERVERS = ("engine", "python", "target_file", "ngram_size_n", "ngram_size_m")
ENGINE_PRECISION = 0.1  # default in engines, unless --repeats
NOT_IN_ENGINES = ("assisted", "capture", "target_bits", "repetition_penalty")


class BenchmarkSettings(DecodingFlags):
    """Flags of `widedraft benchmark`."""

    draft: fields.Drafts = ()
    grid: Annotated[
        bool, Field(description="Only time the steps of target and drafts on a grid of batch sizes and contexts.")
    ] = False
    num_prompts: Annotated[
        fields.NumPrompts | None,
        Flag(absent=f"{GROUPS} times --concurrency, at least {MIN_PROMPTS}; with a precision 4 times as many"),
    ] = None
    max_new_tokens: fields.MaxNewTokens = 128
    num_speculative_tokens: Annotated[
        fields.SpeculativeTokenCounts | None, Flag(absent=f"1 to 6; in engines {DEFAULT_NUM_SPECULATIVE_TOKENS}")
    ] = None
    concurrency: Annotated[
        fields.BatchSizes, Field(description="Numbers of prompts decoded at once; each has its own plain decoding.")
    ] = (1,)
    batch_sizes: fields.BatchSizes = (1, 4)
    contexts: fields.Contexts = (128, 1024)
    ngram_size_n: Annotated[int | None, Flag(absent="no prompt lookup")] = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Also measure each draft combined with prompt lookup: propose from the text if its last N tokens "
        "occurred before, else from the draft (llama.cpp: --spec-type ngram-simple,draft-simple with "
        "--spec-ngram-simple-size-n).",
    )
    ngram_size_m: Annotated[
        int, Field(ge=1, le=MOST, description="Maximum number of tokens that prompt lookup copies.")
    ] = 48
    temperature: fields.Temperature = 0.0
    repeats: Annotated[fields.Repeats | None, Flag(absent=f"1; with --grid {GRID_REPEATS}")] = None
    precision: Annotated[
        float | None, Flag(absent=f"decode all prompts; in engines {ENGINE_PRECISION}, unless --repeats is set")
    ] = Field(
        default=None,
        gt=0,
        lt=1,
        description="Stop before --num-prompts once every draft's speedup is known within this fraction: 0.1 for an "
        "interval of 10% either way.",
    )
    assisted: Annotated[bool, Field(description="Also measure transformers' assisted generation.")] = False
    dtype: fields.PairDtype = AUTO
    engine: Annotated[SpeedEngine | None, Flag(absent="widedraft's own loop")] = Field(
        default=None,
        description="Decode in this engine. Drafts are then what it loads: directories, or GGUF files for llama.cpp.",
    )
    python: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None, description="Python executable of the environment with the engine."
    )
    target_file: Annotated[Path | None, Flag(metavar="PATH")] = Field(
        default=None, description="The target for llama.cpp (a GGUF file) or OpenVINO (a directory)."
    )
    url: Annotated[tuple[Annotated[str, AfterValidator(server_url)], ...], Flag(metavar="URL")] = Field(
        default=(),
        strict=False,
        description="Running servers (vLLM, SGLang, llama.cpp, widedraft): the target without a draft first, then the "
        "same with one of the drafts each.",
    )
    out: fields.OutFile = None

    @property
    def in_engine(self) -> bool:
        return self.engine is not None or bool(self.url)

    @model_validator(mode="after")
    def _servers_take(self) -> "BenchmarkSettings":
        if not self.url:
            return self
        for name in NOT_OF_SERVERS:
            if name in self.model_fields_set:
                raise UserError(f"{flag_of(name)}: running servers (--url) have their own. Remove one of the two.")
        if len(self.url) < 2 or len(self.draft) not in (0, len(self.url) - 1) or len(self.ks) > 1:
            raise UserError(
                f"--url: got {len(self.url)} servers, {len(self.draft)} drafts and {len(self.ks)} "
                "--num-speculative-tokens. Pass a server without a draft and then those with a draft, one --draft for "
                "each of the latter or none, and one --num-speculative-tokens."
            )
        return self

    @model_validator(mode="after")
    def _engine_takes(self) -> "BenchmarkSettings":
        given = self.model_fields_set
        for name in NOT_IN_ENGINES if self.in_engine else IN_ENGINE_ONLY:
            if name in given:
                fact = "is not supported in engines" if self.in_engine else "needs --engine"
                raise UserError(f"{flag_of(name)} {fact}. Remove it.")
        if self.draft_p_min and self.in_engine and self.engine != "llama.cpp":
            raise UserError("--draft-p-min: of the engines only llama.cpp has it. Remove it.")
        if self.engine is None or self.grid:
            return self
        if self.python is None:
            raise UserError(f"--python must be the Python executable of an environment with {self.engine}.")
        if (self.engine == "vllm") != (self.target_file is None):
            raise UserError("--target-file is the target for llama.cpp and openvino, and not for vllm.")
        if (path := self.target_file) and not (path.is_dir() if self.engine == "openvino" else path.exists()):
            raise UserError(f"--target-file: {path} does not exist, or is not a directory for openvino.")
        if self.ngram_size_n is not None and self.engine != "llama.cpp":
            raise UserError(f"--ngram-size-n: {self.engine} does not combine prompt lookup with a draft. Remove it.")
        if self.concurrency != (1,) and self.engine == "openvino":
            raise UserError("--concurrency: openvino decodes one prompt at a time here. Remove it.")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> "BenchmarkSettings":
        from eval.intervals import CONFIDENCE, least_units

        without = "--grid" if not self.grid else None
        for name in WALL_CLOCK_ONLY if self.grid else GRID_ONLY:
            if name in self.model_fields_set:
                fix = f"Add {without}, or remove it." if without else "Remove one of the two."
                raise UserError(f"{flag_of(name)}: {'needs --grid' if without else 'not supported with --grid'}. {fix}")
        if self.grid and self.num_repeats < (least := least_units(CONFIDENCE)):
            raise UserError(f"--repeats must be at least {least} for intervals, got {self.num_repeats}.")
        if self.grid:
            return self
        if not self.draft and not self.url:
            raise UserError("--draft: pass at least one draft; only --grid and --url work without.")
        if self.precision is not None and self.num_repeats > 1:
            raise UserError("--precision: repetitions tell nothing about other prompts. Remove --repeats.")
        if self.assisted and self.concurrency != (1,):
            raise UserError("--assisted: transformers decodes one prompt at a time. Use --concurrency 1.")
        return self

    def lookup_first(self) -> "LookupFirst | None":
        from eval.decoding.speculative import LookupFirst

        return None if self.ngram_size_n is None else LookupFirst(self.ngram_size_n, self.ngram_size_m)

    @property
    def ks(self) -> tuple[int, ...]:
        default = (DEFAULT_NUM_SPECULATIVE_TOKENS,) if self.in_engine else (1, 2, 3, 4, 5, 6)
        return self.num_speculative_tokens or default

    @property
    def num_repeats(self) -> int:
        return self.repeats or (GRID_REPEATS if self.grid else 1)

    @property
    def stop_precision(self) -> float | None:
        default = ENGINE_PRECISION if self.in_engine and self.repeats is None else None
        return default if self.precision is None else self.precision


def benchmark(settings: BenchmarkSettings) -> None:
    from eval.scorecard_schema import GridFile, write_record

    record = measured_grid(settings) if settings.grid else measured_runs(settings)
    if isinstance(record, GridFile):
        print(terminal(f"Measured on {record.where}.", *map(cell_section, record.cells)))
    else:
        print(terminal(benchmark_page(record)))
    if settings.out is not None:
        write_record(record, settings.out)
        print(f"\n{settings.out}: all results")
    if settings.in_engine and not isinstance(record, GridFile):
        from eval.engines.engine_speed import serve_lines

        print(f"\n{serve_lines(record)}")


# Wall clock


def measured_runs(settings: BenchmarkSettings) -> "BenchmarkFile":
    import torch

    from eval import benchmark as runs_of
    from eval.intervals import least_units
    from eval.machine import torch_threads
    from eval.pair import prompts_of
    from eval.scorecard_schema import Provenance

    # Prompts, in groups that are decoded together. Warn about too few groups before minutes are spent.
    factor = 1 if settings.stop_precision is None else 4
    wanted = {each: settings.num_prompts or factor * default_prompts(each) for each in settings.concurrency}
    prompts = prompts_of(settings.prompts, max(wanted.values()), settings.chat_template_kwargs)
    resampling = resampling_of(settings)
    least = least_units(resampling.confidence)
    for concurrency, count in wanted.items():
        if (num_groups := -(-min(count, len(prompts)) // concurrency)) < least:
            print(
                f"No intervals: {min(count, len(prompts))} prompts at --concurrency {concurrency} are {num_groups} "
                f"group(s), but {least} are needed. Use at least {least * concurrency} (--num-prompts, --prompts).",
                file=sys.stderr,
            )

    opened = opened_in_engine if settings.in_engine else opened_here
    with torch_threads(None):
        with opened(settings, prompts) as (decoders, rendered, described, replay):
            groups = {each: runs_of.groups_of(rendered[:count], each) for each, count in wanted.items()}
            runs = {each: timed_runs(settings, decoders, groups[each], resampling) for each in groups}
        rows, best, decoded = [], [], {}
        for concurrency, timed in runs.items():
            plain = timed[runs_of.Method(runs_of.PLAIN)][0]
            decoded[concurrency] = sum(map(len, groups[concurrency][: len(plain)]))
            responses = [ids for index in sorted(plain) for ids in plain[index].responses]
            for method in timed:
                row = runs_of.method_row(method, timed, resampling)
                predicted = replay(method, rendered, responses)
                rows.append(replace(row, concurrency=concurrency, replayed_by_position=predicted))
            found = runs_of.best_of_each(timed, resampling)
            found += runs_of.over_others(found, timed, resampling)
            best += [replace(row, concurrency=concurrency) for row in found]
        return runs_of.BenchmarkFile(
            **described,
            settings=settings.model_dump(mode="json"),
            prompts=decoded,
            rows=tuple(rows),
            best=tuple(best),
            confidence=resampling.confidence,
            threads=torch.get_num_threads(),
            provenance=Provenance.of_this_process(),
        )


def timed_runs(
    settings: BenchmarkSettings, decoders: "dict[Method, Decode]", groups: "list[Prompts]", resampling: "Resampling"
) -> "Runs":
    """Decode groups of prompts by every method, until all are decoded or the precision is reached."""
    import numpy as np

    from architectures.console import track
    from eval import benchmark as runs_of

    runs_of.warm_up(decoders, groups[:1] if settings.how == "eager" else groups)
    turns = list(product(range(settings.num_repeats), range(len(groups))))
    ticks = track(turns, description=f"every method, concurrency {len(groups[0])}", total=len(turns))
    rng, precision = np.random.default_rng(settings.seed), settings.stop_precision
    if precision is None:
        return runs_of.interleave(decoders, groups, ticks, rng)

    def is_precise(runs: "Runs") -> bool:
        reached = runs_of.reached_precision(runs, resampling)
        return reached is not None and reached <= precision

    runs = runs_of.interleave(decoders, groups, ticks, rng, is_enough=is_precise)
    decoded = len(runs[runs_of.Method(runs_of.PLAIN)][0])
    print(precision_note(precision, runs_of.reached_precision(runs, resampling), decoded), file=sys.stderr)
    return runs


# Methods, token ids of the prompts, target, drafts and engine by field of a BenchmarkFile, and replay's predictions.
Opened = tuple[dict["Method", "Decode"], list[list[int]], dict[str, Any], "Replay"]


@contextmanager
def opened_here(settings: BenchmarkSettings, prompts: "Sequence[Prompt]") -> Iterator[Opened]:
    """Load the models, and yield every method of our own loop."""
    from eval import benchmark as runs_of
    from eval.decoding.sampling import Limits, Seeds
    from eval.pair import load_pairs

    holding = Holding(bits=settings.target_bits)
    loaded = load_pairs(settings.target, settings.draft, dtype=settings.dtype, holding=holding)
    pairs = dict(zip(draft_names(settings), loaded, strict=True))
    rendered = [loaded[0].rendered(prompt) for prompt in prompts]
    for pair in loaded:
        pair.require_context(rendered, settings.max_new_tokens)
    setup = runs_of.Setup(
        loaded[0].target,
        {name: pair.draft for name, pair in pairs.items()},
        Limits(settings.max_new_tokens, loaded[0].stop_ids),
        settings.sampling(settings.temperature),
        Seeds.of(settings.seed),
        settings.new_opener(),
        settings.speculation(settings.ks[0]),
        settings.lookup_first(),
    )
    described = {
        "target": loaded[0].target_identity(),
        "drafts": {name: pair.draft_identity() for name, pair in pairs.items()},
    }
    yield runs_of.methods(setup, settings.ks, assisted=settings.assisted), rendered, described, lambda *_: None


@contextmanager
def opened_in_engine(settings: BenchmarkSettings, prompts: "Sequence[Prompt]") -> Iterator[Opened]:
    """Open the engine once per method, or connect to running servers, and yield every method."""
    import torch

    from architectures.hub import resolve_checkpoint
    from eval.chat import render_prompt
    from eval.engines.engine_speed import EngineSetup, engine_files, identity_in_engine, opened, replay_with
    from eval.models import load_tokenizer

    target = resolve_checkpoint(settings.target)
    tokenizer = load_tokenizer(target)
    rendered = [render_prompt(tokenizer, prompt) for prompt in prompts]
    words = dict(zip(draft_names(settings), settings.draft, strict=True))
    drafts, own_tokenizer = engine_files(settings.engine, target, words)
    setup = EngineSetup(
        settings.engine,
        settings.python,
        settings.target_file or target,
        drafts or {url: Path(url) for url in settings.url[1:]},
        own_tokenizer,
        prompt_tokens=max(map(len, rendered)),
        max_new_tokens=settings.max_new_tokens,
        concurrency=max(settings.concurrency),
        dtype=settings.dtype,
        threads=torch.get_num_threads(),
        sampling=settings.sampling(settings.temperature),
        seed=settings.seed,
        draft_p_min=settings.draft_p_min,
        lookup_first=settings.lookup_first(),
        urls=settings.url,
    )
    with opened(setup, settings.ks) as (decoders, engine):
        described = {
            "target": identity_in_engine(setup.target, settings.dtype),
            "drafts": {name: identity_in_engine(path, settings.dtype) for name, path in drafts.items()},
            "engine": engine,
        }
        replayed = drafts if settings.temperature == 0 else {}
        yield decoders, rendered, described, replay_with(target, replayed, dtype=settings.dtype)


def draft_names(settings: BenchmarkSettings) -> list[str]:
    return ["draft"] if len(settings.draft) == 1 else [f"draft {draft}" for draft in settings.draft]


def precision_note(precision: float, reached: float | None, groups: int) -> str:
    """Return what --precision came to, and the number of groups that the spread so far asks for."""
    from eval.benchmark import LEAST_GROUPS

    if reached is None:
        return f"--precision {precision:g}: not judged below {LEAST_GROUPS} groups of prompts; {groups} were decoded."
    if reached <= precision:
        return f"--precision {precision:g}: reached after {groups} groups of prompts."
    needed = math.ceil(groups * (math.log1p(reached) / math.log1p(precision)) ** 2)
    return (
        f"--precision {precision:g}: {reached:.2g} after {groups} groups of prompts; about {needed} are needed "
        "(--num-prompts, --prompts)."
    )


def default_prompts(batch: int) -> int:
    return max(GROUPS * batch, MIN_PROMPTS)


def resampling_of(settings: BenchmarkSettings) -> "Resampling":
    from eval.intervals import CONFIDENCE, NUM_RESAMPLES, Resampling

    return Resampling(CONFIDENCE, NUM_RESAMPLES, settings.seed)


def benchmark_page(record: "BenchmarkFile") -> TableSection:
    from eval.benchmark import decision, method_of
    from eval.scorecard_tables import speed_table, times

    prompts = ", ".join(f"{count} prompts at concurrency {each}" for each, count in record.prompts.items())
    title = f"{record.engine or 'widedraft'}, temperature {record.settings['temperature']:g}, {prompts}"
    best_columns = ("concurrency", "at its best k", "k", "over", "speedup", "decision")
    best = [
        (
            str(row.concurrency),
            method_of(row).label,
            str(row.num_speculative_tokens),
            row.over,
            times(row.speedup),
            decision(row.speedup.interval),
        )
        for row in record.best
    ]
    return TableSection(
        title, [speed_table([("", record)]), Table(best_columns, best, "Best of each method, interleaved runs")]
    )


# Grid


def measured_grid(settings: BenchmarkSettings) -> "GridFile":
    import torch

    from eval.latency import Grid, measure_grid, require_memory
    from eval.machine import torch_threads
    from eval.models import model_facts
    from eval.scorecard_schema import TARGET, GridFile, GridModel, Provenance

    models, text_ids = target_and_drafts(settings)
    described = {
        name: GridModel(**model_facts(Path(str(model.name_or_path)), model), device=str(model.device))
        for name, model in models.items()
    }
    if settings.target_bits is not None:
        described[TARGET] = described[TARGET].model_copy(update={"dtype": f"{settings.target_bits} bits"})
    for batch, context in product(settings.batch_sizes, settings.contexts):
        require_memory(models, batch=batch, context=context)
    grid = Grid(settings.batch_sizes, settings.contexts, settings.ks, settings.num_repeats, settings.how)
    with torch_threads(None):
        return GridFile(
            models=described,
            threads=torch.get_num_threads(),
            cells=measure_grid(models, text_ids, grid, resampling_of(settings)),
            provenance=Provenance.of_this_process(),
        )


def target_and_drafts(settings: BenchmarkSettings) -> tuple[dict[str, "PreTrainedModel"], list[int]]:
    """Load the target and its drafts by name; return them with the token ids that fill their caches."""
    from architectures.hub import require_whole_head, resolve_checkpoint
    from eval.chat import render_prompt
    from eval.models import load_model, load_tokenizer, require_same_tokenizer
    from eval.pair import prompts_of
    from eval.scorecard_schema import TARGET

    folder = resolve_checkpoint(settings.target)
    require_whole_head(folder)
    drafts = [resolve_checkpoint(name) for name in settings.draft]
    for draft in drafts:
        require_same_tokenizer(folder, draft)
    tokenizer, dtype = load_tokenizer(folder), settings.dtype
    prompts = prompts_of(settings.prompts, None, settings.chat_template_kwargs)
    text_ids = [token for prompt in prompts for token in render_prompt(tokenizer, prompt)]
    names = ["draft"] if len(drafts) == 1 else [f"draft {number}" for number in range(1, len(drafts) + 1)]
    models = {TARGET: load_model(folder, dtype=dtype, bits=settings.target_bits)}
    return models | {name: load_model(path, dtype=dtype) for name, path in zip(names, drafts, strict=True)}, text_ids


def cell_section(cell: "GridCell") -> TableSection:
    from eval.scorecard_tables import interval

    steps = cell.steps | {f"{name}, prefill": step for name, step in cell.prefill.items()}
    rows = [
        (
            name,
            interval(step.p50_ms, 2),
            f"{step.p10_ms.value:.2f}",
            f"{step.p90_ms.value:.2f}",
            "" if step.p99_ms is None else f"{step.p99_ms.value:.2f}",
        )
        for name, step in steps.items()
    ]
    costs = [f"Cost ratio of {draft.draft}: {draft.cost_ratio:.3f}." for draft in cell.drafts]
    unsettled = [] if cell.settled else ["Step times were not stable: the machine was busy."]
    title = f"Batch {cell.batch}, {cell.context_tokens} tokens of context, {cell.how} steps"
    return TableSection(title, [Table(("step", "median ms", "p10", "p90", "p99"), rows), *costs, *unsettled])


PAGE_NAME = "report.html"


def page_name(path: Path | None) -> Path | None:
    if path is not None and (path.suffix != ".html" or path.is_dir()):
        raise ValueError(f"{path}: must be a file name that ends in .html")
    return path


class ReportSettings(Section):
    """Flags of `widedraft report`."""

    runs: Annotated[tuple[Path, ...], Flag(metavar="RUN", is_word=True)] = Field(
        description="Run directory, scorecard directory or scorecard.json; each is compared with the first."
    )
    latency: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None,
        description="Step times of the same models at other batch sizes, to predict speedups.",
    )
    out: Annotated[
        Path | None,
        AfterValidator(page_name),
        Flag(metavar="FILE", absent=f"{PAGE_NAME} next to the scorecard; of several, in this directory"),
    ] = Field(default=None, description="The page.")


def report(settings: ReportSettings) -> None:
    from eval.report import scorecard_path, write_report

    runs = settings.runs
    out = settings.out or (scorecard_path(runs[0]).with_name(PAGE_NAME) if len(runs) == 1 else Path(PAGE_NAME))
    print(write_report(runs, out, latency=settings.latency))


Accuracy = Annotated[
    tuple[str, ...],
    Field(
        strict=False,
        description="Compare task accuracy with and without the draft instead.",
    ),
    Flag(metavar="gsm8k[=FILE]|multiplication", is_repeated=True),
]
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class VerifySettings(DecodingFlags):
    """Flags of `widedraft verify`."""

    draft: fields.Draft
    accuracy: Accuracy = ()
    show: Annotated[
        bool,
        Field(description="Instead decode prompts (typed without --prompts) side by side, coloured by model."),
    ] = False
    num_prompts: Annotated[fields.NumPrompts | None, Flag(absent="8; 100 with --accuracy; all with --show")] = None
    max_new_tokens: Annotated[
        fields.MaxNewTokens | None, Flag(absent="64; 128 with --show; 256 for gsm8k, 8 for multiplication")
    ] = None
    num_speculative_tokens: fields.NumSpeculativeTokens = 4
    temperature: Annotated[fields.Temperature | None, Flag(absent="1; 0 with --show")] = None
    samples: Annotated[int, Field(ge=1, le=MOST, description="Texts sampled per prompt and acceptance method.")] = 4
    batch_size: fields.BatchSize = Field(default=16, description="Batch size of --accuracy.")
    target_placement: fields.TargetPlacement = "whole"
    target_device_memory_gib: fields.DeviceMemoryGib = None
    dtype: fields.PairDtype = "float32"

    @property
    def holding(self) -> Holding:
        return Holding(self.target_placement, self.target_device_memory_gib, self.target_bits)

    @model_validator(mode="after")
    def _modes(self) -> "VerifySettings":
        if (mistake := self.holding.mistake) is not None:
            raise UserError(f"--target-placement: {mistake}")
        if self.target_placement != "whole" and self.how != "eager":
            raise UserError("--capture does not support --target-placement. Remove one of the two.")
        if self.accuracy and self.show:
            raise UserError("--accuracy and --show are mutually exclusive. Run the command once for each.")
        unused = ["batch_size"]
        if self.accuracy:
            unused = ["prompts", "samples", *SAMPLING]
            unused += [] if "multiplication" in self.accuracy else ["seed"]  # seeds the factors
        elif self.show:
            unused = ["batch_size", "samples"]
        mode = "with --accuracy" if self.accuracy else "with --show" if self.show else "without --accuracy"
        for name in unused:
            if name in self.model_fields_set:
                raise UserError(f"{flag_of(name)} has no effect {mode}. Remove it.")
        if self.temperature == 0 and not self.show:
            raise UserError(
                "--temperature must be > 0, got 0: it applies to sampled texts; greedy texts are always checked."
            )
        kinds = [word.partition("=")[0] for word in self.accuracy]
        if len(set(kinds)) < len(kinds):
            raise UserError(f"--accuracy must not repeat kinds, got {' '.join(self.accuracy)}.")
        return self


def verify(settings: VerifySettings) -> None:
    """Print every finding; exit code 1 if one fails."""
    if settings.show:
        show(settings)
        return
    findings = check_accuracy(settings) if settings.accuracy else check_lossless(settings)
    holds = True
    for finding in findings:
        holds &= finding.holds
        print(f"{'ok' if finding.holds else 'FAIL':4} {finding.name}: {finding.detail}", flush=True)
    print(f"lossless: {'yes' if holds else 'NO'} (target {settings.target}, draft {settings.draft})")
    if not holds:
        raise SystemExit(1)


def check_lossless(settings: VerifySettings) -> Iterable["LosslessFinding"]:
    """Check greedy text, the target as its own draft, and the distribution of sampled texts by each method."""
    from eval.decoding.sampling import Limits
    from eval.lossless import Verification, check_lossless
    from eval.pair import load_pair, prompts_of

    prompts = prompts_of(settings.prompts, settings.num_prompts or 8, settings.chat_template_kwargs)
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=settings.holding)
    ids, max_new_tokens = [pair.rendered(prompt) for prompt in prompts], settings.max_new_tokens or 64
    pair.require_context(ids, max_new_tokens)
    wanted = Verification(
        Limits(max_new_tokens, pair.stop_ids),
        settings.speculation(settings.num_speculative_tokens),
        settings.sampling(1.0 if settings.temperature is None else settings.temperature),
        settings.samples,
        settings.seed,
        settings.new_opener(),
    )
    return check_lossless((pair.target, pair.draft), ids, wanted)


def check_accuracy(settings: VerifySettings) -> Iterable["LosslessFinding"]:
    from eval.accuracy import check_accuracy, load_benchmark
    from eval.pair import load_pair

    benchmarks = [load_benchmark(word, settings.num_prompts or 100, seed=settings.seed) for word in settings.accuracy]
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=settings.holding)
    opener = settings.new_opener()
    for benchmark in benchmarks:
        yield check_accuracy(
            pair,
            benchmark,
            max_new_tokens=settings.max_new_tokens,
            speculation=settings.speculation(settings.num_speculative_tokens),
            batch_size=settings.batch_size,
            opener=opener,
        )


def show(settings: VerifySettings) -> None:
    from rich.console import Console

    from eval.decoding.sampling import Limits
    from eval.lossless import Verification
    from eval.pair import load_pair, prompts_of
    from eval.side_by_side import show, typed_prompts

    console = Console()
    kwargs = settings.chat_template_kwargs
    from_file = prompts_of(settings.prompts, settings.num_prompts, kwargs) if settings.prompts else None
    pair = load_pair(settings.target, settings.draft, dtype=settings.dtype, holding=settings.holding)
    wanted = Verification(
        limits=Limits(settings.max_new_tokens or 128, pair.stop_ids),
        speculation=settings.speculation(settings.num_speculative_tokens),
        sampling=settings.sampling(settings.temperature or 0.0),
        seed=settings.seed,
        opener=settings.new_opener(),
    )
    prompts = typed_prompts(console, kwargs) if from_file is None else from_file
    show(pair, prompts, wanted, console)
