"""How long each step of decoding takes at batch 1: draft steps in a chain, the draft's catch-up step, target, verify.

All kinds of step are timed in turn, in an order drawn anew for every repetition, so that a drift of the machine meets
all of them alike and no model finds its weights warmer than decoding would leave them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import Tensor
from transformers import PreTrainedModel

from architectures.progress import track
from eval.acceptance import Resampling
from eval.clock import clock_s
from eval.sequencer import Sequencer, open_sequencer
from eval.speedup import StepTimes

CHAIN_LENGTH = 8  # draft steps timed together, each fed the argmax of the one before
WARM_UP_WINDOW = 5  # repetitions whose median is compared with that of as many before
WARM_UP_LIMIT = 20  # repetitions after which timing starts, stable or not
STABLE_CHANGE = 0.02  # relative change of the median below which warm-up ends

Kind = tuple[str, int]  # "target" or "draft <name>", and the tokens fed at once
Step = Callable[[], float]


@dataclass(frozen=True)
class StepTime:
    """Seconds of one kind of step over all repetitions."""

    median_s: float
    interval_s: tuple[float, float] | None
    p10_s: float
    p90_s: float


@dataclass(frozen=True)
class Latency:
    """Step times of one target and several drafts, measured together.

    Attributes:
        context: Tokens in the caches before each step.
        repeats: Timed repetitions of every step.
        warm_up_repeats: Untimed ones before them.
        is_settled: Whether warm-up ended because the times had settled.
        target: The target, one token.
        verify: The target, lookahead + 1 tokens, by lookahead.
        draft: Each draft, one token within a chain of CHAIN_LENGTH, by the draft's name.
        draft_two: Each draft, two tokens at once.
    """

    context: int
    repeats: int
    warm_up_repeats: int
    is_settled: bool
    target: StepTime
    verify: Mapping[int, StepTime]
    draft: Mapping[str, StepTime]
    draft_two: Mapping[str, StepTime]

    def step_times(self, draft: str) -> StepTimes:
        """The medians of the target and one draft."""
        return StepTimes(
            target_s=self.target.median_s,
            draft_s=self.draft[draft].median_s,
            draft_two_s=self.draft_two[draft].median_s,
            verify_s={lookahead: time.median_s for lookahead, time in self.verify.items()},
        )


@torch.inference_mode()
def measure_latency(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    context_ids: Sequence[int],
    *,
    lookaheads: Sequence[int],
    repeats: int,
    resampling: Resampling,
) -> Latency:
    """Time every kind of step that decoding with these drafts takes.

    Args:
        target: Verifies.
        drafts: Propose; by name.
        context_ids: Tokens to hold in every cache; its length is the context.
        lookaheads: Numbers of draft tokens whose verification is timed.
        repeats: Timed repetitions of every step.
        resampling: How the intervals of the medians are made; the seed also draws the order of the steps.
    """
    steps = build_steps(target, drafts, context_ids, lookaheads)
    rng = np.random.default_rng(resampling.seed)
    warm_up_repeats, is_settled = warm_up(steps, rng)
    seconds: dict[Kind, list[float]] = {kind: [] for kind in steps}
    for _ in track(range(repeats), description="timing steps", total=repeats):
        for kind, elapsed_s in run_once(steps, rng).items():
            seconds[kind].append(elapsed_s)
    times = {kind: summarise(values, resampling) for kind, values in seconds.items()}
    return Latency(
        context=len(context_ids),
        repeats=repeats,
        warm_up_repeats=warm_up_repeats,
        is_settled=is_settled,
        target=times["target", 1],
        verify={lookahead: times["target", lookahead + 1] for lookahead in lookaheads},
        draft={name: times[f"draft {name}", 1] for name in drafts},
        draft_two={name: times[f"draft {name}", 2] for name in drafts},
    )


def build_steps(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    context_ids: Sequence[int],
    lookaheads: Sequence[int],
) -> dict[Kind, Step]:
    """A timer for every kind of step, each on a cache that holds the context before and after."""
    verifier = hold_context(target, context_ids, room=max(lookaheads, default=0) + 1)
    steps: dict[Kind, Step] = {
        ("target", num_tokens): partial(time_step, verifier, tokens_to_feed(verifier, context_ids, num_tokens))
        for num_tokens in sorted({1, *(lookahead + 1 for lookahead in lookaheads)})
    }
    for name, draft in drafts.items():
        drafter = hold_context(draft, context_ids, room=max(CHAIN_LENGTH, 2))
        steps[f"draft {name}", 1] = partial(time_chain, drafter, tokens_to_feed(drafter, context_ids, 1))
        steps[f"draft {name}", 2] = partial(time_step, drafter, tokens_to_feed(drafter, context_ids, 2), whole=False)
    return steps


@dataclass
class Held:
    """A model that has read a text, and the text's length."""

    sequencer: Sequencer
    length: int

    def feed(self, ids_1T: Tensor, *, after: int = 0, whole: bool) -> Tensor:
        """The most likely next tokens when some are fed behind the text and so many more."""
        span = (self.length + after, ids_1T.shape[1])
        return self.sequencer.feed(ids_1T, [span], whole=whole).argmax(dim=-1)


