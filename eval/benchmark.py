"""Wall-clock tokens/s of several ways to decode the same prompts, in interleaved runs, with paired intervals.

Every group of prompts that is decoded together is decoded by every method, in a new random order each time. Groups are
the units of intervals, with all their repetitions: repetitions carry no information about other prompts.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product, zip_longest
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import FiniteFloat
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.vocabulary_head import head_ids
from eval.decoding.kv_cache import Opener, open_sequencer
from eval.decoding.sampling import (
    Decoded,
    Limits,
    Sampling,
    Seeds,
    Speculation,
    VerificationStep,
    row_seed,
    stream_seed,
)
from eval.decoding.speculative import GREEDY, SEEDS, LookupFirst, NgramLookup, plain_decode, speculative_decode
from eval.intervals import RATIO_INTERVALS, Columns, Estimate, Resampling, paired_ratio_quotient, paired_ratio_quotients
from eval.machine import clock_s
from eval.scorecard_schema import ModelIdentity, Provenance

PLAIN, DRAFT, LOOKUP = "plain decoding", "draft", "prompt lookup"
LOOKUP_FIRST, ASSISTED = "lookup first, draft otherwise", "transformers assisted generation"

Prompts = Sequence[Sequence[int]]


class Method(NamedTuple):
    """One way to decode.

    Attributes:
        kind: PLAIN, DRAFT, LOOKUP, LOOKUP_FIRST or ASSISTED.
        num_speculative_tokens: num_speculative_tokens, for LOOKUP_FIRST those of the draft; 0 for PLAIN.
        draft: Name of the draft; empty for PLAIN and LOOKUP.
    """

    kind: str
    num_speculative_tokens: int = 0
    draft: str = ""

    @property
    def label(self) -> str:
        return self.draft if self.kind == DRAFT else ", ".join(filter(None, (self.kind, self.draft)))


class CountedSteps(NamedTuple):
    """Verification steps, the tokens that they emitted, and accepted tokens by position, or only their sum."""

    steps: int
    emitted: int
    accepted: tuple[int, ...]


@dataclass(frozen=True)
class TimedRun:
    """One group of prompts decoded together.

    Attributes:
        prefill_s: Seconds to prefill; None if not measured separately.
        decode_s: Seconds from then to the last token of the last row; None if not measured separately.
        steps: Verification steps of every row; empty without a draft, or if unknown.
        counted: By an engine; None if unknown.
        ttft_s: Seconds to the first token of every request; empty if not measured.
        tpot_s: Seconds per token after the first, of every request with several.
        responses: Token ids that an engine returned.
    """

    tokens: int
    whole_s: float
    prefill_s: float | None = None
    decode_s: float | None = None
    steps: tuple[tuple[VerificationStep, ...], ...] = ()
    counted: CountedSteps | None = None
    ttft_s: tuple[float, ...] = ()
    tpot_s: tuple[float, ...] = ()
    responses: tuple[tuple[int, ...], ...] = ()


Decode = Callable[[Prompts, Sequence[int]], TimedRun]  # decodes prompts together, given a row seed for each
Runs = dict[Method, list[dict[int, TimedRun]]]  # by method, for each repetition, by the index of the group


@dataclass(frozen=True)
class Setup:
    """Settings shared by all methods.

    Attributes:
        opener: How models are run, except by transformers.
        speculation: How drafts are used, except for their number of tokens.
        lookup_first: Prompt lookup in front of each draft; None to leave it out.
    """

    target: PreTrainedModel
    drafts: Mapping[str, PreTrainedModel]
    limits: Limits
    sampling: Sampling = GREEDY
    seeds: Seeds = SEEDS
    opener: Opener = open_sequencer
    speculation: Speculation = Speculation()  # noqa: RUF009  # never changes
    lookup_first: LookupFirst | None = None


def methods(setup: Setup, ks: Sequence[int], *, assisted: bool = False) -> dict[Method, Decode]:
    """Return every method at every k.

    Args:
        assisted: Include transformers' assisted generation, which decodes one prompt at a time.

    Raises:
        UserError: With `assisted`, if a draft has a reduced vocabulary.
    """
    found: dict[Method, Decode] = {Method(PLAIN): partial(run_plain, setup)}
    for k in ks:
        for name, draft in setup.drafts.items():
            found[Method(DRAFT, k, name)] = partial(run_drafted, setup, draft, k)
            if setup.lookup_first is not None:
                run = partial(run_drafted, setup, draft, k, lookup_first=setup.lookup_first)
                found[Method(LOOKUP_FIRST, k, name)] = run
            if assisted:
                if head_ids(draft) is not None:
                    raise UserError(
                        f"--assisted: {draft.name_or_path} has a reduced vocabulary, but transformers reads column k "
                        "of the draft's logits as token k. Remove --assisted."
                    )
                found[Method(ASSISTED, k, name)] = partial(run_assisted, setup, draft, k)
        found[Method(LOOKUP, k)] = partial(run_drafted, setup, NgramLookup(), k)
    return found


def run_plain(setup: Setup, prompts: Prompts, row_seeds: Sequence[int]) -> TimedRun:
    how = {"sampling": setup.sampling, "seeds": setup.seeds, "row_seeds": row_seeds, "opener": setup.opener}
    return run_of(plain_decode(setup.target, prompts, limits=setup.limits, **how))


def run_drafted(
    setup: Setup,
    draft: PreTrainedModel | NgramLookup,
    num_speculative_tokens: int,
    prompts: Prompts,
    row_seeds: Sequence[int],
    *,
    lookup_first: LookupFirst | None = None,
) -> TimedRun:
    is_lookup = isinstance(draft, NgramLookup)  # which has no confidence
    speculation = (
        Speculation(num_speculative_tokens)
        if is_lookup
        else replace(setup.speculation, num_speculative_tokens=num_speculative_tokens)
    )
    return run_of(
        speculative_decode(
            setup.target,
            draft,
            prompts,
            limits=setup.limits,
            speculation=speculation,
            sampling=setup.sampling,
            seeds=setup.seeds,
            row_seeds=row_seeds,
            opener=setup.opener,
            lookup_first=lookup_first,
        )
    )


def run_of(decoded: Sequence[Decoded]) -> TimedRun:
    prefill_s, decode_s = decoded[0].prefill_s, max(each.decode_s for each in decoded)
    tokens = sum(len(each.token_ids) for each in decoded)
    return TimedRun(tokens, prefill_s + decode_s, prefill_s, decode_s, tuple(each.steps for each in decoded))


def run_assisted(
    setup: Setup, draft: PreTrainedModel, num_speculative_tokens: int, prompts: Prompts, row_seeds: Sequence[int]
) -> TimedRun:
    """Run transformers' assisted generation; its confidence threshold stops after the doubtful token, not before it."""
    [prompt], [row] = prompts, row_seeds
    ids_1T = torch.tensor([list(prompt)], device=setup.target.device)
    config = draft.generation_config
    assert config is not None
    config.num_assistant_tokens = num_speculative_tokens
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = setup.speculation.draft_p_min
    sampling, chosen = setup.sampling, {"do_sample": False}
    if not sampling.is_greedy:
        chosen = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p or None,
        }
    torch.manual_seed(stream_seed(setup.seeds.target, row))
    generate: Any = setup.target.generate  # not typed for assistants
    start_s = clock_s(ids_1T.device)
    output_1T = generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        assistant_model=draft,
        max_new_tokens=setup.limits.max_new_tokens,
        eos_token_id=sorted(setup.limits.stop_ids) or None,
        pad_token_id=0,
        repetition_penalty=sampling.repetition_penalty,
        **chosen,
    )
    return TimedRun(output_1T.shape[1] - ids_1T.shape[1], clock_s(ids_1T.device) - start_s)


