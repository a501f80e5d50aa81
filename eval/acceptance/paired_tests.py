"""Do two drafts agree with the target equally often? Exact tests on the same tokens of the same answers. Pure.

Shape suffixes used in this file:
    T = tokens of one prompt's answers, P = prompts
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, permutation_test

from eval.acceptance.counts import Array
from eval.acceptance.estimates import Resampling


@dataclass(frozen=True)
class MatchComparison:
    """Two drafts' argmax agreement with the target, token by token and prompt by prompt.

    Attributes:
        both: Tokens at which both drafts have the target's argmax.
        only_first: Tokens at which only the first has.
        only_second: Tokens at which only the second has.
        neither: Tokens at which neither has.
        mcnemar_p: McNemar's exact test over tokens. Tokens of one prompt are not independent, so it is
            anticonservative: it calls differences sure that are not. Believe the two that follow.
        prompts_more: Prompts on which the first agrees at more tokens than the second.
        prompts_fewer: Prompts on which it agrees at fewer.
        sign_p: Exact sign test over these prompts.
        sign_flip_p: Sign-flip test over prompts, of the difference in agreeing tokens.
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    mcnemar_p: float
    prompts_more: int
    prompts_fewer: int
    sign_p: float
    sign_flip_p: float


def compare_matches(first: Sequence[Array], second: Sequence[Array], resampling: Resampling) -> MatchComparison:
    """Compare two drafts on the same answers.

    Args:
        first: Per prompt, match_T: 1 where the draft's argmax is the target's, else 0.
        second: The same for the other draft, on the same tokens.
        resampling: Number and seed of the sign flips, where they are too many to try all.
    """
    ours_T, theirs_T = np.concatenate(first) > 0, np.concatenate(second) > 0
    gain_P = np.array([ours.sum() - theirs.sum() for ours, theirs in zip(first, second, strict=True)])
    only_first, only_second = int((ours_T & ~theirs_T).sum()), int((theirs_T & ~ours_T).sum())
    num_more, num_fewer = int((gain_P > 0).sum()), int((gain_P < 0).sum())
    return MatchComparison(
        both=int((ours_T & theirs_T).sum()),
        only_first=only_first,
        only_second=only_second,
        neither=int((~ours_T & ~theirs_T).sum()),
        mcnemar_p=even_chance_p(only_first, only_second),
        prompts_more=num_more,
        prompts_fewer=num_fewer,
        sign_p=even_chance_p(num_more, num_fewer),
        sign_flip_p=sign_flip_p(gain_P, resampling),
    )


def even_chance_p(num_for: int, num_against: int) -> float:
    """Two-sided exact p-value of so uneven a split if either side were equally likely; 1 where there is nothing.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12, as the exact binomial test of the pairs that differ.
    """
    total = num_for + num_against
    return float(binomtest(num_for, total).pvalue) if total else 1.0


def sign_flip_p(gain_P: Array, resampling: Resampling) -> float:
    """Two-sided p-value of the sum of the gains if each could as well have had the other sign; 1 for one prompt.

    Exact while all flips are no more than resampling.num_resamples, else from so many drawn ones.

    Source: Pitman 1937, "Significance tests which may be applied to samples from any populations", Supplement to the
    Journal of the Royal Statistical Society 4.
    """
    if len(gain_P) < 2:
        return 1.0
    test = permutation_test(
        (gain_P,),
        np.sum,
        permutation_type="samples",
        n_resamples=resampling.num_resamples,
        rng=np.random.default_rng(resampling.seed),
    )
    return float(test.pvalue)
