"""What scorecard.json says of acceptance: raw counts beside every rate. Pure; docs/scoring.md explains every field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eval.acceptance.comparison import compare_matches
from eval.acceptance.counts import Counts, pool
from eval.acceptance.estimates import Estimate, Resampling, mean_of_ratios, paired_ratio_difference, pooled_ratio
from eval.scorecard.scores import DraftScore, PartedScores

Record = dict[str, Any]
Columns = tuple[Sequence[float], Sequence[float]]


class PerPromptRounds(Protocol):
    """Rounds of some prompts by lookahead: what a record of rounds is made from."""

    def count_column(self, lookahead: int, count: Callable[[Counts], float]) -> list[float]:
        """Per prompt: one of the counts."""
        ...

    def tau_columns(self, lookahead: int) -> tuple[list[float], list[float]]:
        """Per prompt: tokens emitted, and rounds."""
        ...

    def pooled(self, lookahead: int) -> Counts: ...


@dataclass(frozen=True)
class RoundsByPrompt:
    """Counts of the rounds of each prompt, by lookahead."""

    counts: Sequence[Mapping[int, Counts]]

    def tau_columns(self, lookahead: int) -> tuple[list[float], list[float]]:
        """Per prompt: tokens emitted, and rounds."""
        return (
            self.count_column(lookahead, lambda counts: counts.emitted_tokens),
            self.count_column(lookahead, lambda counts: counts.rounds),
        )

    def count_column(self, lookahead: int, count: Callable[[Counts], float]) -> list[float]:
        """Per prompt: one of the counts at a lookahead."""
        return [count(counts[lookahead]) for counts in self.counts]

    def pooled(self, lookahead: int) -> Counts:
        return pool([counts[lookahead] for counts in self.counts])


def acceptance_record(scores: Sequence[DraftScore], parted: PartedScores, resampling: Resampling) -> Record:
    """Acceptance of one draft at one temperature.

    Args:
        scores: Of the same answers, one for each rule; the first is the one the scorecard leads with.
        parted: Of the same answers under that rule, by what they are parted by and by bin.
        resampling: How intervals are made.
    """
    score, *others = scores
    return {
        "draft": score.draft,
        "temperature": score.temperature,
        "rule": score.rule,
        "answers": len(score.answers),
        **tokens_record(score, resampling),
        "target_changed_tokens": sum(answer.num_changed for answer in score.answers),
        "lookahead": [lookahead_record(score, lookahead, resampling) for lookahead in score.lookaheads],
        "other_rules": [rule_record(other, resampling) for other in others],
        "bins": bins_record(parted, resampling),
        "by_prompt": prompts_record(score),
    }


def prompts_record(score: DraftScore) -> Record:
    """Sums of every prompt, in the order of the scorecard's sources: what pairs two scorecards of the same answers."""
    alpha_sums, tokens = score.alpha_columns()
    matches, _ = score.match_columns()
    return {
        "tokens": tokens,
        "alpha": alpha_sums,
        "greedy_match": matches,
        **({"sayable": score.coverage_columns()[0]} if score.has_small_head else {}),
        "rounds": [{"lookahead": g, "counts": score.tau_columns(g)[1]} for g in score.lookaheads],
    }


def tokens_record(score: DraftScore, resampling: Resampling) -> Record:
    """Means over tokens, each with its sum; of a draft that says some ids alone, the share of tokens among them too."""
    return {
        "prompts": len(score.alpha_columns()[0]),
        "alpha": mean_record(score.alpha_columns(), resampling),
        "alpha_of_text": mean_record(score.accept_columns(), resampling),
        "greedy_match": mean_record(score.match_columns(), resampling),
        **({"coverage": mean_record(score.coverage_columns(), resampling)} if score.has_small_head else {}),
    }


def rule_record(score: DraftScore, resampling: Resampling) -> Record:
    """Acceptance under a rule that the scorecard does not lead with."""
    return {
        "rule": score.rule,
        "alpha": mean_record(score.alpha_columns(), resampling),
        "alpha_of_text": mean_record(score.accept_columns(), resampling),
        "lookahead": [lookahead_record(score, lookahead, resampling) for lookahead in score.lookaheads],
    }


def bins_record(parted: PartedScores, resampling: Resampling) -> list[Record]:
    """Acceptance by task, category, position and entropy, where that fills more than one bin."""
    return [
        {"by": by, "bins": [bin_record(label, score, resampling) for label, score in scores.items()]}
        for by, scores in parted.items()
        if len(scores) > 1
    ]


def bin_record(label: str, score: DraftScore, resampling: Resampling) -> Record:
    """Acceptance at the tokens of one bin, and of the rounds that start there."""
    return {
        "bin": label,
        **tokens_record(score, resampling),
        "lookahead": [
            {
                **rounds_record(score, lookahead, resampling),
                "per_position": per_position_record(score.pooled(lookahead)),
            }
            for lookahead in score.lookaheads
        ],
    }


def per_position_record(counts: Counts) -> Record:
    """Counts of the positions in a round, the first position first."""
    return {name: list(getattr(counts, name)) for name in ("possible", "reached", "accepted")}