# Interleaved runs


def groups_of(prompts: Prompts, batch: int) -> list[Prompts]:
    return [prompts[start : start + batch] for start in range(0, len(prompts), batch)]


def warm_up(decoders: Mapping[Method, Decode], groups: Sequence[Prompts]) -> None:
    for index, group in enumerate(groups):
        for decode in decoders.values():
            decode(group, row_seeds_of(groups, index, 0))


def row_seeds_of(groups: Sequence[Prompts], index: int, repeat: int) -> list[int]:
    """Return a seed for each prompt of a group, unique per repetition, equal for all methods and batch sizes."""
    first = sum(len(group) for group in groups[:index])
    return [row_seed(first + row, repeat) for row in range(len(groups[index]))]


def interleave(
    decoders: Mapping[Method, Decode],
    groups: Sequence[Prompts],
    turns: Iterable[tuple[int, int]],
    rng: np.random.Generator,
    *,
    is_enough: Callable[[Runs], bool] | None = None,
) -> Runs:
    """Decode every group by every method, in every repetition.

    Args:
        turns: (repetition, index of a group) pairs; every method decodes the group once per pair.
        is_enough: Asked after every turn; if true, the remaining turns are left out.
    """
    names = list(decoders)
    runs: Runs = {name: [] for name in names}
    for repeat, index in turns:
        for chosen in rng.permutation(len(names)):
            name = names[chosen]
            if len(runs[name]) <= repeat:
                runs[name].append({})
            runs[name][repeat][index] = decoders[name](groups[index], row_seeds_of(groups, index, repeat))
        if is_enough is not None and is_enough(runs):
            break
    return runs


