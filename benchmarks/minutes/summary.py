"""The comparison in one short table, for docs/losses.md: the cells of all budgets together, the best first. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from architectures.pages.blocks import Table
from architectures.pages.markdown import between, markdown
from benchmarks.minutes.cells import Configuration, Way
from benchmarks.minutes.merit import Shape, Worth, merit, shape_of, steps_by_shape
from benchmarks.minutes.page import marks_of
from benchmarks.minutes.record import Finished, read_finished
from eval.acceptance.speedup import StepTimes
from eval.pages.verdict import figure_words

BEGIN, END = "<!-- equal minutes of {}: begin -->", "<!-- equal minutes of {}: end -->"  # a folder of cells
COLUMNS = (
    *("teacher, loss", "layers", "ids", "minutes", "seeds", "readings"),
    *("own held-out: greedy, T = 1", "unseen: greedy, T = 1", "a draft's step", "predicted speed", ""),
)


def with_summary(text: str, cells: Path) -> str:
    """A page with the table of a folder's cells between the two marks that name it."""
    begin, end = (mark.format(cells.name) for mark in (BEGIN, END))
    return between(text, begin, end, summary(read_finished(cells)))


def summary(results: Sequence[Finished]) -> str:
    """A row for each configuration and its minutes; those that may be the best are marked."""
    steps = steps_by_shape(results)
    groups: dict[tuple[Configuration, float], list[Finished]] = {}
    for result in results:
        groups.setdefault((result.cell.configuration, result.cell.minutes), []).append(result)
    merits = {key: merit(of_it, steps) for key, of_it in groups.items()}
    rows = [short_row(groups[key], merits[key], mark, steps) for key, mark in marks_of(merits).items()]
    return markdown(Table(list(COLUMNS), rows))


def short_row(cells: Sequence[Finished], worth: Worth, mark: str, steps: Mapping[Shape, StepTimes]) -> list[str]:
    """One configuration of so many minutes: means over its seeds."""
    configuration, num = cells[0].cell.configuration, len(cells)
    return [
        words_of(configuration),
        str(configuration.layers),
        "all" if configuration.vocabulary is None else f"{configuration.vocabulary:,}",
        f"{cells[0].cell.minutes:g}",
        str(num),
        f"{sum(phase.epochs for result in cells for phase in result.phases) / num:.1f}",
        *alphas(cells),
        f"{steps[shape_of(cells[0].cell)].draft_s:.3f}",
        figure_words(worth.value, worth.interval, times=True),
        mark,
    ]


def words_of(configuration: Configuration) -> str:
    """What is trained, as docs say it."""
    once = ", one reading" if configuration.epochs == 1 else ""
    frozen = ", embeddings frozen" if configuration.frozen else ""
    return f"{', then '.join(words_of_way(way) for way in configuration.phases)}{once}{frozen}"


def words_of_way(way: Way) -> str:
    """Where the teacher is, and the losses."""
    return f"{way.source}, {' + '.join(f'`{loss}`' for loss in way.losses)}"


def alphas(cells: Sequence[Finished]) -> list[str]:
    """Greedy match and alpha at temperature 1, of each set."""
    by_set: dict[str, dict[float, float]] = {}
    for index, row in enumerate(cells[0].acceptance):
        name = "greedy_match" if row["temperature"] == 0 else "alpha"
        mean = sum(result.acceptance[index][name]["value"] for result in cells) / len(cells)
        by_set.setdefault(row["set"], {})[row["temperature"]] = mean
    return [", ".join(f"{of_set[temperature]:.3f}" for temperature in sorted(of_set)) for of_set in by_set.values()]
