"""The target's step with several numbers of threads, in turns; and the number that `auto` picks by it.

More threads are not always faster: those of small models wait for each other longer than they compute, and where other
programs run they wait for a core that is not given to them, spinning all the while.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.sharing import Share
from eval.latency.machine import default_threads, torch_threads
from eval.latency.steps import Setting, hold_context, time_step
from eval.records.evidence import StepEvidence, ThreadStep, threads_words

Asked = int | Literal["auto"] | None

CONTEXT = 32  # tokens before the steps that `auto` takes
VISITS = 6  # of every number of threads, in turns
VISIT_S = 0.05  # of a visit at least: an interrupted thread stands still for milliseconds, now and then
MOST_S = 20.0  # after which no further turn is taken
CLOSE = 1.03  # times the fastest: of numbers so close the smallest is picked, which leaves cores to others


@dataclass(frozen=True)
class Threads:
    """With how many threads something runs.

    Attributes:
        count: So many.
        chosen_from: What the target's step took with each number that was tried, where `auto` picked.
    """

    count: int
    chosen_from: tuple[ThreadStep, ...] = ()

    def noted(self, evidence: StepEvidence | None) -> StepEvidence | None:
        """The evidence of what ran so, with what this number was chosen from."""
        return None if evidence is None else replace(evidence, chosen_from=self.chosen_from)


@contextmanager
def chosen_threads(asked: Asked, load_target: Callable[[], PreTrainedModel], *, batch: int = 1) -> Iterator[Threads]:
    """Run the block with the threads that were asked for; `auto` measures steps first, and says which it picked.

    Args:
        asked: How many.
        load_target: Gives the model whose step decides; called for `auto` alone.
        batch: Rows of that step.

    Raises:
        UserError: If `auto` is asked for and the model is on a GPU, or reads one text at a time and batch is larger.
    """
    chosen = choose_threads(asked, load_target, batch=batch)
    with torch_threads(chosen.count):
        yield chosen


def choose_threads(asked: Asked, load_target: Callable[[], PreTrainedModel], *, batch: int = 1) -> Threads:
    """The threads that were asked for; arguments and errors as of chosen_threads."""
    if asked != "auto":
        return Threads(asked or default_threads())
    tried = tried_threads(load_target(), batch)
    picked = fastest(tried)
    taken = ", ".join(step.words for step in tried)
    print(f"num_threads=auto: {threads_words(picked)}, by the target's step ({taken})", flush=True)
    return Threads(picked, tried)


@contextmanager
def threads_of_a_share(chosen: Threads, share: Share) -> Iterator[None]:
    """Run the block with the chosen threads; where several processes do so at once, with no more than each has."""
    count = chosen.count if share.count == 1 else min(chosen.count, torch.get_num_threads())
    with torch_threads(count):
        yield


def tried_threads(target: PreTrainedModel, batch: int) -> tuple[ThreadStep, ...]:
    """What a step takes with one thread, half of those there are, and all."""
    if target.device.type != "cpu":
        raise UserError(
            f"num_threads=auto picks processor threads by the target's step, and that is taken on {target.device}. "
            "Leave num_threads out, or name a number."
        )
    return step_by_threads(target, Setting([1] * CONTEXT, batch), thread_counts(default_threads()))


def thread_counts(most: int) -> list[int]:
    """One, half of them, and all, each once."""
    return sorted({1, max(1, most // 2), most})


def fastest(tried: Sequence[ThreadStep]) -> int:
    """The smallest number whose step is close to the fastest."""
    least_ms = min(step.ms for step in tried)
    return min(step.threads for step in tried if step.ms <= CLOSE * least_ms)


@torch.inference_mode()
def step_by_threads(target: PreTrainedModel, setting: Setting, counts: Sequence[int]) -> tuple[ThreadStep, ...]:
    """Mean time of the target's step of one token with each number of threads.

    Args:
        target: On the processor.
        setting: Where the step is taken.
        counts: Numbers of threads.
    """
    held = hold_context(target, setting, [(1, False)])
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    start_s = time.monotonic()
    for visit in range(VISITS):
        if visit > 0 and time.monotonic() - start_s > MOST_S:
            break
        for count in counts:
            with torch_threads(count):
                seconds[count] += visited(lambda: time_step(held, 1, whole=False))
    return tuple(ThreadStep(threads=count, ms=1000 * sum(each) / len(each)) for count, each in seconds.items())


def visited(step: Callable[[], float]) -> list[float]:
    """Seconds of some steps behind one that does not count, since threads are made or woken in it."""
    step()
    taken = [step()]
    while sum(taken) < VISIT_S:
        taken.append(step())
    return taken
