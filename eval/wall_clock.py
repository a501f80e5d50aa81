"""Decoding with a draft, with prompt lookup and without either, in interleaved runs: speedups, and the lossless check.

Greedy texts must equal plain decoding, and their counts those of the replay. Sampled texts need not: acceptance is
random. So the very texts that were generated are replayed, and the expected number of verification steps is compared
with the observed one over the prompts by a t test.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import t as student_t
from transformers import PreTrainedModel

from architectures.console import track
from eval.decoding.sampling import Decoded, Limits, Sampling, Seeds, Speculation, row_seed
from eval.decoding.speculative import LookupFirst, NgramLookup, plain_decode, speculative_decode
from eval.intervals import Columns, Estimate, Resampling, paired_ratio_quotient
from eval.replay import ReplayCounts, count_trace, pool, rule_name
from eval.responses import Trace
from eval.scorecard_schema import LOOKUP, Agreement, Live, OverLookup, Spent, SpentByBoth, StepCounts, WayRow
from eval.speedup import StepTimes

LEAST_P = 1e-3  # correct decoding is reported to differ from the replay once in a thousand scorecards
ROUNDING = 1e-6  # of a number of verification steps that is a sum of probabilities
DRAFT = "draft"  # the way whose verification steps are compared with the replay


@dataclass(frozen=True)
class LiveWay:
    """A proposer, its number of tokens per verification step, and prompt lookup that takes precedence over a draft."""

    proposer: PreTrainedModel | NgramLookup
    num_speculative_tokens: int
    lookup_first: LookupFirst | None = None


@dataclass(frozen=True)
class LiveResponse:
    """One prompt decoded in several ways at one temperature.

    Attributes:
        recorded_ids: The target's recorded response, generated in a batch.
        others: Decoded in every other way, by its name.
    """

    recorded_ids: tuple[int, ...]
    plain: Decoded
    speculative: Decoded
    num_speculative_tokens: int
    others: Mapping[str, Decoded] = field(default_factory=dict)

    def by(self, way: str | None) -> Decoded:
        """Return the text of a way; None is plain decoding."""
        return self.plain if way is None else self.speculative if way == DRAFT else self.others[way]

    @property
    def counts(self) -> ReplayCounts:
        steps = [(step.start, step.accepted) for step in self.speculative.steps]
        return count_trace(
            steps, num_tokens=len(self.speculative.token_ids), num_speculative_tokens=self.num_speculative_tokens
        )


def decode_live(
    target: PreTrainedModel,
    ways: Mapping[str, LiveWay],
    responses: Sequence[Trace],
    *,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
    sampling: Sampling,
    seed: int,
) -> list[LiveResponse]:
    """Decode each prompt by the target only and in every way, in an order drawn per prompt.

    Args:
        ways: By name, including DRAFT.
        responses: The target's responses, whose prompts are decoded again.
        seed: Of the order and of sampling; all ways of a prompt draw the same numbers.
    """
    rng = np.random.default_rng(seed)
    names = [None, *ways]
    decoded = []
    for row, response in enumerate(
        track(
            responses,
            description=f"wall-clock decoding at T={sampling.temperature:g}",
            total=len(responses),
            works=lambda response: len(response.response_ids),
            whole=sum(len(response.response_ids) for response in responses),
        )
    ):
        shared = {
            "limits": Limits(max_new_tokens, stop_ids),
            "sampling": sampling,
            "seeds": Seeds.of(seed),
            "row_seeds": [row_seed(row)],
        }
        texts: dict[str | None, Decoded] = {}
        for index in rng.permutation(len(names)):
            name = names[index]
            if name is None:
                [texts[name]] = plain_decode(target, [response.prompt_ids], **shared)
            else:
                speculation = Speculation(ways[name].num_speculative_tokens, rule=rule_name(sampling.temperature))
                [texts[name]] = speculative_decode(
                    target,
                    ways[name].proposer,
                    [response.prompt_ids],
                    speculation=speculation,
                    lookup_first=ways[name].lookup_first,
                    **shared,
                )
        plain, speculative = texts.pop(None), texts.pop(DRAFT)
        others = {name: text for name, text in texts.items() if name is not None}
        decoded.append(
            LiveResponse(response.response_ids, plain, speculative, ways[DRAFT].num_speculative_tokens, others)
        )
    return decoded


def best_lookup(texts: Sequence[tuple[Sequence[int], Sequence[int]]], steps: StepTimes, *, max_new_tokens: int) -> int:
    """Return the number of speculative tokens at which prompt lookup is fastest along recorded (prompt, response) ids.

    A verification step is timed by the number of tokens found; without any it is a step of plain decoding.
    """
    lookup = NgramLookup()

    def seconds(num_speculative_tokens: int) -> float:
        total_s = 0.0
        for prompt_ids, response_ids in texts:
            start = 0
            while start < len(response_ids):
                limit = min(num_speculative_tokens, max_new_tokens - start - 1)
                found = lookup.continuation([*prompt_ids, *response_ids[:start]], limit) if limit else []
                timed = [count for count in steps.verify_s if count >= len(found)]
                total_s += steps.verify_s[min(timed)] if found else steps.target_s
                accepted = [ours == own for ours, own in zip(found, response_ids[start:], strict=False)]
                start += 1 + (accepted.index(False) if False in accepted else len(accepted))
        return total_s

    return min(sorted(steps.verify_s), key=seconds)


def live_record(
    draft: str,
    responses: Sequence[LiveResponse],
    ways: Mapping[str, LiveWay],
    agreement: Agreement,
    *,
    temperature: float,
    predicted: float,
    resampling: Resampling,
) -> Live:
    steps = [step for response in responses for step in response.speculative.steps]
    return Live(
        draft=draft,
        temperature=temperature,
        num_speculative_tokens=responses[0].num_speculative_tokens,
        prompts=len(responses),
        speedup=whole_speedup(responses, resampling),
        decoding_speedup=decoding_speedup(responses, resampling),
        predicted_decoding_speedup=predicted,
        plain=spent_on([response.plain for response in responses]),
        speculative=SpentByBoth(
            **vars(spent_on([response.speculative for response in responses])),
            draft_s=sum(step.draft_s for step in steps),
            verify_s=sum(step.verify_s for step in steps),
        ),
        agreement=agreement,
        ways=tuple(way_row(name, way, responses, resampling) for name, way in ways.items() if name != DRAFT),
        over_lookup=tuple(
            OverLookup(way=name, speedup=whole_speedup(responses, resampling, name, over=LOOKUP))
            for name in ways
            if name != LOOKUP
        ),
    )


def way_row(name: str, way: LiveWay, responses: Sequence[LiveResponse], resampling: Resampling) -> WayRow:
    steps = [step for response in responses for step in response.by(name).steps]
    accepted, proposed = sum(each.accepted for each in steps), sum(each.proposed for each in steps)
    return WayRow(
        way=name,
        num_speculative_tokens=way.num_speculative_tokens,
        acceptance_rate=accepted / proposed if proposed else None,
        acceptance_length=1 + accepted / len(steps),
        same_text=sum(response.by(name).token_ids == response.plain.token_ids for response in responses),
        speedup=whole_speedup(responses, resampling, name),
        decoding_speedup=decoding_speedup(responses, resampling, name),
        spent=spent_on([response.by(name) for response in responses]),
    )


def spent_on(texts: Sequence[Decoded]) -> Spent:
    num_tokens = sum(len(text.token_ids) for text in texts)
    decode_s = sum(text.decode_s for text in texts)
    return Spent(
        tokens=num_tokens,
        prefill_s=sum(text.prefill_s for text in texts),
        decode_s=decode_s,
        ms_per_token=1000 * decode_s / num_tokens,
    )


def decoding_speedup(responses: Sequence[LiveResponse], resampling: Resampling, way: str = DRAFT) -> Estimate:
    """Return plain decoding's time per token over a way's, prefill excluded."""
    plain, own = (columns(responses, each, lambda text: text.decode_s) for each in (None, way))
    return paired_ratio_quotient(plain, own, resampling)


def whole_speedup(
    responses: Sequence[LiveResponse], resampling: Resampling, way: str = DRAFT, *, over: str | None = None
) -> Estimate:
    """Return the time per token of plain decoding, or of another way, over a way's, prefill included."""
    other, own = (columns(responses, each, lambda text: text.prefill_s + text.decode_s) for each in (over, way))
    return paired_ratio_quotient(other, own, resampling)


