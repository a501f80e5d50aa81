"""The hours, step times and floors in recipe headers and the table of docs/recipes.md, derived for one GPU. No torch.

`python -m distill.commands.recipe_reference` writes them too, from benchmarks/results/devices if an H100 or H200 was
measured, else from what is published of an H100. A recipe takes part whose header has a paragraph `Estimated:`; that
one, `Hours:`, `Step:` and `Floors:` are rewritten whole. In the table the cells of its row under the columns COLUMNS
are, and the table of floors in docs/choosing.md is written whole.
"""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from architectures.files.atomic import write_text
from architectures.pages.blocks import Sentence, Table
from architectures.pages.markdown import between, markdown
from architectures.shapes.shape import Shape
from distill.checking.check import timed_run
from distill.checking.planned_cut import planned
from distill.estimates.expected_work import unwritten_work
from distill.expected_time.devices import PUBLISHED, Device, device_files, known_device
from distill.expected_time.rates import Rate, served_step_ms
from distill.expected_time.stage_time import StageTime
from distill.expected_time.stages import stage_times
from distill.recipe.recipe import load_recipe

ROOT = Path(__file__).parents[2]
RECIPES, DOC, FLOORS_DOC = ROOT / "recipes", ROOT / "docs" / "recipes.md", ROOT / "docs" / "choosing.md"
WIDTH, INDENT = 118, 13  # of a header's lines, and of "# Estimated: "
MARK = "Estimated"
COLUMNS = ("hours on one GPU", "ms a step")
BEGIN, END = "<!-- hours: written by `python -m distill.commands.recipe_reference` -->", "<!-- end of hours -->"
FLOORS_BEGIN, FLOORS_END = (
    "<!-- floors: written by `python -m distill.commands.recipe_reference` -->",
    "<!-- end of floors -->",
)
NOMINAL = PUBLISHED[0].name


def nominal_device(folders: tuple[Path, ...] | None = None) -> Device:
    """The GPU that hours are told of: an H100 that was measured, else an H200, else an H100 as it is published."""
    measured = [slug for model in ("h100", "h200") for slug in device_files(folders) if model in slug]
    device = known_device(NOMINAL, folders)
    return device if device.figures is not None or not measured else known_device(measured[0], folders)


def derived_paragraphs(path: Path, device: Device) -> dict[str, str]:
    """The paragraphs of a recipe's header that are derived, by label."""
    times, step = derived(path, device)
    hours = {"Hours": hours_words(times, device), "Step": step_words(step)}
    return {**hours, "Floors": floors_of(path, device), MARK: amounts(times)}


def floors_of(path: Path, device: Device) -> str:
    """What the least times of steps say of a recipe."""
    from distill.expected_time.floor_words import (
        floor_words,  # imports scipy, which `python -m distill.commands.recipe_reference` may
    )

    return floor_words(device, *pair_of(path))


def pair_of(path: Path) -> tuple[Shape, Shape, Shape, str]:
    """A recipe's target, its draft, what that is cut out of, and the number type they are scored in."""
    recipe = load_recipe(path)
    cut = planned(recipe)
    return cut.target, cut.draft, cut.source, recipe.eval.dtype


def derived(path: Path, device: Device) -> tuple[list[StageTime], Rate]:
    """Times of a recipe's stages before anything of it was run, and of a step of its draft."""
    recipe = load_recipe(path)
    cut = planned(recipe)
    sources = [None] * len(recipe.data.prompts)
    run = timed_run(recipe, cut, unwritten_work(recipe, sources), sources)
    return stage_times(run, device), served_step_ms(device, cut.draft, recipe.eval.dtype)


def hours_words(times: list[StageTime], device: Device) -> str:
    parts = ", ".join(f"{hours(time)} for {'the ' * (time.name != 'training')}{time.name}" for time in times)
    return f"estimate, on one {device.name}: {parts}; {basis(device)}; nobody has run it yet"


def basis(device: Device) -> str:
    """Whether hours follow from a measured device."""
    if device.figures is None:
        return "assumed from what is published"
    return f"from what was measured of it on {device.figures.measured}"