LEAST_GROUPS = 12  # before --precision stops, as simulated (docs/evaluate.md)


def reached_precision(runs: Runs, resampling: Resampling) -> float | None:
    """Return the widest interval's half-width among the drafts' speedups at their best k, as a fraction of the speedup.

    None below LEAST_GROUPS groups.
    """
    if len(runs[Method(PLAIN)][0]) < LEAST_GROUPS:
        return None
    intervals = [row.speedup for row in best_of_each(runs, resampling) if row.method in (DRAFT, LOOKUP_FIRST)]
    return max(math.sqrt(high / low) - 1 for low, high in (each.interval for each in intervals if each.interval))


def columns(runs: Runs, method: Method, part: Literal["whole_s", "decode_s"] = "whole_s") -> Columns | None:
    """Return seconds and tokens of every group, over all repetitions; None if such seconds were not measured."""
    units = [[repeat[index] for repeat in runs[method]] for index in sorted(runs[method][0])]
    if any(getattr(run, part) is None for unit in units for run in unit):
        return None
    seconds = [sum(getattr(run, part) for run in unit) for unit in units]
    return seconds, [sum(run.tokens for run in unit) for unit in units]


# Figures


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Milliseconds of a mean verification step: the draft, the target, and the loop around them."""

    draft: FiniteFloat
    verify: FiniteFloat
    rest: FiniteFloat


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """Results of one method at one concurrency.

    Attributes:
        method: Its kind; `draft` names its draft, `num_speculative_tokens` is 0 for plain decoding.
        speedup: Wall-clock, over plain decoding at the same concurrency, prefill included.
        decode_speedup: Without prefill; null if not measured separately.
        ttft_ms: Time to first token, median over requests.
        tpot_ms: Time per output token after the first, median over requests.
        acceptance_length: Mean tokens emitted per verification step; null for plain decoding.
        accepted_by_position: Accepted tokens per verification step, by position; null if not reported. In vLLM they
            include tokens accepted beyond the end of a text.
        replayed_by_position: The same, predicted by replay over an engine's greedy responses without a draft.
    """

    method: str
    draft: str | None
    num_speculative_tokens: int
    tokens: int
    tokens_per_s: FiniteFloat
    speedup: Estimate
    decode_speedup: Estimate | None
    ttft_ms: FiniteFloat | None
    tpot_ms: FiniteFloat | None
    acceptance_length: FiniteFloat | None
    accepted_by_position: tuple[FiniteFloat, ...] | None
    step_ms: StepParts | None
    concurrency: int = 1
    replayed_by_position: tuple[FiniteFloat, ...] | None = None

    @property
    def key(self) -> Method:
        return Method(self.method, self.num_speculative_tokens, self.draft or "")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Speedup of a method over another in the same runs, with a simultaneous interval (eval/intervals.py).

    The best of several, picked and judged on the same runs, owes some of its lead to luck; the interval accounts for
    it.
    """

    method: str
    draft: str | None
    num_speculative_tokens: int
    over: str
    speedup: Estimate
    concurrency: int = 1