def columns(responses: Sequence[LiveResponse], way: str | None, seconds: Callable[[Decoded], float]) -> Columns:
    """Return seconds and tokens of every prompt by a way; None is plain decoding."""
    texts = [response.by(way) for response in responses]
    return [seconds(text) for text in texts], [len(text.token_ids) for text in texts]


def compare_with_replay(
    responses: Sequence[LiveResponse], replayed: Sequence[ReplayCounts], *, is_greedy: bool
) -> Agreement:
    """Compare decoding with replay, prompt by prompt: the lossless check.

    Args:
        replayed: Counts of the replay at the same number of speculative tokens: of each recorded response if greedy,
            else of each text that was generated with the draft.
    """
    counts = [response.counts for response in responses]
    same_text = sum(response.speculative.token_ids == response.plain.token_ids for response in responses)
    same_as_recorded = sum(response.speculative.token_ids == response.recorded_ids for response in responses)
    same_counts = sum(own == expected for own, expected in zip(counts, replayed, strict=True))
    p_value = None if is_greedy else steps_p_value(counts, replayed)
    return Agreement(
        exact=len(responses) == same_text == same_as_recorded == same_counts if p_value is None else p_value >= LEAST_P,
        same_text=same_text,
        same_as_recorded=same_as_recorded,
        same_counts=same_counts,
        loop=step_counts(pool(counts)),
        replay=step_counts(pool(replayed)),
        p_value=p_value,
    )


def step_counts(counts: ReplayCounts) -> StepCounts:
    return StepCounts(steps=counts.steps, accepted=counts.accepted_tokens, proposed=counts.proposed_tokens)


def steps_p_value(counted: Sequence[ReplayCounts], expected: Sequence[ReplayCounts]) -> float:
    """Return the p-value of a t test over prompts that decoding takes the expected number of steps; 1 if it is exact.

    A single prompt gives 1, as it cannot be tested.
    """
    differences = [own.steps - due.steps for own, due in zip(counted, expected, strict=True)]
    if max(differences) - min(differences) < ROUNDING:
        return 1.0 if abs(differences[0]) < ROUNDING or len(differences) == 1 else 0.0
    error = np.std(differences, ddof=1) / len(differences) ** 0.5
    return float(2 * student_t.sf(abs(np.mean(differences)) / error, len(differences) - 1))
