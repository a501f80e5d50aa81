"""When the text proposes beside the last draft: tuned on prompts that nothing is scored on, judged on the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from architectures.checkpoints.manifest import processor_name
from architectures.settings.holding import WHOLE, Holding
from architectures.sharing import ALONE, Share
from eval.acceptance.draft_scores import ReplayedDraft
from eval.acceptance.replay import rule_name
from eval.acceptance.speedup import StepTimes
from eval.answers.writing import Kind
from eval.config import EvalConfig, SamplingConfig
from eval.policies.policy_file import SCHEMA, PolicyFile, TunedPolicy, prompt_fingerprint
from eval.policies.policy_replay import RecordedAnswer, Rounds
from eval.policies.tune import Tuned, rounds_of, tune
from eval.policies.tune_stopping import TunedStopping, stopped_rounds, tune_stopping
from eval.prompts import Prompt, prompts_behind
from eval.records.origin import ScoredModel
from eval.records.scorecard_speeds import LookupRow, PolicyRow, StoppingRow
from eval.scorecard.answers import Answers, record_answers

FOLDER = "tuning"  # of the answers, beside those that are scored on


def tuning_prompts(prompts: Sequence[Prompt], config: EvalConfig) -> Sequence[Prompt]:
    """Those behind the scored ones that ask something else; none where no policy is asked for.

    Raises:
        UserError: If there are fewer than are asked for.
    """
    return prompts_behind(prompts, scored=config.num_prompts, count=config.policy_prompts)


def record_tuning_answers(
    target: Path,
    prompts: Sequence[Prompt],
    config: EvalConfig,
    out: Path,
    *,
    seed: int,
    answered_by: Kind | None = None,
    holding: Holding = WHOLE,
    share: Share = ALONE,
) -> dict[float, Answers]:
    """The target's answers to them at every temperature; none where there are no prompts."""
    if not prompts:
        return {}
    how = {"seed": seed, "answered_by": answered_by, "holding": holding, "share": share}
    return {
        temperature: record_answers(target, prompts, config, out / FOLDER, temperature=temperature, **how)
        for temperature in config.temperatures
    }


@dataclass(frozen=True)
class TunedDraft:
    """What was tuned of the last draft at one temperature: its policy, and how doubt ends its rounds without one."""

    policy: Tuned
    stopping: tuple[TunedStopping, ...]


def tune_draft(
    answers: Mapping[float, Answers], replayed: Mapping[float, ReplayedDraft], steps: StepTimes, config: EvalConfig
) -> dict[float, TunedDraft]:
    """What is fastest on these answers, along which the last draft was replayed, for each temperature."""
    tuned = {}
    for temperature, group in answers.items():
        along = recorded_along(replayed[temperature], group, max_new_tokens=config.max_new_tokens)
        tuned[temperature] = TunedDraft(tune(along, steps), tune_stopping(along, steps))
    return tuned


def recorded_along(replayed: ReplayedDraft, answers: Answers, *, max_new_tokens: int) -> list[RecordedAnswer]:
    """Answers with what a draft does along each of them."""
    rule = rule_name(replayed.temperature)
    return [
        RecordedAnswer(
            trace.prompt_ids,
            trace.answer_ids,
            answer.replay.rules[rule].accept,
            answer.replay.draft_confidence,
            max_new_tokens,
        )
        for trace, answer in zip(answers.traces, replayed.answers, strict=True)
    ]


def policy_rows(
    tuned: Mapping[float, TunedDraft],
    along: Mapping[float, Sequence[RecordedAnswer]],
    looked_up: Mapping[float, tuple[int, Rounds]],
    steps: StepTimes,
) -> tuple[PolicyRow, ...]:
    """What each temperature's policy promises on the scored answers, beside what looking up alone does there.

    Args:
        tuned: By temperature.
        along: The scored answers with what the last draft does along them, by temperature.
        looked_up: The lookahead at which looking up alone is fastest along them, and its rounds there.
        steps: Of the target and the draft.
    """
    rows = []
    for temperature, chosen in ((temperature, each.policy) for temperature, each in tuned.items()):
        rounds = rounds_of(along[temperature], chosen.policy, chosen.lookahead)
        lookahead, alone = looked_up[temperature]
        rows.append(
            PolicyRow(
                temperature=temperature,
                tuned_on=chosen.answers,
                lookahead=chosen.lookahead,
                policy=chosen.policy,
                predicted=rounds.speedup(chosen.lookahead, steps),
                tau=rounds.tau,
                lookup=LookupRow(lookahead=lookahead, predicted=alone.speedup(lookahead, steps), tau=alone.tau),
            )
        )
    return tuple(rows)


def stopping_rows(
    tuned: Mapping[float, TunedDraft], along: Mapping[float, Sequence[RecordedAnswer]], steps: StepTimes
) -> tuple[StoppingRow, ...]:
    """What the draft alone promises on the scored answers where its doubt ends rounds; arguments as of policy_rows."""
    rows = []
    for temperature, both in tuned.items():
        for chosen in both.stopping:
            rounds = stopped_rounds(along[temperature], chosen)
            rows.append(
                StoppingRow(
                    temperature=temperature,
                    tuned_on=both.policy.answers,
                    rule=chosen.rule,
                    least=chosen.least,
                    lookahead=chosen.lookahead,
                    predicted=rounds.speedup(chosen.lookahead, steps),
                    tau=rounds.tau,
                )
            )
    return tuple(rows)


def policy_file(
    tuned: Mapping[float, TunedDraft],
    answers: Mapping[float, Answers],
    *,
    target: ScoredModel,
    draft: ScoredModel,
    num_threads: int,
    sampling: SamplingConfig,
) -> PolicyFile:
    """What `speed --beside` and `verify --beside` read."""
    asked = next(iter(answers.values())).traces
    return PolicyFile(
        schema=SCHEMA,
        target=target.fingerprint,
        draft=draft.fingerprint,
        policies=tuple(TunedPolicy(temperature=each, **vars(both.policy)) for each, both in tuned.items()),
        prompts=tuple(prompt_fingerprint(trace.prompt_ids) for trace in asked),
        processor=processor_name(),
        threads=num_threads,
        dtype=target.dtype,
        sampling=sampling,
    )
