"""Rows of a scorecard from replayed responses: acceptance, and paired differences of two drafts. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.acceptance.draft_scores import DraftScore, PartedScores
from eval.acceptance.estimates import (
    Columns,
    Resampling,
    paired_ratio_difference,
    pooled_ratio,
    sign_flip_p,
)
from eval.scorecard_schema import (
    AcceptanceRow,
    Bin,
    BinRounds,
    Bins,
    DifferenceRow,
    Mean,
    Position,
    PromptSums,
    Ratio,
    Rounds,
    RoundsByPrompt,
    RuleDifference,
    RuleRow,
    TauDifference,
)


def acceptance_row(scores: Sequence[DraftScore], parted: PartedScores, resampling: Resampling) -> AcceptanceRow:
    """Acceptance of one draft at one temperature.

    Args:
        scores: Of the same responses, one for each acceptance method; the first leads.
        parted: Of the same responses by the leading method, by kind of bin and by bin.
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
        # A kind of bin in which a single one holds everything is left out.
        bins=tuple(
            Bins(by=by, bins=tuple(bin_of(label, score, resampling) for label, score in scores.items()))
            for by, scores in parted.items()
            if len(scores) > 1
        ),
        by_prompt=prompt_sums(score),
    )


def prompt_sums(score: DraftScore) -> PromptSums:
    alpha_sums, tokens = score.alpha_columns()
    matches, _ = score.match_columns()
    return PromptSums(
        tokens=tuple(tokens),
        alpha=tuple(alpha_sums),
        greedy_match=tuple(matches),
        rounds=tuple(RoundsByPrompt(lookahead=g, counts=tuple(score.tau_columns(g)[1])) for g in score.lookaheads),
    )


def token_figures(score: DraftScore, resampling: Resampling) -> dict[str, Any]:
    """Figures that no acceptance method decides."""
    return {
        "prompts": len(score.alpha_columns()[0]),
        "greedy_match": mean(score.match_columns(), resampling),
        "coverage": mean(score.coverage_columns(), resampling) if score.has_small_head else None,
    }


def rule_row(score: DraftScore, resampling: Resampling) -> RuleRow:
    """Acceptance by one acceptance method."""
    return RuleRow(
        rule=score.rule,
        alpha=mean(score.alpha_columns(), resampling),
        alpha_of_text=mean(score.accept_columns(), resampling),
        lookahead=tuple(rounds_at(score, lookahead, resampling) for lookahead in score.lookaheads),
    )


def bin_of(label: str, score: DraftScore, resampling: Resampling) -> Bin:
    """Acceptance at the tokens of one bin, and the verification steps that start there."""
    return Bin(
        bin=label,
        alpha=mean(score.alpha_columns(), resampling),
        alpha_of_text=mean(score.accept_columns(), resampling),
        **token_figures(score, resampling),
        lookahead=tuple(
            BinRounds(
                **round_figures(score, lookahead, resampling), tau=ratio_of(score.tau_columns(lookahead), resampling)
            )
            for lookahead in score.lookaheads
        ),
    )


def rounds_at(score: DraftScore, lookahead: int, resampling: Resampling) -> Rounds:
    """Verification steps at one number of speculative tokens, with each position and each number of accepted tokens."""
    return Rounds(
        **round_figures(score, lookahead, resampling),
        tau=pooled_ratio(*score.tau_columns(lookahead), resampling),
        positions=tuple(position_of(score, lookahead, index, resampling) for index in range(lookahead)),
    )


def round_figures(score: DraftScore, lookahead: int, resampling: Resampling) -> dict[str, Any]:
    """Counts and rates of the verification steps at one number of speculative tokens."""
    pooled = score.pooled(lookahead)
    accepted = score.count_column(lookahead, lambda counts: counts.accepted_tokens)
    proposed = score.count_column(lookahead, lambda counts: counts.proposed_tokens)
    return {
        "lookahead": lookahead,
        "rounds": pooled.rounds,
        "proposed": pooled.proposed_tokens,
        "accepted": pooled.accepted_tokens,
        "emitted": pooled.emitted_tokens,
        "fully_accepted": pooled.fully_accepted_rounds,
        "histogram": pooled.histogram,
        "utilisation": ratio_of((accepted, proposed), resampling),
    }


def position_of(score: DraftScore, lookahead: int, index: int, resampling: Resampling) -> Position:
    """Counts and rates of one position of a verification step; index 0 is position 1."""
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
        conditional=ratio_of((accepted, reached), resampling),
    )


def difference_row(
    draft: Sequence[DraftScore], baseline: Sequence[DraftScore], resampling: Resampling
) -> DifferenceRow:
    """Draft minus baseline on the same responses: paired differences by every method, and a test of the matches.

    Args:
        draft: One score for each acceptance method; the first leads.
        baseline: The same of the other draft.
        resampling: How intervals and sign flips are made.
    """
    leading, *others = (rule_difference(*pair, resampling) for pair in zip(draft, baseline, strict=True))
    ours, theirs = draft[0], baseline[0]
    return DifferenceRow(
        draft=ours.draft,
        baseline=theirs.draft,
        temperature=ours.temperature,
        **vars(leading),
        other_rules=tuple(others),
        greedy_match=paired_ratio_difference(ours.match_columns(), theirs.match_columns(), resampling),
        greedy_match_p=sign_flip_p(np.subtract(ours.match_columns()[0], theirs.match_columns()[0]), resampling),
    )


def rule_difference(draft: DraftScore, baseline: DraftScore, resampling: Resampling) -> RuleDifference:
    """Draft minus baseline on the same responses by one acceptance method."""
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


def mean(columns: Columns, resampling: Resampling) -> Mean:
    """A mean over tokens with its sum."""
    sums, tokens = columns
    return Mean(**vars(pooled_ratio(*columns, resampling)), sum=sum(sums), tokens=sum(tokens))


def ratio_of(columns: Columns, resampling: Resampling) -> Ratio:
    """A ratio of two columns with one entry per prompt, where nothing may have been counted."""
    return Ratio(**vars(pooled_ratio(*columns, resampling))) if any(columns[1]) else Ratio(None, None)