def hold_context(model: PreTrainedModel, context_ids: Sequence[int], *, room: int) -> Held:
    """A model that has read the context, with room for some more tokens."""
    length = len(context_ids)
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    sequencer = open_sequencer(model, [context_ids], capacity=length + room, vocab_size=vocab_size)
    sequencer.feed(torch.tensor([context_ids], device=model.device), [(0, length)], whole=False)
    return Held(sequencer, length)


def tokens_to_feed(held: Held, context_ids: Sequence[int], num_tokens: int) -> Tensor:
    """Tokens from the context, again and again if it is short; which ones makes no difference to the time."""
    ids_T = torch.tensor(context_ids, device=held.sequencer.model.device)
    return ids_T.repeat(-(-num_tokens // len(ids_T)))[None, :num_tokens]


def time_step(held: Held, ids_1T: Tensor, *, whole: bool = True) -> float:
    """Seconds to feed some tokens at once and know the most likely next token after each, or after the last."""
    device = held.sequencer.model.device
    start_s = clock_s(device)
    held.feed(ids_1T, whole=whole).tolist()
    return clock_s(device) - start_s


def time_chain(held: Held, ids_1T: Tensor) -> float:
    """Seconds per step of a chain in which each token is the model's own choice after the one before."""
    device = held.sequencer.model.device
    start_s = clock_s(device)
    for step in range(CHAIN_LENGTH):
        ids_1T = held.feed(ids_1T, after=step, whole=False)
    return (clock_s(device) - start_s) / CHAIN_LENGTH


def run_once(steps: Mapping[Kind, Step], rng: np.random.Generator) -> dict[Kind, float]:
    """Seconds of every kind of step, run in random order."""
    kinds = list(steps)
    return {kinds[place]: steps[kinds[place]]() for place in rng.permutation(len(kinds))}


def warm_up(steps: Mapping[Kind, Step], rng: np.random.Generator) -> tuple[int, bool]:
    """Run all steps until their total time settles; returns how often, and whether it did."""
    totals_s: list[float] = []
    while len(totals_s) < WARM_UP_LIMIT:
        totals_s.append(sum(run_once(steps, rng).values()))
        if has_settled(totals_s):
            return len(totals_s), True
    return len(totals_s), False


def has_settled(totals_s: Sequence[float]) -> bool:
    """Whether the median of the last window differs by little from that of the window before."""
    if len(totals_s) < 2 * WARM_UP_WINDOW:
        return False
    before = np.median(totals_s[-2 * WARM_UP_WINDOW : -WARM_UP_WINDOW])
    return bool(abs(np.median(totals_s[-WARM_UP_WINDOW:]) / before - 1) < STABLE_CHANGE)


def summarise(values_s: Sequence[float], resampling: Resampling) -> StepTime:
    """Median with its bootstrap interval, and the 10th and 90th percentiles; no interval of a single value."""
    p10_s, median_s, p90_s = (float(value) for value in np.quantile(values_s, (0.1, 0.5, 0.9)))
    if len(values_s) < 2:
        return StepTime(median_s=median_s, interval_s=None, p10_s=p10_s, p90_s=p90_s)
    interval = bootstrap(
        (values_s,),
        np.median,
        n_resamples=resampling.num_resamples,
        confidence_level=resampling.confidence,
        method="percentile",
        rng=np.random.default_rng(resampling.seed),
    ).confidence_interval
    return StepTime(median_s=median_s, interval_s=(float(interval.low), float(interval.high)), p10_s=p10_s, p90_s=p90_s)


@contextmanager
def torch_threads(num_threads: int | None) -> Iterator[int]:
    """Run the block with this number of torch threads, None meaning every usable core; yields the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or usable_cores())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def usable_cores(cgroup_limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may use: its affinity, and the quota of its container where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cgroup_limit.is_file():
        quota, period = cgroup_limit.read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores
