"""The lines that a run ends with: the number that decides, then where it comes from. Pure text from the record."""

from architectures.pages.counts import number_of
from eval.pages.verdict import is_unbelievable, main_way_words, prediction, way_words, with_interval
from eval.records.scorecard import Scorecard
from eval.records.scorecard_speeds import LOOKUP, POLICY, Live


def headline(scorecard: Scorecard) -> str:
    """Is it faster, what did distilling change, what does a token cost, and what is there without a draft."""
    latency = scorecard.latency.of(scorecard.primary)
    return "\n".join(
        [
            scorecard.verdict,
            *deciding_lines(scorecard),
            *(f"WARNING: {text}" for text in scorecard.warnings),
            *(acceptance_line(scorecard, temperature) for temperature in scorecard.temperatures),
            (
                f"milliseconds a token: draft {latency.one_token.median_ms:.2f}, target "
                f"{scorecard.latency.target.median_ms:.2f}; one of the draft is {latency.cost_ratio:.3f} of one of the "
                "target (cost ratio)"
            ),
            draft_line(scorecard),
            lookahead_line(scorecard),
            *lookup_lines(scorecard.live),
            *(sampled_line(scorecard, live) for live in scorecard.lives[1:]),
        ]
    )


def deciding_lines(scorecard: Scorecard) -> list[str]:
    """What the number of the verdict is of, and which interval would decide it; none where it is not believed."""
    live = scorecard.live
    if live is None or is_unbelievable(scorecard):
        return []
    prompts = number_of(live.prompts, "prompt")
    told = (
        f"That speed decides: whole answers to {prompts}, reading them included, beside the target alone in the same "
        "turns; faster if its interval lies above 1. What it comes of:"
    )
    return [told]


def acceptance_line(scorecard: Scorecard, temperature: float) -> str:
    """Alpha of every draft at one temperature, and the paired gains of the last one."""
    rows = scorecard.rows_at(temperature)
    line = ", ".join(f"{row.draft} {with_interval(row.alpha)}" for row in rows)
    gains = [
        f"{with_interval(row.alpha)} over {row.baseline}"
        for row in scorecard.differences
        if row.temperature == temperature
    ]
    how = scorecard.settings.sampling.words_at(temperature)
    what = f"share of proposed tokens that the target keeps (acceptance, alpha) at {how}"
    return f"{what}: " + "; gain ".join([line, *gains])


def draft_line(scorecard: Scorecard) -> str:
    """The speed of the draft alone, measured and predicted of the same."""
    live, predicted = scorecard.live, prediction(scorecard, scorecard.main_forecast)
    subject = "speed of the draft alone" if live is not None and live.way(POLICY) else "speed"
    if live is None:
        return f"{subject}: not measured; predicted from acceptance and step times {predicted}"
    whole, decoding = (with_interval(speedup, times=True) for speedup in (live.speedup, live.decoding_speedup))
    return (
        f"{subject}: {whole}; without reading the prompts {decoding}, where acceptance and step times promise "
        f"{predicted}"
    )


def lookahead_line(scorecard: Scorecard) -> str:
    """How many tokens are best proposed in a round, and what acceptance that asks for."""
    forecast = scorecard.main_forecast
    pays = (
        "no acceptance pays there"
        if forecast.break_even_alpha is None
        else f"pays from an acceptance of {forecast.break_even_alpha:.3f} on"
    )
    return f"tokens best proposed in a round (lookahead): {forecast.best_lookahead}; {pays}"


def lookup_lines(live: Live | None) -> list[str]:
    """What looking up alone gives, and every way with a draft over it; nothing in older scorecards."""
    lookup = None if live is None else live.way(LOOKUP)
    if live is None or lookup is None:
        return []
    over = ", ".join(f"{row.way} {with_interval(row.speedup, times=True)}" for row in live.over_lookup)
    alone = with_interval(lookup.speedup, times=True)
    return [f"without any draft, {way_words(lookup)}: {alone}; over that, {over}"]


def sampled_line(scorecard: Scorecard, live: Live) -> str:
    """What was measured at another temperature than the verdict's."""
    how = scorecard.settings.sampling.words_at(live.temperature)
    return f"speed at {how}: {with_interval(live.main_speedup, times=True)}, {main_way_words(live)}"
