"""How fast an engine was with and without a draft, in the same turns. Pure."""

from eval.acceptance.estimates import Resampling
from eval.acceptance.paired_ratios import paired_ratio_quotient
from eval.engine_runs.record import EngineRun, Speed


def speed_of(run: EngineRun, resampling: Resampling) -> Speed:
    """Tokens a second of both ways, and how many times as fast it was with the draft, the prompt's reading included."""
    plain = [text.plain_s for text in run.texts], [float(len(text.plain_ids)) for text in run.texts]
    drafted = [text.drafted_s for text in run.texts], [float(len(text.drafted_ids)) for text in run.texts]
    quotient = paired_ratio_quotient(plain, drafted, resampling)
    return Speed(
        plain_tokens_per_s=sum(plain[1]) / sum(plain[0]),
        drafted_tokens_per_s=sum(drafted[1]) / sum(drafted[0]),
        value=quotient.value,
        interval=quotient.interval,
    )
