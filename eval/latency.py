"""Time the steps of a target and its drafts, each as in decoding, in interleaved repetitions.

    target step         the target reads one token
    verify              the target reads k + 1 tokens
    draft step          the draft reads one token within a chain, each the argmax of the previous step
    draft two           the draft reads two tokens: the catch-up step after a verification step that accepted all
    prefill             a model reads the whole context

Every step but the last runs on a cache that holds the context before and after. One repetition runs every kind of step
once, in a new random order, so that drift of the machine affects all of them equally; repetitions before times settle
do not count.

Shape suffixes used in this file:
    B = rows, T = tokens fed, N = resamples, R = repetitions
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from architectures.console import track
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.pruning.plan import PruningPlan
from architectures.pruning.prune import draft_config
from architectures.settings import How
from architectures.shapes import Shape, context_length
from architectures.vocabulary_head import cut_head, head_ids, tokens_of
from eval.decoding.cuda_graphs import CapturedSteps, new_opener
from eval.decoding.kv_cache import Feed, Opener, Sequencer, open_sequencer, takes_rows
from eval.intervals import Estimate, Resampling, percentile_bounds
from eval.large_targets import free_bytes
from eval.machine import Step, clock_s
from eval.models import bytes_to_pack
from eval.scorecard_schema import TARGET, DraftSteps, GridCell, Percentile, ScoredLatency, StepTime, VerifyStep

CHAIN_LENGTH = 8  # draft steps timed together, each fed the argmax of the previous one
WARM_UP_WINDOW = 5  # repetitions whose median is compared with that of the window before
WARM_UP_LIMIT = 20  # repetitions after which timing starts, stable or not
STABLE_CHANGE = 0.02  # relative change of the median below which warm-up ends
RARE, RARE_REPEATS = 99, 200  # a percentile is only reported if at least two repetitions lie beyond it


class Kind(NamedTuple):
    """One kind of step.

    Attributes:
        tokens: Fed at once to each row.
        is_prefill: True if they are the context, on an empty cache.
    """

    model: str
    tokens: int
    is_prefill: bool = False


@dataclass(frozen=True)
class Setting:
    """Conditions under which steps are timed.

    Attributes:
        context_ids: Tokens in every row of every cache before each step.
    """

    context_ids: Sequence[int]
    batch: int = 1
    opener: Opener = open_sequencer


# The steps


@dataclass
class Held:
    """A model that has read a context in every row."""

    sequencer: Sequencer
    setting: Setting

    def feed(self, ids_BT: Tensor, *, after: int = 0, whole: bool) -> Tensor:
        """Return the most likely next tokens after feeding tokens `after` positions behind the context."""
        span = (len(self.setting.context_ids) + after, ids_BT.shape[1])
        columns_BT = self.sequencer.feed(ids_BT, [span] * self.setting.batch, whole=whole).argmax(dim=-1)
        return tokens_of(columns_BT, head_ids(self.sequencer.model))

    def some_tokens(self, count: int) -> Tensor:
        """Return ids_BT from the context, repeated if it is short; the ids do not affect the time."""
        ids_T = torch.tensor(repeated(self.setting.context_ids, count), device=self.sequencer.model.device)
        return ids_T.repeat(self.setting.batch, 1)


def repeated(token_ids: Sequence[int], length: int) -> list[int]:
    """Return the first `length` tokens of a sequence repeated indefinitely."""
    return (list(token_ids) * -(-length // len(token_ids)))[:length]


def hold_context(model: PreTrainedModel, setting: Setting, feeds: Sequence[Feed] = ()) -> Held:
    headroom = max(CHAIN_LENGTH, *(tokens for tokens, _ in feeds)) if feeds else 0
    length = len(setting.context_ids)
    sequencer = setting.opener(
        model,
        [setting.context_ids] * setting.batch,
        capacity=length + headroom,
        vocab_size=model.config.get_text_config(decoder=True).vocab_size,
        feeds=feeds,
    )
    held = Held(sequencer, setting)
    sequencer.feed(held.some_tokens(length), [(0, length)] * setting.batch, whole=False)
    return held


def target_steps(target: PreTrainedModel, setting: Setting, ks: Iterable[int]) -> dict[Kind, Step]:
    verified = sorted({k + 1 for k in ks})
    verifier = hold_context(target, setting, [(1, False), *((tokens, True) for tokens in verified)])
    steps: dict[Kind, Step] = {Kind(TARGET, 1): partial(time_step, verifier, 1, whole=False)}
    return steps | {Kind(TARGET, tokens): partial(time_step, verifier, tokens, whole=True) for tokens in verified}


def draft_steps(name: str, draft: PreTrainedModel, setting: Setting) -> dict[Kind, Step]:
    drafter = hold_context(draft, setting, [(1, False), (2, False)])
    return {Kind(name, 1): partial(time_chain, drafter), Kind(name, 2): partial(time_step, drafter, 2, whole=False)}


def decoding_steps(models: Mapping[str, PreTrainedModel], setting: Setting, ks: Iterable[int]) -> dict[Kind, Step]:
    steps = target_steps(models[TARGET], setting, ks)
    for name, model in models.items():
        if name != TARGET:
            steps |= draft_steps(name, model, setting)
    return steps


def prefill_steps(models: Mapping[str, PreTrainedModel], setting: Setting) -> dict[Kind, Step]:
    def time_prefill(model: PreTrainedModel) -> float:
        """Return seconds until the next token is known, from an empty cache."""
        start_s = clock_s(model.device)
        hold_context(model, setting)
        return clock_s(model.device) - start_s

    length = len(setting.context_ids)
    return {Kind(name, length, is_prefill=True): partial(time_prefill, model) for name, model in models.items()}


def time_step(held: Held, num_tokens: int, *, whole: bool) -> float:
    """Return seconds to feed tokens at once until the next token after each, or after the last, is on the host."""
    device, ids_BT = held.sequencer.model.device, held.some_tokens(num_tokens)
    start_s = clock_s(device)
    held.feed(ids_BT, whole=whole).tolist()
    return clock_s(device) - start_s


def time_chain(held: Held) -> float:
    """Return seconds per step of a chain in which each token is the model's own choice."""
    device, ids_B1 = held.sequencer.model.device, held.some_tokens(1)
    start_s = clock_s(device)
    for step in range(CHAIN_LENGTH):
        ids_B1 = held.feed(ids_B1, after=step, whole=False)
    return (clock_s(device) - start_s) / CHAIN_LENGTH


