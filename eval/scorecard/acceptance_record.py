"""What scorecard.json says of acceptance: raw counts beside every rate. Pure; docs/scoring.md explains every field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eval.acceptance.counts import Counts, pool
from eval.acceptance.draft_scores import DraftScore, PartedScores
from eval.acceptance.estimates import (
    Columns,
    Estimate,
    Resampling,
    mean_of_ratios,
    paired_ratio_difference,
    pooled_ratio,
)
from eval.acceptance.paired_tests import compare_matches
from eval.records.acceptance import (
    AcceptanceRow,
    Bin,
    BinRounds,
    Bins,
    PerPosition,
    Position,
    PromptSums,
    Rounds,
    RoundsByPrompt,
    RuleRow,
)
from eval.records.differences import (
    DifferenceRow,
    MatchDifference,
    PromptSigns,
    RuleDifference,
    TauDifference,
    TokenTable,
)
from eval.records.values import Mean, Ratio


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
class PromptCounts:
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


def acceptance_row(scores: Sequence[DraftScore], parted: PartedScores, resampling: Resampling) -> AcceptanceRow:
    """Acceptance of one draft at one temperature.

    Args:
        scores: Of the same answers, one for each rule; the first is the one the scorecard leads with.
        parted: Of the same answers under that rule, by what they are parted by and by bin.
        resampling: How intervals are made.
    """
    score, *others = scores
    return AcceptanceRow(
        draft=score.draft,
        temperature=score.temperature,
        answers=len(score.answers),
        **vars(rule_row(score, resampling)),
        **token_figures(score, resampling),
        target_changed_tokens=sum(answer.num_changed for answer in score.answers),
        other_rules=tuple(rule_row(other, resampling) for other in others),
        bins=bins_of(parted, resampling),
        by_prompt=prompt_sums(score),
    )


def prompt_sums(score: DraftScore) -> PromptSums:
    alpha_sums, tokens = score.alpha_columns()
    matches, _ = score.match_columns()
    return PromptSums(
        tokens=tuple(tokens),
        alpha=tuple(alpha_sums),
        greedy_match=tuple(matches),
        sayable=tuple(score.coverage_columns()[0]) if score.has_small_head else None,
        rounds=tuple(RoundsByPrompt(lookahead=g, counts=tuple(score.tau_columns(g)[1])) for g in score.lookaheads),
    )


def token_figures(score: DraftScore, resampling: Resampling) -> dict[str, Any]:
    """Figures that no rule decides; of a draft with a small head, the share of tokens among its output ids too."""
    return {
        "prompts": len(score.alpha_columns()[0]),
        "greedy_match": mean(score.match_columns(), resampling),
        "coverage": mean(score.coverage_columns(), resampling) if score.has_small_head else None,
    }


def rule_row(score: DraftScore, resampling: Resampling) -> RuleRow:
    """Acceptance under one rule."""
    return RuleRow(
        rule=score.rule,
        alpha=mean(score.alpha_columns(), resampling),
        alpha_of_text=mean(score.accept_columns(), resampling),
        lookahead=tuple(rounds_at(score, lookahead, resampling) for lookahead in score.lookaheads),
    )


def bins_of(parted: PartedScores, resampling: Resampling) -> tuple[Bins, ...]:
    """Acceptance by task, category, position and entropy, where that fills more than one bin."""
    return tuple(
        Bins(by=by, bins=tuple(bin_of(label, score, resampling) for label, score in scores.items()))
        for by, scores in parted.items()
        if len(scores) > 1
    )


def bin_of(label: str, score: DraftScore, resampling: Resampling) -> Bin:
    """Acceptance at the tokens of one bin, and of the rounds that start there."""
    return Bin(
        bin=label,
        alpha=mean(score.alpha_columns(), resampling),
        alpha_of_text=mean(score.accept_columns(), resampling),
        **token_figures(score, resampling),
        lookahead=tuple(
            BinRounds(
                **round_figures(score, lookahead, resampling),
                tau=ratio_of(score.tau_columns(lookahead), resampling),
                per_position=per_position(score.pooled(lookahead)),
            )
            for lookahead in score.lookaheads
        ),
    )


def per_position(counts: Counts) -> PerPosition:
    return PerPosition(possible=counts.possible, reached=counts.reached, accepted=counts.accepted)


def rounds_at(score: PerPromptRounds, lookahead: int, resampling: Resampling) -> Rounds:
    """Counts and rates of the rounds at one lookahead, of each position in them, and of each number kept."""
    rounds = score.count_column(lookahead, lambda counts: counts.rounds)
    kept = [score.count_column(lookahead, lambda counts, k=k: counts.histogram[k]) for k in range(lookahead + 1)]
    return Rounds(
        **round_figures(score, lookahead, resampling),
        tau=pooled_ratio(*score.tau_columns(lookahead), resampling),
        histogram_share=tuple(pooled_ratio(column, rounds, resampling) for column in kept),
        positions=tuple(position_of(score, lookahead, index, resampling) for index in range(lookahead)),
    )


def round_figures(score: PerPromptRounds, lookahead: int, resampling: Resampling) -> dict[str, Any]:
    """Counts and rates of the rounds at one lookahead that those of a bin have as well, but tau."""
    pooled = score.pooled(lookahead)
    accepted = score.count_column(lookahead, lambda counts: counts.accepted_tokens)
    decided = score.count_column(lookahead, lambda counts: counts.decided_tokens)
    proposed = score.count_column(lookahead, lambda counts: counts.proposed_tokens)
    return {
        "lookahead": lookahead,
        "rounds": pooled.rounds,
        "proposed": pooled.proposed_tokens,
        "decided": pooled.decided_tokens,
        "accepted": pooled.accepted_tokens,
        "emitted": pooled.emitted_tokens,
        "fully_accepted": pooled.fully_accepted_rounds,
        "histogram": pooled.histogram,
        "tau_per_prompt": ratio_of(score.tau_columns(lookahead), resampling, estimate=mean_of_ratios),
        "alpha_of_rounds": ratio_of((accepted, decided), resampling),
        "utilisation": ratio_of((accepted, proposed), resampling),
    }


def position_of(score: PerPromptRounds, lookahead: int, index: int, resampling: Resampling) -> Position:
    """Counts and rates of one position in the rounds; index 0 is position 1."""
    rounds = score.count_column(lookahead, lambda counts: counts.rounds)
    possible = score.count_column(lookahead, lambda counts: counts.possible[index])
    reached = score.count_column(lookahead, lambda counts: counts.reached[index])
    accepted = score.count_column(lookahead, lambda counts: counts.accepted[index])
    return Position(
        position=index + 1,
        possible=sum(possible),
        reached=sum(reached),
        accepted=sum(accepted),
        joint=pooled_ratio(accepted, rounds, resampling),
        unconditional=ratio_of((accepted, possible), resampling),
        conditional=ratio_of((accepted, reached), resampling),
    )


def difference_row(
    draft: Sequence[DraftScore], baseline: Sequence[DraftScore], resampling: Resampling
) -> DifferenceRow:
    """Draft against baseline on the same answers: paired differences under every rule, and tests of the matches.

    Args:
        draft: One score for each rule; the first is the one the scorecard leads with.
        baseline: The same of the other draft.
        resampling: How intervals and sign flips are made.
    """
    leading, *others = (rule_difference(*pair, resampling) for pair in zip(draft, baseline, strict=True))
    return DifferenceRow(
        draft=draft[0].draft,
        baseline=baseline[0].draft,
        temperature=draft[0].temperature,
        **vars(leading),
        other_rules=tuple(others),
        greedy_match=match_difference(draft[0], baseline[0], resampling),
    )


def rule_difference(draft: DraftScore, baseline: DraftScore, resampling: Resampling) -> RuleDifference:
    """Draft minus baseline on the same answers under one rule."""
    return RuleDifference(
        rule=draft.rule,
        alpha=paired_ratio_difference(draft.alpha_columns(), baseline.alpha_columns(), resampling),
        lookahead=tuple(
            TauDifference(
                lookahead=lookahead,
                tau=paired_ratio_difference(draft.tau_columns(lookahead), baseline.tau_columns(lookahead), resampling),
            )
            for lookahead in draft.lookaheads
        ),
    )


def match_difference(draft: DraftScore, baseline: DraftScore, resampling: Resampling) -> MatchDifference:
    """Difference in argmax agreement with its tests."""
    difference = paired_ratio_difference(draft.match_columns(), baseline.match_columns(), resampling)
    by_prompt = draft.matches_by_prompt()
    comparison = compare_matches(by_prompt, baseline.matches_by_prompt(), resampling)
    more, fewer = comparison.prompts_more, comparison.prompts_fewer
    return MatchDifference(
        **vars(difference),
        tokens=TokenTable(
            both=comparison.both,
            only_draft=comparison.only_first,
            only_baseline=comparison.only_second,
            neither=comparison.neither,
        ),
        mcnemar_p=comparison.mcnemar_p,
        prompts=PromptSigns(more=more, fewer=fewer, equal=len(by_prompt) - more - fewer),
        sign_p=comparison.sign_p,
        sign_flip_p=comparison.sign_flip_p,
    )


def mean(columns: Columns, resampling: Resampling) -> Mean:
    """A mean over tokens beside its sum."""
    sums, tokens = columns
    return Mean(**vars(pooled_ratio(*columns, resampling)), sum=sum(sums), tokens=sum(tokens))


def ratio_of(
    columns: Columns,
    resampling: Resampling,
    *,
    estimate: Callable[[Sequence[float], Sequence[float], Resampling], Estimate] = pooled_ratio,
) -> Ratio:
    """A ratio of two columns with one entry per prompt, where nothing may have been counted."""
    return Ratio(**vars(estimate(*columns, resampling))) if any(columns[1]) else Ratio(None, None)