@dataclass(frozen=True, kw_only=True)
class BenchmarkFile:
    """The file that `widedraft benchmark --out` writes.

    Attributes:
        best: Each method at its best k over plain decoding, and over other drafts and prompt lookup at their best k.
        engine: Name and version; empty for our own decoding loop.
        prompts: By concurrency; groups decoded at once are the units of intervals.
    """

    format: Literal["widedraft.benchmark/3"] = "widedraft.benchmark/3"
    target: ModelIdentity
    drafts: dict[str, ModelIdentity]
    settings: dict[str, Any]
    engine: str = ""
    prompts: dict[int, int]
    rows: tuple[MethodRow, ...]
    best: tuple[Comparison, ...]
    confidence: float
    intervals: str = RATIO_INTERVALS
    threads: int
    provenance: Provenance


def method_row(method: Method, runs: Runs, resampling: Resampling) -> MethodRow:
    plain = Method(PLAIN)
    own = [run for repeat in runs[method] for run in repeat.values()]
    steps = [step for run in own for row in run.steps for step in row]
    whole, whole_plain = columns(runs, method), columns(runs, plain)
    assert whole is not None
    assert whole_plain is not None
    decode, decode_plain = columns(runs, method, "decode_s"), columns(runs, plain, "decode_s")
    counted = CountedSteps(0, 0, ()) if method == plain else counts_of(method, own)
    return MethodRow(
        method=method.kind,
        draft=method.draft or None,
        num_speculative_tokens=method.num_speculative_tokens,
        tokens=sum(run.tokens for run in own),
        tokens_per_s=sum(whole[1]) / sum(whole[0]),
        speedup=paired_ratio_quotient(whole_plain, whole, resampling),
        decode_speedup=None
        if not (decode and decode_plain)
        else paired_ratio_quotient(decode_plain, decode, resampling),
        ttft_ms=median_ms([seconds for run in own for seconds in run.ttft_s]),
        tpot_ms=median_ms([seconds for run in own for seconds in run.tpot_s]),
        acceptance_length=counted.emitted / counted.steps if counted.steps else None,
        accepted_by_position=tuple(count / counted.steps for count in counted.accepted)
        if counted.steps and len(counted.accepted) == method.num_speculative_tokens
        else None,
        step_ms=step_parts(own) if steps else None,
    )


def median_ms(seconds: Sequence[float]) -> float | None:
    return 1000 * median(seconds) if seconds else None


def counts_of(method: Method, runs: Sequence[TimedRun]) -> CountedSteps:
    """Sum the counts of several runs."""
    steps = [step.accepted for run in runs for row in run.steps for step in row]
    if steps:
        positions = range(max(method.num_speculative_tokens, *steps))
        by_position = tuple(sum(accepted > position for accepted in steps) for position in positions)
        return CountedSteps(len(steps), len(steps) + sum(steps), by_position)
    counted = [run.counted for run in runs if run.counted is not None]
    by_position = zip_longest(*(each.accepted for each in counted), fillvalue=0)
    return CountedSteps(
        sum(each.steps for each in counted), sum(each.emitted for each in counted), tuple(map(sum, by_position))
    )