# Timing


@dataclass(frozen=True)
class Timed:
    """Seconds of every kind of step in every repetition.

    Attributes:
        warm_up_repeats: Untimed repetitions before them.
        is_settled: True if warm-up ended because times had settled.
    """

    seconds: Mapping[Kind, Sequence[float]]
    warm_up_repeats: int
    is_settled: bool


def time_together(
    steps: Mapping[Kind, Step],
    rng: np.random.Generator,
    repetitions: Iterable[object],
    *,
    max_warm_ups: int = WARM_UP_LIMIT,
) -> Timed:
    """Time steps in interleaved repetitions, so that no model finds its weights warmer in a cache than in decoding.

    Args:
        rng: Draws the order of every repetition.
        repetitions: One item for each timed repetition; time spent by the iterator does not count.
        max_warm_ups: Repetitions after which timing starts, stable or not.
    """

    def run_once() -> dict[Kind, float]:
        kinds = list(steps)
        return {kinds[index]: steps[kinds[index]]() for index in rng.permutation(len(kinds))}

    warm_up_repeats, is_settled = warm_up(lambda: sum(run_once().values()), max_warm_ups)
    seconds: dict[Kind, list[float]] = {kind: [] for kind in steps}
    for _ in repetitions:
        for kind, elapsed_s in run_once().items():
            seconds[kind].append(elapsed_s)
    return Timed(seconds, warm_up_repeats, is_settled)


def warm_up(run: Step, limit: int = WARM_UP_LIMIT) -> tuple[int, bool]:
    """Run until times settle, at most `limit` times; return the number of runs and True if settled."""
    totals_s: list[float] = []
    while len(totals_s) < limit:
        totals_s.append(run())
        if has_settled(totals_s):
            return len(totals_s), True
    return len(totals_s), False


def has_settled(totals_s: Sequence[float]) -> bool:
    if len(totals_s) < 2 * WARM_UP_WINDOW:
        return False
    before = np.median(totals_s[-2 * WARM_UP_WINDOW : -WARM_UP_WINDOW])
    return bool(abs(np.median(totals_s[-WARM_UP_WINDOW:]) / before - 1) < STABLE_CHANGE)