def step_words(step: Rate) -> str:
    """A step of the draft."""
    return f"estimate: {step.value:.1f} ms a token drafted ({step.words})"


def amounts(times: list[StageTime]) -> str:
    """What the hours are derived from."""
    return " ".join(f"{time.name.capitalize()}: {time.words}." for time in times)


def hours(time: StageTime) -> str:
    """In hours, to a tenth."""
    return "unknown" if time.seconds is None else f"{time.seconds / 3600:.1f}"


def is_derived(text: str) -> bool:
    """Whether a recipe's header has derived paragraphs."""
    return f"\n# {MARK}: " in text


def with_paragraphs(text: str, paragraphs: Mapping[str, str]) -> str:
    """A recipe with paragraphs of its header replaced."""
    for label, words in paragraphs.items():
        text, count = re.subn(
            rf"^# {label}: .*\n(?:#{' ' * (INDENT - 1)}.*\n)*",
            lambda _, label=label, words=words: wrapped(label, words),
            text,
            count=1,
            flags=re.MULTILINE,
        )
        assert count, f"the header has no paragraph {label}"
    return text


def wrapped(label: str, words: str) -> str:
    """A paragraph of a header."""
    first = f"# {label}:".ljust(INDENT)
    rest = f"#{' ' * (INDENT - 1)}"
    return textwrap.fill(words, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) + "\n"


def derived_recipes(folder: Path = RECIPES) -> list[Path]:
    """The recipes whose hours are derived."""
    return [path for path in sorted(folder.glob("*.yaml")) if is_derived(path.read_text(encoding="utf-8"))]


def with_cells(page: str, device: Device) -> str:
    """The page with derived cells, and the line that says what they are derived from."""
    inside = page.split(BEGIN)[1].split(END)[0]
    cells = {path.stem: table_cells(*derived(path, device)) for path in derived_recipes()}
    lines = [with_row_cells(line, inside, cells) for line in inside.splitlines() if line.startswith("|")]
    told = f"Hours and steps of the large ones: on one {device.name}, {basis(device)}."
    return between(page, BEGIN, END, "\n".join([*lines, "", told]))


def with_row_cells(line: str, table: str, cells: Mapping[str, tuple[str, str]]) -> str:
    """A row of the table; of a derived recipe with its new cells."""
    [titles] = [row for row in table.splitlines() if all(column in row for column in COLUMNS)]
    positions = [[title.strip() for title in titles.split("|")].index(column) for column in COLUMNS]
    row = line.split("|")
    name = re.match(r"`([^`]+)`", row[1].strip())
    if name is None or name[1] not in cells:
        return line
    for position, cell in zip(positions, cells[name[1]], strict=True):
        row[position] = f" {cell} "
    return "|".join(row)


def table_cells(times: list[StageTime], step: Rate) -> tuple[str, str]:
    """Hours of all stages, and milliseconds of a step."""
    known = [time.seconds for time in times if time.seconds is not None]
    total = f"{sum(known) / 3600:.1f}" if len(known) == len(times) else "unknown"
    return total, f"{step.value:.1f}"


def with_floors(page: str, device: Device) -> str:
    """The page with the table of floors, and the line that says what they are derived from."""
    from distill.expected_time.floor_words import COLUMNS as TITLES
    from distill.expected_time.floor_words import floor_cells

    rows = [[f"`{path.stem}`", *floor_cells(device, *pair_of(path))] for path in derived_recipes()]
    told = f"Unmeasured: floors of one {device.name}, by bandwidth and peak {basis(device)}."
    return between(page, FLOORS_BEGIN, FLOORS_END, markdown(Table(TITLES, rows), Sentence(told)))


def write_headers() -> None:
    device = nominal_device()
    for path in derived_recipes():
        write_text(with_paragraphs(path.read_text(encoding="utf-8"), derived_paragraphs(path, device)), path)
    write_text(with_cells(DOC.read_text(encoding="utf-8"), device), DOC)
    write_text(with_floors(FLOORS_DOC.read_text(encoding="utf-8"), device), FLOORS_DOC)
