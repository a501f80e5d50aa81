"""What a policy is tuned on: the target's answers, what the draft does along them, and step times of both."""

from collections.abc import Iterator, Sequence

from architectures.progress.track import track
from eval.acceptance.estimates import Resampling
from eval.acceptance.replay import replay_pair, rule_name
from eval.acceptance.speedup import StepTimes
from eval.checks.loaded_pair import LoadedPair
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits, Seeds, row_seed
from eval.latency.measure import measure_latency, timing_ticks
from eval.latency.steps import Setting
from eval.policies.policy_replay import RecordedAnswer
from eval.scorecard import typical_context

NAME, CONFIDENCE, NUM_RESAMPLES = "draft", 0.95, 2000


def recorded_answers(
    pair: LoadedPair,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    batch: int,
    seed: int,
) -> list[RecordedAnswer]:
    """The target's answers, each with the chances that its tokens come from the draft.

    Args:
        pair: Both models.
        prompts: Token ids.
        max_new_tokens: Of an answer at most.
        sampling: How the answers are chosen.
        batch: Prompts answered together.
        seed: Of what is drawn.
    """
    recorded = []
    texts = answers_of(pair, prompts, Limits(max_new_tokens, pair.stop_ids), sampling, batch=batch, seed=seed)
    for prompt, answer in track(texts, description=f"answers at T = {sampling.temperature:g}", total=len(prompts)):
        replayed = replay_pair(pair.target, pair.draft, prompt, answer, sampling=sampling)
        accept_T = replayed.rules[rule_name(sampling.temperature)].accept
        recorded.append(RecordedAnswer(prompt, answer, accept_T, replayed.draft_confidence, max_new_tokens))
    return recorded


def answers_of(
    pair: LoadedPair,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    sampling: Sampling,
    *,
    batch: int,
    seed: int,
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Every prompt with what the target says to it, as it comes."""
    for start in range(0, len(prompts), batch):
        group = prompts[start : start + batch]
        rows = [row_seed(start + index) for index in range(len(group))]
        texts = plain_decode(pair.target, group, limits=limits, sampling=sampling, seeds=Seeds.of(seed), row_seeds=rows)
        yield from zip(group, (text.token_ids for text in texts), strict=True)


def steps_of(
    pair: LoadedPair, answers: Sequence[RecordedAnswer], lookaheads: Sequence[int], repeats: int, *, seed: int
) -> StepTimes:
    """Step times in the middle of the text of median length."""
    latency = measure_latency(
        pair.target,
        {NAME: pair.draft},
        Setting(typical_context(answers)),
        lookaheads=lookaheads,
        repetitions=timing_ticks(repeats),
        resampling=Resampling(CONFIDENCE, NUM_RESAMPLES, seed),
    )
    return latency.step_times(NAME)
