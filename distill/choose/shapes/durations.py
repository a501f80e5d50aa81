"""How long candidates are trained, each time twice as long as before. No torch.

Source of the schedule: successive halving, Jamieson and Talwalkar 2016 (arXiv 1502.07943), with the factor 2.
"""

from architectures.errors import UserError
from distill.recipe.sections.times import split_time

FACTOR = 2
RUNGS = 3  # where no longest training is named


def rung_durations(first: str, longest: str | None) -> list[str]:
    """The lengths of trainings, counted from their start.

    Raises:
        UserError: If the longest is shorter than the first, or on another clock.
    """
    value, unit = split_time(first)
    last = value * FACTOR ** (RUNGS - 1)
    if longest is not None:
        last, last_unit = split_time(longest)
        if last_unit != unit or last < value:
            raise UserError(
                f"--longest {longest}: must be in {unit}, and no less than --duration, which is {first}. Change one."
            )
    lengths = [value]
    while lengths[-1] < last:
        lengths.append(min(FACTOR * lengths[-1], last))
    return [first, *(f"{int(length)}{unit}" for length in lengths[1:])]
