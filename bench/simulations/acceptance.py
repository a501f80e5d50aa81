"""Intervals and tests over prompts: alpha, tau, differences of drafts, checkpoints, the ranking of `choose`."""

from collections.abc import Callable, Iterator

from bench.simulations.prompts import LOOKAHEAD, Population, population
from bench.simulations.shares import Row, is_inside, share_of
from eval.acceptance import Estimate, Resampling, mean_of_ratios, paired_ratio_difference, pooled_ratio

RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
SIZES = (12, 32, 64)
LOGIT = -0.6  # an alpha of 0.36 or so
Make = Callable[[Population], Estimate]

RATES: dict[str, Make] = {
    "alpha": lambda drawn: pooled_ratio(*drawn.alpha_columns(), RESAMPLING),
    f"tau at lookahead {LOOKAHEAD}": lambda drawn: pooled_ratio(*drawn.tau_columns(), RESAMPLING),
    "tau per prompt (unweighted mean)": lambda drawn: mean_of_ratios(*drawn.tau_columns(), RESAMPLING),
    "share of rounds that kept everything": lambda drawn: pooled_ratio(*drawn.full_columns(), RESAMPLING),
    "difference of two drafts in alpha": lambda drawn: paired_ratio_difference(
        drawn.alpha_columns(0), drawn.alpha_columns(1), RESAMPLING
    ),
    "difference of two drafts in tau": lambda drawn: paired_ratio_difference(
        drawn.tau_columns(0), drawn.tau_columns(1), RESAMPLING
    ),
}


def rate_rows(runs: int, *, seed: int, sizes: tuple[int, ...] = SIZES) -> Iterator[Row]:
    """How often intervals over prompts hold the truth."""
    everything = population((LOGIT, LOGIT), seed=seed)
    for name, make in RATES.items():
        truth = make_value(make, everything)
        for size in sizes:
            share = share_of(
                runs,
                lambda rng, make=make, truth=truth, size=size: is_inside(
                    truth, make(everything.sample(size, rng)).interval
                ),
                seed=seed,
            )
            yield Row(name, f"{size} prompts", True, 0.95, share, runs)


def make_value(make: Make, everything: Population) -> float:
    """What an estimate is over all prompts there are."""
    return make(everything).value