def summarise(values_s: Sequence[float], confidence: float) -> StepTime:
    """Return percentiles in milliseconds, each with distribution-free bounds."""
    values_ms = 1000 * np.asarray(values_s)

    def percentile(percent: int) -> Percentile:
        bounds_ms = percentile_bounds(values_ms, percent / 100, confidence)
        return Percentile(float(np.percentile(values_ms, percent)), None if bounds_ms == (None, None) else bounds_ms)

    low, high = percentile_bounds(values_ms, 0.5, confidence)
    return StepTime(
        p10_ms=percentile(10),
        p50_ms=Estimate(float(np.median(values_ms)), None if low is None or high is None else (low, high)),
        p90_ms=percentile(90),
        p99_ms=percentile(RARE) if len(values_ms) >= RARE_REPEATS else None,
    )


@torch.inference_mode()
def measure_latency(
    models: Mapping[str, PreTrainedModel],
    setting: Setting,
    *,
    ks: Sequence[int],
    repeats: int,
    resampling: Resampling,
) -> ScoredLatency:
    """Time every kind of step that decoding with these drafts takes, with a progress bar.

    Args:
        resampling: Its confidence is that of percentiles, its seed draws the order of the steps.
    """
    ticks = track(range(repeats), description="timing steps", total=repeats)
    rng = np.random.default_rng(resampling.seed)
    timed = time_together(decoding_steps(models, setting, ks), rng, ticks)
    return scored_latency(timed, setting, resampling)


def scored_latency(timed: Timed, setting: Setting, resampling: Resampling) -> ScoredLatency:
    times = {
        kind: summarise(values, resampling.confidence) for kind, values in timed.seconds.items() if not kind.is_prefill
    }
    target = times[Kind(TARGET, 1)]
    verified = [kind for kind in times if kind.model == TARGET and kind.tokens > 1]
    return ScoredLatency(
        batch=setting.batch,
        context_tokens=len(setting.context_ids),
        repeats=len(timed.seconds[Kind(TARGET, 1)]),
        warm_up_repeats=timed.warm_up_repeats,
        settled=timed.is_settled,
        target=target,
        verify=tuple(VerifyStep(num_speculative_tokens=kind.tokens - 1, **vars(times[kind])) for kind in verified),
        drafts=tuple(
            DraftSteps(
                draft=name,
                cost_ratio=times[Kind(name, 1)].median_ms / target.median_ms,
                one_token=times[Kind(name, 1)],
                two_tokens=times[Kind(name, 2)],
            )
            for name in dict.fromkeys(kind.model for kind in times if kind.model != TARGET)
        ),
    )


# The grid


@dataclass(frozen=True)
class Grid:
    """Cells to measure.

    Attributes:
        how: Measure every step this way, in addition to eager steps.
    """

    batches: Sequence[int]
    contexts: Sequence[int]
    ks: Sequence[int]
    repeats: int
    how: How = "eager"
    prefill: bool = True


def measure_grid(
    models: Mapping[str, PreTrainedModel], text_ids: Sequence[int], grid: Grid, resampling: Resampling
) -> tuple[GridCell, ...]:
    """Measure every cell.

    Args:
        text_ids: Fill the caches, repeated if a context is longer.
        resampling: How intervals are made; the seed also draws the order of the steps.

    Raises:
        UserError: If a model does not support a batch size, or its steps cannot be captured.
    """
    require_rows(models, grid.batches)
    ways: list[How] = ["eager"] if grid.how == "eager" else ["eager", grid.how]
    openers: dict[How, Opener] = {how: new_opener(how) for how in ways}
    for opener in openers.values():
        if isinstance(opener, CapturedSteps):
            for model in models.values():
                opener.require(model)
    cells: list[GridCell] = []
    for how, batch, context in track(
        list(product(ways, grid.batches, grid.contexts)),
        description="timing steps",
        total=len(ways) * len(grid.batches) * len(grid.contexts),
    ):
        setting = Setting(repeated(text_ids, context), batch, openers[how])
        with torch.inference_mode():
            steps = decoding_steps(models, setting, grid.ks)
            if grid.prefill and how == "eager":  # prompts are read by eager steps
                steps |= prefill_steps(models, setting)
            timed = time_together(steps, np.random.default_rng(resampling.seed), range(grid.repeats))
        scored = scored_latency(timed, setting, resampling)
        prefills = {kind.model: values for kind, values in timed.seconds.items() if kind.is_prefill}
        prefill = {name: summarise(values, resampling.confidence) for name, values in prefills.items()}
        cells.append(GridCell(**vars(scored), how=how, prefill=prefill))
    return tuple(cells)