def lookahead_record(score: PerPromptRounds, lookahead: int, resampling: Resampling) -> Record:
    """Counts and rates of the rounds at one lookahead, of each position in them, and of each number kept."""
    rounds = score.count_column(lookahead, lambda counts: counts.rounds)
    kept = [score.count_column(lookahead, lambda counts, k=k: counts.histogram[k]) for k in range(lookahead + 1)]
    return {
        **rounds_record(score, lookahead, resampling),
        "histogram_share": [rate_record((column, rounds), resampling) for column in kept],
        "positions": [position_record(score, lookahead, place, resampling) for place in range(lookahead)],
    }


def rounds_record(score: PerPromptRounds, lookahead: int, resampling: Resampling) -> Record:
    """Counts and rates of the rounds at one lookahead."""
    counts, tau_columns = score.pooled(lookahead), score.tau_columns(lookahead)
    accepted = score.count_column(lookahead, lambda one: one.accepted_tokens)
    decided = score.count_column(lookahead, lambda one: one.decided_tokens)
    proposed = score.count_column(lookahead, lambda one: one.proposed_tokens)
    return {
        "lookahead": lookahead,
        "rounds": counts.rounds,
        "proposed": counts.proposed_tokens,
        "decided": counts.decided_tokens,
        "accepted": counts.accepted_tokens,
        "emitted": counts.emitted_tokens,
        "fully_accepted": counts.fully_accepted_rounds,
        "histogram": list(counts.histogram),
        "tau": rate_record(tau_columns, resampling),
        "tau_per_prompt": rate_record(tau_columns, resampling, estimate=mean_of_ratios),
        "alpha_of_rounds": rate_record((accepted, decided), resampling),
        "utilisation": rate_record((accepted, proposed), resampling),
    }


def position_record(score: PerPromptRounds, lookahead: int, place: int, resampling: Resampling) -> Record:
    """Counts and rates of one position in the rounds; place 0 is position 1."""
    rounds = score.count_column(lookahead, lambda one: one.rounds)
    possible = score.count_column(lookahead, lambda one: one.possible[place])
    reached = score.count_column(lookahead, lambda one: one.reached[place])
    accepted = score.count_column(lookahead, lambda one: one.accepted[place])
    return {
        "position": place + 1,
        "possible": sum(possible),
        "reached": sum(reached),
        "accepted": sum(accepted),
        "joint": rate_record((accepted, rounds), resampling),
        "unconditional": rate_record((accepted, possible), resampling),
        "conditional": rate_record((accepted, reached), resampling),
    }


def difference_record(draft: DraftScore, baseline: DraftScore, resampling: Resampling) -> Record:
    """Draft minus baseline on the same answers under one rule."""
    return {
        "rule": draft.rule,
        "alpha": estimate_record(paired_ratio_difference(draft.alpha_columns(), baseline.alpha_columns(), resampling)),
        "lookahead": [
            {
                "lookahead": lookahead,
                "tau": estimate_record(
                    paired_ratio_difference(draft.tau_columns(lookahead), baseline.tau_columns(lookahead), resampling)
                ),
            }
            for lookahead in draft.lookaheads
        ],
    }


def comparison_record(draft: Sequence[DraftScore], baseline: Sequence[DraftScore], resampling: Resampling) -> Record:
    """Draft against baseline on the same answers: paired differences under every rule, and tests of the matches.

    Args:
        draft: One score for each rule; the first is the one the scorecard leads with.
        baseline: The same of the other draft.
        resampling: How intervals and sign flips are made.
    """
    leading, *others = (difference_record(*pair, resampling) for pair in zip(draft, baseline, strict=True))
    return {
        "draft": draft[0].draft,
        "baseline": baseline[0].draft,
        "temperature": draft[0].temperature,
        **leading,
        "other_rules": others,
        "greedy_match": matches_record(draft[0], baseline[0], resampling),
    }


def matches_record(draft: DraftScore, baseline: DraftScore, resampling: Resampling) -> Record:
    """Difference in argmax agreement with its tests; mcnemar_p over tokens is anticonservative, as they depend."""
    difference = paired_ratio_difference(draft.match_columns(), baseline.match_columns(), resampling)
    by_prompt = draft.matches_by_prompt()
    found = compare_matches(by_prompt, baseline.matches_by_prompt(), resampling)
    return {
        **estimate_record(difference),
        "tokens": {
            "both": found.both,
            "only_draft": found.only_first,
            "only_baseline": found.only_second,
            "neither": found.neither,
        },
        "mcnemar_p": found.mcnemar_p,
        "prompts": {
            "more": found.prompts_more,
            "fewer": found.prompts_fewer,
            "equal": len(by_prompt) - found.prompts_more - found.prompts_fewer,
        },
        "sign_p": found.sign_p,
        "sign_flip_p": found.sign_flip_p,
    }


def mean_record(columns: Columns, resampling: Resampling) -> Record:
    """A mean over tokens beside its sum."""
    sums, tokens = columns
    return {**rate_record(columns, resampling), "sum": sum(sums), "tokens": sum(tokens)}


def rate_record(
    columns: Columns,
    resampling: Resampling,
    *,
    estimate: Callable[[Sequence[float], Sequence[float], Resampling], Estimate] = pooled_ratio,
) -> Record:
    """A rate of two columns with one entry per prompt; null where nothing was counted."""
    if not any(columns[1]):
        return {"value": None, "interval": None}
    return estimate_record(estimate(*columns, resampling))


def estimate_record(estimate: Estimate) -> Record:
    """A value and its interval, null where there is none."""
    return {"value": estimate.value, "interval": estimate.interval}
