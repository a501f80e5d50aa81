"""report.html: one page about one or more scorecards, usable offline: images are embedded.

With several runs every table and figure shows their drafts next to each other.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import TypeAdapter

from architectures.console import Table
from architectures.errors import UserError
from architectures.files import read_typed, write_text
from eval import scorecard_tables as tables
from eval.benchmark import BenchmarkFile
from eval.checkpoint_curve import COLUMNS as CURVE_COLUMNS
from eval.checkpoint_curve import JSON_NAME as CURVES_NAME
from eval.checkpoint_curve import Curve, point_rows, read_curves
from eval.intervals import Estimate
from eval.scorecard import EXAMPLES_NAME, GRID_NAME
from eval.scorecard_schema import CARD_NAME, GridFile, RecordedScorecard, Scorecard, read_any_scorecard, read_grid_file
from eval.side_by_side import LEGEND, DecodedExample, read_examples
from eval.speedup import promise

METRICS_NAME = "logs/metrics.jsonl"  # in the run directory
BENCHMARKS = "benchmark*.json"  # of `widedraft benchmark --engine`, in the run directory or its draft
METRICS = {"Training loss": "loss/train/total", "Held-out acceptance rate": "metrics/eval/alpha"}
MAX_ROWS = 30  # longer tables are folded
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito 2008
MARKERS = ("o", "s", "^", "D", "v", "P")
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "widedraft",  # without a salt, ids are random
    "text.parse_math": False,  # a name may contain a dollar sign
}


@dataclass(frozen=True)
class ScoredRun:
    """A scorecard and the files next to it; empty if absent."""

    path: Path
    name: str
    card: Scorecard | RecordedScorecard
    examples: Sequence[DecodedExample] = ()
    curves: Sequence[Curve] = ()
    grid: GridFile | None = None
    metrics: Sequence[Mapping[str, float]] = ()
    benchmarks: Sequence[BenchmarkFile] = ()


@dataclass(frozen=True)
class Image:
    """A figure; `svg` in base64."""

    title: str
    svg: str


@dataclass(frozen=True)
class ReportSection:
    """A section of the page; the template leaves out empty parts."""

    title: str
    table: Table = field(default_factory=lambda: Table((), ()))
    images: Sequence[Image] = ()
    examples: Sequence[DecodedExample] = ()


def write_report(runs: Sequence[Path], out: Path, *, latency: Path | None = None) -> Path:
    """Write the page about some runs, each given by its directory, the directory of its scorecard, or the file.

    Args:
        runs: The first is the baseline of the rest.
        latency: Step times at other batches, for scorecards without their own.

    Raises:
        UserError: If a scorecard is missing or damaged, or has another target than the first.
    """
    grid = None if latency is None else read_grid_file(latency)
    return write_page(read_runs(runs, grid), out)


def read_runs(runs: Sequence[Path], grid: GridFile | None = None) -> list[ScoredRun]:
    paths = [scorecard_path(run) for run in runs]
    if len(set(paths)) < len(paths):
        raise UserError(f"report: {', '.join(map(str, runs))} names a scorecard twice. Name every run once.")
    scored = [read_run(path, grid) for path in paths]
    targets = {run.card.target.fingerprint: run for run in scored if isinstance(run.card, Scorecard)}
    if len(targets) > 1:
        named = ", ".join(f"{run.path} ({fingerprint[:12]})" for fingerprint, run in targets.items())
        raise UserError(f"report: scorecards of different targets: {named}. Make one report per target.")
    if len({type(run.card) for run in scored}) > 1:
        raise UserError("report: recorded responses and scorecards with a target do not compare. Name them separately.")
    return scored


def scorecard_path(run: Path) -> Path:
    """Find the scorecard of a run: the file itself, or in the directory, or in its `eval`."""
    for path in [run] if run.is_file() else [run / "eval" / CARD_NAME, run / CARD_NAME]:
        if path.is_file():
            return path.resolve()
    raise UserError(f"{run}: no {CARD_NAME} there, nor in {run / 'eval'}. `widedraft eval` writes one.")


def read_run(path: Path, grid: GridFile | None = None) -> ScoredRun:
    folder = path.parent
    name = folder.parent.name if folder.name == "eval" else folder.name
    grid_path, curves, examples = folder / GRID_NAME, folder / CURVES_NAME, folder / EXAMPLES_NAME
    metrics = folder.parent / METRICS_NAME
    card = read_any_scorecard(path)
    target = card.target.fingerprint if isinstance(card, Scorecard) else None
    return ScoredRun(
        path,
        name,
        card,
        read_examples(examples).examples if examples.is_file() else (),
        read_curves(curves).curves if curves.is_file() else (),
        read_grid_file(grid_path) if grid is None and grid_path.is_file() else grid,
        [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else (),
        read_benchmarks(folder.parent if folder.name == "eval" else folder, target),
    )


def read_benchmarks(run: Path, target: str | None) -> list[BenchmarkFile]:
    """Read the benchmarks in engines that are in a run directory or its draft.

    Args:
        target: Its fingerprint, not compared with files of llama.cpp and OpenVINO; None if unknown.

    Raises:
        UserError: If one is damaged, or of another target.
    """
    found = []
    for path in sorted([*run.glob(BENCHMARKS), *(run / "draft").glob(BENCHMARKS)]):
        record = read_typed(path, TypeAdapter(BenchmarkFile), "Run widedraft benchmark again, or remove it.")
        if record.engine.startswith("vllm") and target not in (None, record.target.fingerprint):
            raise UserError(f"{path}: measures another target than the scorecard. Measure again, or remove it.")
        found += [record] if record.engine else []
    return found


def in_engines(runs: Mapping[str, Sequence[BenchmarkFile]]) -> Table:
    """Tabulate benchmarks in engines, by the names of their runs."""
    records = [
        (f"{name}: {record.engine}" if len(runs) > 1 else record.engine, record)
        for name, benchmarks in runs.items()
        for record in benchmarks
    ]
    machines = {" and ".join(r.provenance.hardware.accelerators) or r.provenance.hardware.processor for _, r in records}
    return replace(tables.speed_table(records), title=f"In engines, {', '.join(sorted(machines))}")


def write_page(runs: Sequence[ScoredRun], out: Path) -> Path:
    cards = named(runs)
    recorded = {name: card for name, card in cards.items() if isinstance(card, RecordedScorecard)}
    scored = {name: card for name, card in cards.items() if isinstance(card, Scorecard)}
    if scored:
        [first, *_] = scored.values()
        title, sections = f"{', '.join(cards)}: drafts of {first.target.path}", scored_sections(runs, scored)
    else:
        title, sections = f"Recorded responses: {', '.join(cards)}", recorded_sections(recorded)
    warnings = [
        text if len(cards) == 1 else f"{name}: {text}" for name, card in cards.items() for text in card.warnings
    ]
    sections += [ReportSection("Models", tables.models(cards))]
    sections += [
        ReportSection("Setup" if len(cards) == 1 else f"Setup: {n}", tables.setup(c)) for n, c in cards.items()
    ]
    template = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    ).get_template("report.html.jinja")
    page = template.render(
        title=title, note=tables.NOTE, warnings=warnings, sections=sections, legend=LEGEND, max_rows=MAX_ROWS
    )
    write_text(page, out)
    return out


def named(runs: Sequence[ScoredRun]) -> dict[str, Scorecard | RecordedScorecard]:
    """Name scorecards by their runs, by their paths if names collide."""
    count = Counter(run.name for run in runs)
    return {run.name if count[run.name] == 1 else str(run.path.parent): run.card for run in runs}


def scored_sections(runs: Sequence[ScoredRun], cards: Mapping[str, Scorecard]) -> list[ReportSection]:
    drafts, by_name = tables.scored_drafts(cards), dict(zip(cards, runs, strict=True))
    temperatures = sorted({temperature for _, temperature in tables.at_temperatures(drafts)})
    figures = [figures_by_k(drafts, temperature) for temperature in temperatures]
    engines = in_engines({name: run.benchmarks for name, run in by_name.items()})
    sections = [
        *(
            ReportSection(table.title, table)
            for table in (engines, tables.decoding(drafts), tables.measured(drafts), tables.results(drafts))
        ),
        ReportSection(
            "By number of speculative tokens (k)",
            tables.by_k(drafts),
            [figure for length, speedup, _ in figures for figure in (length, speedup)],
        ),
        ReportSection(
            "Acceptance by position in the verification step",
            tables.positions(drafts),
            [by_position for *_, by_position in figures],
        ),
        *(
            ReportSection(table.title, table)
            for table in (tables.groups(drafts), tables.differences(cards), tables.on_stream(cards))
            if table is not None
        ),
        ReportSection("Step times", tables.step_times(cards), [depth_figure(drafts)]),
        ReportSection("Predicted speedup by batch and context", by_batch(drafts, by_name)),
        *curve_sections(by_name),
        ReportSection("Training", images=training_figures(by_name)),
    ]
    texts = [ReportSection(f"Who wrote which token: {name}", examples=run.examples) for name, run in by_name.items()]
    return [section for section in (*sections, *texts) if section.table.rows or section.examples or section.images]


def recorded_sections(cards: Mapping[str, RecordedScorecard]) -> list[ReportSection]:
    rows = [(f"{name}, {row.rule}", row) for name, card in cards.items() for row in card.acceptance]
    lengths = {label: ([e.num_speculative_tokens for e in row.by_k], [e.tau for e in row.by_k]) for label, row in rows}
    joint = {
        label: ([p.position for p in row.by_k[-1].positions], [p.joint for p in row.by_k[-1].positions])
        for label, row in rows
    }
    return [
        ReportSection(
            "Results",
            tables.recorded_results(cards),
            [series("Acceptance length", lengths, "k", "tokens per verification step")],
        ),
        ReportSection(
            "Acceptance by position in the verification step",
            tables.recorded_positions(cards),
            [series("Accepted of all verification steps", joint, "position", "share")],
        ),
    ]


def by_batch(drafts: Sequence[tables.ScoredDraft], runs: Mapping[str, ScoredRun]) -> Table:
    """Predict speedups at other batches and contexts from step times and acceptance; empty without step times."""
    grids = {id(run.card): run.grid for run in runs.values()}
    rows = []
    for draft, temperature in tables.at_temperatures(drafts):
        grid = grids[id(draft.card)]
        name = None if grid is None else grid.name_of(draft.card.model(draft.draft).fingerprint)
        if grid is None or name is None:
            continue
        for cell in grid.cells:
            steps = cell.step_times(name)
            k, speedup = promise(draft.row(temperature).by_k, steps, batch=cell.batch)
            cells = (cell.batch, cell.context_tokens, cell.how, k, f"{speedup:.2f}x", f"{1000 * steps.target_s:.2f}")
            rows.append((draft.label, f"{temperature:g}", *cells, f"{1000 * steps.draft_s:.2f}"))
    columns = ("draft", "T", "batch", "context", "steps", "k", "predicted", "target step ms", "draft step ms")
    return Table(columns, rows)


def curve_sections(runs: Mapping[str, ScoredRun]) -> list[ReportSection]:
    """Plot saved checkpoints against tokens trained, for each temperature."""
    sections = []
    for temperature in sorted({curve.temperature for run in runs.values() for curve in run.curves}):
        curves = [(n, c) for n, run in runs.items() for c in run.curves if c.temperature == temperature]
        tokens = {name: [point.tokens for point in curve.points] for name, curve in curves}
        lengths = {name: (tokens[name], [point.tau for point in curve.points]) for name, curve in curves}
        speeds = {
            name: (tokens[name], [Estimate(point.predicted, None) for point in curve.points]) for name, curve in curves
        }
        rows = [(name, curve.num_speculative_tokens, *cells) for name, curve in curves for cells in point_rows(curve)]
        images = [
            series("Acceptance length of checkpoints", lengths, "tokens trained", "tokens per verification step"),
            series("Predicted speedup of checkpoints", speeds, "tokens trained", "predicted speedup", dashed=speeds),
        ]
        table = Table(("run", "k", *CURVE_COLUMNS), rows)
        sections.append(ReportSection(f"Checkpoints over training, T={temperature:g}", table, images))
    return sections


# Figures. Values with intervals have error bars; predictions have open markers.

Series = Mapping[str, tuple[Sequence[float], Sequence[Estimate]]]


def image(title: str, draw: Callable[[Axes], None]) -> Image:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.add_subplot(title=title)
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", ncols=2)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return Image(title, base64.b64encode(file.getvalue()).decode())


def series(title: str, lines: Series, xlabel: str, ylabel: str, *, dashed: Collection[str] = ()) -> Image:
    """Plot lines with error bars; predicted speedups dashed with open markers, and a line at 1."""

    def draw(axes: Axes) -> None:
        for index, (label, (x, values)) in enumerate(lines.items()):
            style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            if label in dashed:
                style |= {"markerfacecolor": "white", "linestyle": "--"}
            y = [value.value for value in values]
            bounds = [value.interval or (value.value, value.value) for value in values]
            below = [max(0.0, at - low) for at, (low, _) in zip(y, bounds, strict=True)]
            above = [max(0.0, high - at) for at, (_, high) in zip(y, bounds, strict=True)]
            axes.errorbar(x, y, yerr=(below, above), capsize=2, label=label, **style)
        if dashed:
            axes.axhline(1, color="black", linewidth=1)
        else:
            axes.set_ylim(bottom=0)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.locator_params(axis="x", integer=True)

    return image(title, draw)


def figures_by_k(drafts: Sequence[tables.ScoredDraft], temperature: float) -> tuple[Image, Image, Image]:
    """Plot acceptance length and speedup without prefill by k, and acceptance by position.

    Shows all drafts of a single scorecard, or only the primary drafts of several.
    """
    several = len({id(draft.card) for draft in drafts}) > 1
    lengths, speedups, joint, timed = {}, {}, {}, {}
    for draft in drafts:
        if temperature not in draft.card.temperatures or (several and not draft.is_primary):
            continue
        entries = draft.row(temperature).by_k
        last, ks = entries[-1].positions, [entry.num_speculative_tokens for entry in entries]
        lengths[draft.label] = ks, [entry.tau for entry in entries]
        speedups[f"{draft.label}, predicted"] = ks, [tables.predicted(draft, temperature, k) for k in ks]
        joint[draft.label] = [entry.position for entry in last], [entry.joint for entry in last]
        for live in draft.card.lives if draft.is_primary else ():
            if live.temperature == temperature:
                timed[draft.label] = [live.num_speculative_tokens], [live.decoding_speedup]
                timed |= {way.way: ([way.num_speculative_tokens], [way.decoding_speedup]) for way in live.ways}
    at = f"T={temperature:g}"
    return (
        series(f"Acceptance length, {at}", lengths, "k", "tokens per verification step"),
        series(f"Speedup, {at}", speedups | timed, "k", "times plain decoding", dashed=speedups),
        series(f"Accepted of all verification steps, {at}", joint, "position", "share"),
    )


def depth_figure(drafts: Sequence[tables.ScoredDraft]) -> Image:
    """Plot the step time for one token against the number of layers, of the target and all drafts."""
    card = drafts[0].card
    points = {"target": ([card.target.layers], [card.latency.target.p50_ms])}
    for draft in drafts:
        step = draft.card.latency.of(draft.draft).one_token
        points[draft.label] = [draft.card.model(draft.draft).layers], [step.p50_ms]
    return series("Step time, 1 token, batch 1", points, "layers", "ms (median)")


def training_figures(runs: Mapping[str, ScoredRun]) -> list[Image]:
    """Plot logged metrics against batches trained."""

    def draw(axes: Axes, key: str) -> None:
        for name, run in runs.items():
            points = [(row["batch"], row[key]) for row in run.metrics if key in row]
            axes.plot([batch for batch, _ in points], [value for _, value in points], label=name)
        axes.set(xlabel="batches")

    logged = {key for run in runs.values() for row in run.metrics for key in row}
    return [image(title, partial(draw, key=key)) for title, key in METRICS.items() if key in logged]