def require_rows(models: Mapping[str, PreTrainedModel], batches: Iterable[int]) -> None:
    largest = max(batches)
    for model in models.values():
        if largest > 1 and not takes_rows(model):
            raise UserError(
                f"--batch-sizes {largest}: model type {model.config.model_type} ({model.name_or_path}) decodes only "
                "one sequence at a time. Use --batch-sizes 1."
            )


# Memory


def require_memory(models: Mapping[str, PreTrainedModel], *, batch: int, context: int) -> None:
    """Raise UserError if a sequence exceeds a model's context length, or caches and copies exceed memory."""
    problem = lack_of_memory(models, batch=batch, context=context)
    if problem is not None:
        raise UserError(f"--batch-sizes {batch} with --contexts {context}: {problem}")


def lack_of_memory(models: Mapping[str, PreTrainedModel], *, batch: int, context: int) -> str | None:
    """Return why a batch at this context cannot be timed and a hint; None if it can."""
    for name, model in models.items():
        config = model.config.get_text_config(decoder=True).to_dict()
        limit = context_length(config, where=str(model.name_or_path))
        if limit is not None and context + CHAIN_LENGTH > limit.tokens:
            return (
                f"the {name} ({model.name_or_path}) has a context of {limit.tokens} tokens ({limit.origin}), but steps "
                f"add {CHAIN_LENGTH} tokens. Use a shorter context."
            )
    [device] = {model.device for model in models.values()}
    caches = sum(cache_bytes(model, batch=batch, context=context + CHAIN_LENGTH) for model in models.values())
    packed, free = sum(bytes_to_pack(model) for model in models.values()), free_bytes(device)
    if caches + packed > free:
        copies = f"packed copies of weights {packed / 2**30:.1f} GiB, " if packed else ""
        return (
            f"the KV caches need {caches / 2**30:.1f} GiB, {copies}but {device} has {free / 2**30:.1f} GiB free. Use a "
            "smaller batch or a shorter context."
        )
    return None


def cache_bytes(model: PreTrainedModel, *, batch: int, context: int) -> int:
    shape = shape_of(model)
    return 0 if shape is None else batch * context * shape.kv_bytes_per_token(dtype_name(model))


def shape_of(model: PreTrainedModel) -> Shape | None:
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder or config.model_type not in FAMILIES:
        return None
    sizes = {key: value for key, value in config.to_dict().items() if key != "quantization_config"}
    return Shape.from_config(sizes, where=str(model.name_or_path))


def dtype_name(model: PreTrainedModel) -> str:
    return str(model.dtype).removeprefix("torch.")


# Untrained drafts: the time of a step depends on a model's shape, not on its weights


def untrained_models(target: PreTrainedModel, shapes: Sequence[Shape]) -> list[PreTrainedModel]:
    """Make a model with random weights for every shape, of the target's family and dtype, on its device.

    Raises:
        UserError: If they do not all fit next to the target.
    """
    needed = sum(shape.parameters() for shape in shapes) * torch.finfo(target.dtype).bits // 8
    free = free_bytes(target.device)
    if needed > free:
        raise UserError(
            f"the untrained drafts need {needed / 2**30:.1f} GiB, but {target.device} has "
            f"{free / 2**30:.1f} GiB free. Use fewer or smaller shapes."
        )
    return [untrained_model(target, shape) for shape in shapes]


def untrained_model(target: PreTrainedModel, shape: Shape) -> PreTrainedModel:
    plan = PruningPlan(
        source_layers=tuple(range(shape.layers)), source=source_shape(target), draft=shape, method="none"
    )
    config: dict[str, Any] = draft_config(target.config.get_text_config(decoder=True).to_dict(), plan, None)
    with target.device:
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**config), dtype=target.dtype, trust_remote_code=False
        )
    if shape.head_vocab:
        cut_head(model, torch.arange(shape.head_vocab, device=target.device))
    return model.eval()


def source_shape(target: PreTrainedModel) -> Shape:
    """Return the target's shape; UserError if drafts of its family are not supported."""
    shape = shape_of(target)
    if shape is None:
        raise UserError(f"{target.name_or_path}: drafts cannot be pruned from model type {target.config.model_type}.")
    return shape
