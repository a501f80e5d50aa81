"""What is tried, and in which order: few minutes for many configurations, more for the better third. Pure; no torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

KEPT_SHARE = 3  # one of so many goes on with more minutes
Source = Literal["live", "cache", "none"]


@dataclass(frozen=True)
class Way:
    """How a draft learns.

    Attributes:
        source: As distill.teacher.source.
        losses: Added up, each with weight 1.
    """

    source: Source
    losses: tuple[str, ...]

    @property
    def name(self) -> str:
        """For file names."""
        return f"{self.source}-{'+'.join(self.losses)}"

    @property
    def words(self) -> list[str]:
        """For a recipe, as key=value."""
        terms = ", ".join(f"{{name: {loss}}}" for loss in self.losses)
        return [f"distill.teacher.source={self.source}", f"distill.loss=[{terms}]"]


@dataclass(frozen=True)
class Configuration:
    """What is compared.

    Attributes:
        way: How the draft learns.
        layers: It has.
        vocabulary: Ids it can say, by their frequency in the training answers; None for all.
        epochs: Readings of the answers at most; None for as many as the minutes allow.
        before: How it learns in the first half of the minutes, if otherwise; the second half begins with that draft.
        frozen: Whether its input embeddings stay as they are.
    """

    way: Way
    layers: int
    vocabulary: int | None = None
    epochs: int | None = None
    before: Way | None = None
    frozen: bool = False

    @property
    def name(self) -> str:
        """For file names and tables."""
        first = "" if self.before is None else f"{self.before.name}-then-"
        ids = "all" if self.vocabulary is None else str(self.vocabulary)
        most = "" if self.epochs is None else f"-{self.epochs}ep"
        return f"{first}{self.way.name}-{self.layers}layers-{ids}{most}{'-frozen' if self.frozen else ''}"

    @property
    def phases(self) -> tuple[Way, ...]:
        """The ways in their order, each for an equal share of the minutes."""
        return (self.way,) if self.before is None else (self.before, self.way)


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        configuration: What.
        minutes: It may take, evaluations, pruning and scoring left out.
        seed: Of the order of answers.
    """

    configuration: Configuration
    minutes: float
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.configuration.name}-{self.minutes:g}min-seed{self.seed}"


@dataclass(frozen=True)
class Plan:
    """The whole comparison.

    Attributes:
        configurations: Tried in the fewest minutes.
        budgets: Minutes, ascending; after each the better third goes on.
        seeds: The first is that of all but the last stage.
        finalists: Configurations that are trained with every seed.
        final_minutes: Of these trainings.
    """

    configurations: tuple[Configuration, ...]
    budgets: tuple[float, ...]
    seeds: tuple[int, ...]
    finalists: int
    final_minutes: float


@dataclass(frozen=True)
class Stage:
    """Trainings that are ranked together; which ones they are, stages before have decided."""

    title: str
    cells: tuple[Cell, ...]


Ranking = Callable[[Sequence[Cell]], Sequence[Cell]]  # the best first


def stages(plan: Plan, ranked: Ranking) -> Iterator[Stage]:
    """One stage after the other; what it holds must be there to be ranked when the next is asked for.

    Who has gone further stands before who has not, whatever the figures: more minutes make another race.
    """
    kept, order = plan.configurations, []
    for minutes in plan.budgets:
        cells = tuple(Cell(each, minutes, plan.seeds[0]) for each in kept)
        yield Stage(f"{minutes:g} minutes", cells)
        best = [cell.configuration for cell in ranked(cells)]
        order = best + [each for each in order if each not in best]
        kept = tuple(best[: ceil(len(best) / KEPT_SHARE)])
    finalists = order[: plan.finalists]
    last = (Cell(each, plan.final_minutes, seed) for seed in plan.seeds for each in finalists)
    yield Stage(f"{len(plan.seeds)} seeds of the best at {plan.final_minutes:g} minutes", tuple(last))


TOKENS, CACHED, LIVE = (
    Way("none", ("cross_entropy",)),
    Way("cache", ("negative_log_acceptance",)),
    Way("live", ("negative_log_acceptance",)),
)
CACHED_KL, CACHED_SUM = Way("cache", ("forward_kl",)), Way("cache", ("negative_log_acceptance", "cross_entropy"))

CONFIGURATIONS = (
    # without a teacher: depths
    *(Configuration(TOKENS, layers, 4096) for layers in (1, 2, 4)),
    # with a cached one: depths; other numbers of ids and other losses at one layer, which the table before had best
    *(Configuration(CACHED, layers, 4096) for layers in (1, 2, 4, 6)),
    *(Configuration(CACHED, 1, ids) for ids in (2048, 8192, None)),
    Configuration(CACHED_KL, 1, 4096),
    Configuration(CACHED_SUM, 1, 4096),
    # with input embeddings as they are
    *(Configuration(CACHED, layers, 4096, frozen=True) for layers in (1, 2)),
    Configuration(TOKENS, 1, 4096, frozen=True),
    # whether one after the other is better than either, and whether reading answers again is
    Configuration(CACHED, 1, 4096, before=TOKENS),
    Configuration(TOKENS, 1, 4096, epochs=1),
    # a live one; the second is the first quickstart
    Configuration(LIVE, 1, 4096),
    Configuration(LIVE, 6),
)