def step_parts(runs: Sequence[TimedRun]) -> StepParts:
    """Split the time of a batch's mean verification step; its longest row took part in all of them."""
    steps = [step for run in runs for step in max(run.steps, key=len)]
    draft_s, verify_s = sum(each.draft_s for each in steps), sum(each.verify_s for each in steps)
    rest_s = sum(run.decode_s or 0 for run in runs) - draft_s - verify_s
    draft, verify, rest = (1000 * part / len(steps) for part in (draft_s, verify_s, rest_s))
    return StepParts(draft=draft, verify=verify, rest=rest)


def best_of_each(runs: Runs, resampling: Resampling) -> list[Comparison]:
    """Compare each kind of method and draft, at its fastest k, with plain decoding, prefill included."""
    compared = [method for method in runs if method.kind in (DRAFT, LOOKUP, LOOKUP_FIRST)]
    found = compare([(method, Method(PLAIN)) for method in compared], runs, resampling)
    best: dict[tuple[str, str], Comparison] = {}
    for method, row in zip(compared, found, strict=True):
        held = best.get((method.kind, method.draft))
        if held is None or row.speedup.value > held.speedup.value:
            best[method.kind, method.draft] = row
    return list(best.values())


def over_others(best: Sequence[Comparison], runs: Runs, resampling: Resampling) -> list[Comparison]:
    """Compare the fastest draft with every other, and every draft with prompt lookup, each at its best k."""
    drafted = [row for row in best if row.method in (DRAFT, LOOKUP_FIRST)]
    fastest: dict[str | None, Comparison] = {}
    for row in sorted(drafted, key=lambda row: row.speedup.value):
        fastest[row.draft] = row  # overwrites slower entries of the same draft
    first, *others = sorted(fastest.values(), key=lambda row: -row.speedup.value)
    methods_of = {name: [m for m in runs if m.draft == name and m.kind in (DRAFT, LOOKUP_FIRST)] for name in fastest}
    rows = []
    if others:
        pairs = [pair for a, b in permutations(methods_of.values(), 2) for pair in product(a, b)]
        found = dict(zip(pairs, compare(pairs, runs, resampling), strict=True))
        rows += [found[method_of(first), method_of(row)] for row in others]
    lookups = [method for method in runs if method.kind == LOOKUP]
    pairs = [pair for each in methods_of.values() for pair in product(each, lookups)]
    found = dict(zip(pairs, compare(pairs, runs, resampling), strict=True))
    best_lookup = [method_of(row) for row in best if row.method == LOOKUP]
    return rows + [found[method_of(row), lookup] for lookup in best_lookup for row in drafted]


def compare(pairs: Sequence[tuple[Method, Method]], runs: Runs, resampling: Resampling) -> list[Comparison]:
    """Compare pairs of methods, prefill included, with simultaneous intervals."""
    spent = [(columns(runs, over), columns(runs, method)) for method, over in pairs]
    known = [(over, own) for over, own in spent if over is not None and own is not None]
    assert len(known) == len(pairs)
    estimates = paired_ratio_quotients(known, resampling) if pairs else []
    return [
        Comparison(
            method=method.kind,
            draft=method.draft or None,
            num_speculative_tokens=method.num_speculative_tokens,
            over=f"{over.label}, k = {over.num_speculative_tokens}" if over.num_speculative_tokens else over.label,
            speedup=estimate,
        )
        for (method, over), estimate in zip(pairs, estimates, strict=True)
    ]


def method_of(row: Comparison) -> Method:
    return Method(row.method, row.num_speculative_tokens, row.draft or "")


def decision(interval: tuple[float, float] | None) -> str:
    """Return a direction only if the whole interval is on one side of 1."""
    if interval is None or interval[0] <= 1 <= interval[1]:
        return "not decided"
    return "faster" if interval[0] > 1 else "slower"
