"""Trainings of all candidates, then longer ones of those still in play. Imports torch only when it runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distill.choose.shapes.candidates import Candidate
from distill.choose.shapes.left_out import LeftOut
from distill.choose.trainings.in_play import beaten
from distill.choose.trainings.trials import prepare_answers, score_candidates, train_candidates, trials_of
from distill.run.run import Run
from eval.records.evidence import StepEvidence
from eval.speedup import Ranked

if TYPE_CHECKING:
    from eval.scorecard_schema import Scorecard, ScoredLatency


@dataclass(frozen=True)
class Cell:
    """A ranking at one temperature, batch and context.

    Attributes:
        temperature: Of the answers; None where acceptance was given.
        batch: Rows decoded together.
        context: Tokens before a step.
        ranked: The candidates, the fastest first.
        evidence: What the step times behind it are held against; null in files of before there was any.
    """

    temperature: float | None
    batch: int
    context: int
    ranked: tuple[Ranked, ...]
    evidence: StepEvidence | None = None


@dataclass(frozen=True)
class Rung:
    """What was found after all that were in play had been trained for so long.

    Attributes:
        length: Of the trainings, from their start; None where acceptance was given.
        cells: Rankings; the first decides.
        left_out: Who is not trained on.
    """

    length: str | None
    cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def ranked(self) -> tuple[Ranked, ...]:
        """The ranking that decides."""
        return self.cells[0].ranked


def rungs(
    run: Run, candidates: Sequence[Candidate], lengths: Sequence[str], timed: "Sequence[ScoredLatency]"
) -> Iterator[Rung]:
    """Train and rank until one candidate is in play, or the longest training has ended.

    Args:
        run: That the candidates belong to.
        candidates: All that are worth a training.
        lengths: Of the trainings, each counted from the start.
        timed: Step times at the places that are asked for; none, those of the scorecards.
    """
    prepare_answers(run)
    trials, kept, earlier = trials_of(candidates), list(candidates), None
    for length in lengths:
        drafts = train_candidates(run, kept, trials, length, earlier)
        cells = tuple(ranked_cells(score_candidates(run, drafts, length), timed))
        out = beaten(cells[0].ranked, length) if length != lengths[-1] else []
        yield Rung(length, cells, tuple(out))
        kept = [each for each in kept if each.name not in {one.candidate for one in out}]
        if len(kept) == 1:
            return
        earlier = length


def ranked_cells(card: "Scorecard", timed: "Sequence[ScoredLatency]") -> Iterator[Cell]:
    """A ranking at every temperature that was scored and every place that was timed; the first decides."""
    from eval.speedup import ranking

    for temperature in card.temperatures:
        rows = card.rows_at(temperature)
        for latency in timed or [card.latency]:
            ranked = ranking(rows, latency, card.settings.resampling)
            yield Cell(temperature, latency.batch, latency.context_tokens, tuple(ranked), latency.evidence)
