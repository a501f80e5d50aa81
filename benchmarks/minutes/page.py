"""The comparison as tables: for each processor and budget every configuration, the winner and who may be it. Pure."""

import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from architectures.pages.blocks import Table
from architectures.pages.markdown import markdown
from benchmarks.minutes.cells import Cell, Configuration, Stage
from benchmarks.minutes.merit import Worth, is_behind, merit, shape_of, steps_by_shape, worths
from benchmarks.minutes.record import INPUTS_NAME, Finished, read_finished
from eval.acceptance.speedup import StepTimes
from eval.pages.verdict import figure_words

Key = TypeVar("Key", bound=Hashable)
BEST, MAY_BE = "best", "may be"
OVERHEAD_S = 100.0  # of a cell, beside its minutes, where none has told


def bench_page(out: Path) -> str:
    """Every processor's cells, apart from each other."""
    folders = sorted(path for path in out.glob("*") if path.is_dir())
    processors = [(folder, read_finished(folder)) for folder in folders]
    parts = [processor_page(folder, cells) for folder, cells in processors if cells]
    return "\n\n".join(parts) if parts else f"{out}: no cell yet."


def processor_page(folder: Path, results: Sequence[Finished]) -> str:
    """The tables of one processor, those of the most minutes first."""
    steps = steps_by_shape(results)
    budgets = sorted({result.cell.minutes for result in results}, reverse=True)
    several = any(
        value > 1 for value in (len({getattr(result.machine, name) for result in results}) for name in VARYING)
    )
    return "\n\n".join(
        [
            f"## {results[0].machine.processor}",
            machines_sentence(results) + (" NOT ALL ALIKE: compare with care." if several else ""),
            *made_once(folder),
            *(
                budget_part(minutes, [result for result in results if result.cell.minutes == minutes], steps)
                for minutes in budgets
            ),
        ]
    )


VARYING = ("processor", "torch", "threads", "precision", "eval_dtype")


def machines_sentence(results: Sequence[Finished]) -> str:
    """What all cells were made with."""
    kinds = {
        f"torch {result.machine.torch}, {result.machine.threads} threads, training in {result.machine.precision}, "
        f"scored in {result.machine.eval_dtype}"
        for result in results
    }
    return "; ".join(sorted(kinds)) + "."


def made_once(folder: Path) -> list[str]:
    """What the answers and the cache took, which no cell is charged for."""
    path = folder / INPUTS_NAME
    if not path.is_file():
        return []
    seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    told = ", ".join(f"{name} {value / 60:.1f} min" for name, value in seconds.items())
    return [f"Made once for all cells, and not counted: {told}."]


def budget_part(minutes: float, results: Sequence[Finished], steps: dict[tuple[int, int | None], StepTimes]) -> str:
    """The table of one budget, the best first, and what it says."""
    cells: dict[Configuration, list[Finished]] = {}
    for result in results:
        cells.setdefault(result.cell.configuration, []).append(result)
    merits = {configuration: merit(of_it, steps) for configuration, of_it in cells.items()}
    marks = marks_of(merits)
    order = list(marks)
    sets = list(worths(results[0], steps))
    columns = [
        *("training", "layers", "ids", "seeds", "minutes", "epochs", "tokens seen"),
        *(f"{name}, T = {temperature:g}" for name, temperature in sets),
        *("step", "all four", ""),
    ]
    rows = [row(each, cells[each], merits[each], marks[each], steps) for each in order]
    others = [each.name for each in order if marks[each] == MAY_BE]
    alone = "" if len(order) == 1 else ", and every other is behind it"
    doubt = f", which is not decided against {', '.join(others)}" if others else alone
    return f"### {minutes:g} minutes\n\n{markdown(Table(columns, rows))}\n\nBest: {order[0].name}{doubt}."


def marks_of(merits: Mapping[Key, Worth]) -> dict[Key, str]:
    """The best first: which it is, and which may be it."""
    order = sorted(merits, key=lambda key: -merits[key].value)
    best = merits[order[0]]
    return {key: MAY_BE if not is_behind(merits[key], best) else "" for key in order} | {order[0]: BEST}


def row(
    configuration: Configuration,
    cells: Sequence[Finished],
    worth: Worth,
    mark: str,
    steps: dict[tuple[int, int | None], StepTimes],
) -> list[str]:
    """One configuration: alpha (tau at the best lookahead) and predicted speed of each set, means over its seeds."""
    phases = [phase for result in cells for phase in result.phases]
    trained_min = sum(result.train_s for result in cells) / len(cells) / 60
    missed = sum(result.missed_by for result in cells) / len(cells)
    return [
        " then ".join(f"{way.source} {' + '.join(way.losses)}" for way in configuration.phases)
        + ("" if configuration.epochs is None else f", at most {configuration.epochs} epochs")
        + (", embeddings frozen" if configuration.frozen else ""),
        str(configuration.layers),
        "all" if configuration.vocabulary is None else f"{configuration.vocabulary:,}",
        str(len(cells)),
        f"{trained_min:.2f} ({missed:+.1%})",
        f"{sum(phase.epochs for phase in phases) / len(cells):.1f}",
        f"{sum(phase.answer_tokens_seen for phase in phases) / len(cells):,.0f}",
        *(set_cell(cells, index, steps) for index in range(len(cells[0].acceptance))),
        f"{steps[shape_of(cells[0].cell)].draft_s:.3f}",
        figure_words(worth.value, worth.interval, times=True),
        mark,
    ]


def set_cell(cells: Sequence[Finished], index: int, steps: dict[tuple[int, int | None], StepTimes]) -> str:
    """Greedy match or alpha with its interval, of the first seed, then tau at 1 to 4, and the mean predicted speed."""
    rows = [result.acceptance[index] for result in cells]
    name = "greedy_match" if rows[0]["temperature"] == 0 else "alpha"
    taus = [
        sum(each["lookahead"][at]["tau"]["value"] for each in rows) / len(rows)
        for at in range(len(rows[0]["lookahead"]))
    ]
    set_worths = [worths(result, steps)[rows[0]["set"], rows[0]["temperature"]] for result in cells]
    speed = sum(worth.value for worth in set_worths) / len(set_worths)
    mean = sum(each[name]["value"] for each in rows) / len(rows)
    low, high = (sum(each[name]["interval"][end] for each in rows) / len(rows) for end in (0, 1))
    shown = ", ".join(f"{tau:.2f}" for tau in taus)
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]; τ {shown}; {speed:.2f}x at {set_worths[0].lookahead}"


def stage_lines(stage: Stage, done: Sequence[Finished], *, before: Sequence[Cell] = ()) -> list[str]:
    """A stage that is known: its cells, which of them are there, and how long the others take.

    Args:
        stage: It.
        done: Every cell that is there.
        before: Cells that earlier stages make.
    """
    names = {result.cell.name for result in done} | {cell.name for cell in before}
    overhead_s = sum(result.wall_s - result.train_s for result in done) / len(done) if done else OVERHEAD_S
    missing = [cell for cell in stage.cells if cell.name not in names]
    minutes = sum(cell.minutes + overhead_s / 60 for cell in missing)
    head = f"{stage.title}: {len(stage.cells)} cells, {len(missing)} to do, about {minutes:.0f} minutes"
    return [head, *(f"  {'done' if cell.name in names else '    '} {cell.name}" for cell in stage.cells)]
