"""The tables of docs/scale.md, from recipes, the figures of a GPU, a price, and what was measured here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from architectures.pages.blocks import Block, Section, Sentence, Table
from architectures.pages.markdown import between, markdown
from benchmarks.scale.measure import RECIPE, WORDS
from benchmarks.scale.measured import ANSWERS, COMMAND, Measured, compared
from benchmarks.scale.predicted import GPUS, OF_A_NODE, RECIPES, Network, Scaled, scaled
from distill.commands.recipe_headers import basis
from distill.expected_time.devices import Device, find_device, slug_of
from distill.expected_time.stage_time import StageTime

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"
WANTED = 6.0  # times the answers of one GPU, on 8
GB, TB = 1e9, 1e12


@dataclass(frozen=True)
class Asked:
    """What the tables are made for.

    Attributes:
        device: The GPU.
        network: Between GPUs.
        price: Of a GPU and hour.
        words: How the price came.
    """

    device: Device
    network: Network
    price: float
    words: str


def scaled_recipes(device: Device, folder: Path = RECIPES) -> list[Scaled]:
    """Every recipe that comes with widedraft."""
    return [scaled(path, device) for path in sorted(folder.glob("*.yaml"))]


def with_scale(text: str, asked: Asked, measured: Measured | None) -> str:
    """A page with its tables made anew."""
    return between(text, BEGIN, END, markdown(*blocks(scaled_recipes(asked.device), asked, measured), level=2))


def blocks(recipes: Sequence[Scaled], asked: Asked, measured: Measured | None) -> list[Block]:
    return [
        Sentence(assumptions(asked)),
        Section("Hours and cost", [Table(["recipe", *map(str, GPUS)], [hours_row(each, asked) for each in recipes])]),
        Section("Stage by stage", [stage_table(recipes, asked)]),
        Section("What no GPU more makes faster", [serial_table(recipes, asked)]),
        Section("Answers on eight GPUs", [answers_table(recipes, measured)]),
        Section("Memory", [memory_table(recipes)]),
        Section("Traffic", [traffic_table(recipes, asked)]),
        Section("Predicted and measured", measured_blocks(measured)),
    ]


def assumptions(asked: Asked) -> str:
    """What stands behind every figure."""
    network = asked.network
    return (
        f"Predicted for {asked.device.name}, {basis(asked.device)}; {OF_A_NODE} to a node. Assumed: "
        f"{network.of_gpu:g} GB/s each way from every GPU of a node, {network.of_node:g} GB/s from a node to others, "
        f"and that nothing is computed while gradients are sent. Price: {asked.words}. `python -m benchmarks.scale "
        "--price 3.5 --of-node 50` tells the same of yours. Not counted: what `check` leaves out (loading, the cut, "
        "writing files)."
    )


def hours_row(recipe: Scaled, asked: Asked) -> list[str]:
    """Hours of a whole run, and what all GPUs cost meanwhile."""
    return [f"`{recipe.name}`", *(hours_cell(recipe, gpus, asked) for gpus in GPUS)]


def hours_cell(recipe: Scaled, gpus: int, asked: Asked) -> str:
    """Hours and cost; or how many GPUs at most."""
    seconds = recipe.seconds(gpus, asked.network)
    if seconds is None:
        return f"{recipe.most_gpus} at most" if gpus > recipe.most_gpus else "unknown"
    hours = seconds / 3600
    return f"{hours:.3g} h, ${hours * gpus * asked.price:,.2f}"


def stage_table(recipes: Sequence[Scaled], asked: Asked) -> Table:
    """Minutes of every stage, and into what it is cut."""
    columns = ["recipe", "stage", "cut into", *(f"min on {gpus}" for gpus in GPUS)]
    rows = [
        [f"`{recipe.name}`", time.name, cut_words(time), *stage_cells(recipe, time, asked)]
        for recipe in recipes
        for time in recipe.times
    ]
    return Table(columns, rows)


def stage_cells(recipe: Scaled, time: StageTime, asked: Asked) -> Iterator[str]:
    for gpus in GPUS:
        seconds = recipe.stage_s(time, gpus, asked.network) if gpus <= recipe.most_gpus else None
        yield "" if seconds is None else f"{seconds / 60:.3g}"


def cut_words(time: StageTime) -> str:
    """Pieces of a stage, and what one process does alone."""
    if time.seconds is None:
        return "unknown"
    if time.steps:
        return f"{time.parts[0].pieces} sequences of each of {time.steps:,} steps"
    pieces = ", ".join(f"{part.pieces:,}" for part in time.parts if part.pieces > 1)
    alone = f"{time.serial_s / 60:.2g} min of one process"
    return f"pieces: {pieces}; {alone}" if pieces and time.serial_s else (f"pieces: {pieces}" if pieces else alone)


def serial_table(recipes: Sequence[Scaled], asked: Asked) -> Table:
    """Amdahl's rest: what one process does while the others wait, and the bound it sets."""
    columns = ["recipe", "min of one process", "of one GPU's time", "times as fast on 8", "on 64", "never more than"]
    return Table(columns, [serial_row(recipe, asked) for recipe in recipes])


def serial_row(recipe: Scaled, asked: Asked) -> list[str]:
    whole = recipe.seconds(1, asked.network)
    name, rest = f"`{recipe.name}`", recipe.serial_s
    if whole is None:
        return [name, f"{rest / 60:.2g}", *["unknown"] * 4]
    faster = [None if (each := recipe.seconds(gpus, asked.network)) is None else whole / each for gpus in (8, 64)]
    told = [f"{recipe.most_gpus} at most" if each is None else f"{each:.1f}" for each in faster]
    return [name, f"{rest / 60:.2g}", f"{rest / whole:.1%}", *told, f"{whole / rest:.0f}"]


def answers_table(recipes: Sequence[Scaled], measured: Measured | None) -> Table:
    """How many times the answers of one GPU eight write in the same time."""
    columns = ["recipe", "files, held out and to train on", "files of the busiest", "times the answers"]
    if measured is not None:
        columns.append("times the efficiency of two processes here")
    return Table(columns, [row for recipe in recipes for row in answers_rows(recipe, measured)])


def answers_rows(recipe: Scaled, measured: Measured | None) -> Iterator[list[str]]:
    for time in recipe.times:
        gain = answers_gain(time)
        if gain is None:
            continue
        pieces = [part.pieces for part in time.parts]
        busiest = sum(-(-each // OF_A_NODE) for each in pieces)
        row = [f"`{recipe.name}`", " + ".join(map(str, pieces)), str(busiest), f"{gain:.1f}{few_words(gain)}"]
        yield row if measured is None else [*row, f"{gain * measured.efficiency(ANSWERS):.1f}"]


def answers_gain(time: StageTime) -> float | None:
    """Of answers: by how much eight GPUs are faster than one; None of other stages, and where it is not known."""
    shared_s = time.on(OF_A_NODE)
    return None if time.name != ANSWERS or not time.seconds or not shared_s else time.seconds / shared_s


def few_words(gain: float) -> str:
    return "" if gain >= WANTED else ": too few files, lower data.shard_size"


def memory_table(recipes: Sequence[Scaled]) -> Table:
    """GiB of a process in the training that holds most."""
    shown = [1, 8, 64]
    rows = [[f"`{recipe.name}`", *(memory_cell(recipe.memory_bytes(gpus)) for gpus in shown)] for recipe in recipes]
    return Table(["recipe", *(f"GiB of each of {gpus}" for gpus in shown)], rows)


def memory_cell(count: int | None) -> str:
    return "" if count is None else f"{count / 2**30:.1f}"


def traffic_table(recipes: Sequence[Scaled], asked: Asked) -> Table:
    """Bytes of a training's step, and how long they take at most beside its computing."""
    columns = [
        "recipe", "training", "GB reduced a step", "gathered", "scattered", "GB sent by a GPU, of 8",
        "GB out of a node, of 64", "TB out of a node, all steps", "ms a step on 8: computing", "sending",
        "on 64: computing", "sending",
    ]  # fmt: skip
    return Table(columns, [row for recipe in recipes for row in traffic_rows(recipe, asked.network)])


def traffic_rows(recipe: Scaled, network: Network) -> Iterator[list[str]]:
    for time in recipe.times:
        if time.steps:
            most = recipe.traffic(time, min(recipe.most_gpus, OF_A_NODE))
            moved = [f"{most.size(kind) / GB:.3g}" for kind in ("reduced", "gathered", "scattered")]
            yield [f"`{recipe.name}`", time.name, *moved, *traffic_cells(recipe, time, network)]


def traffic_cells(recipe: Scaled, time: StageTime, network: Network) -> Iterator[str]:
    """On a node and on eight of them; empty where so many GPUs cannot share a step."""
    by_gpus = {gpus: recipe.traffic(time, gpus) for gpus in (8, 64) if gpus <= recipe.most_gpus}
    leaving = by_gpus[64].out_of(OF_A_NODE) if 64 in by_gpus else None
    yield f"{by_gpus[8].sent / GB:.3g}" if 8 in by_gpus else ""
    yield "" if leaving is None else f"{leaving / GB:.3g}"
    yield "" if leaving is None else f"{leaving * time.steps / TB:.3g}"
    for gpus in (8, 64):
        computed_s = time.on(gpus) if gpus in by_gpus else None
        yield "" if computed_s is None else f"{1e3 * computed_s / time.steps:.3g}"
        yield "" if computed_s is None else f"{1e3 * network.seconds(by_gpus[gpus]):.3g}"


def measured_blocks(measured: Measured | None) -> list[Block]:
    """One process and two, beside what was predicted of them."""
    if measured is None:
        return [Sentence(f"Not measured yet: `{COMMAND}` does, in six minutes of a quiet machine of two cores.")]
    device = find_device(slug_of(measured.device))
    same = scaled(ROOT / RECIPE, device, *WORDS)
    columns = [
        "stage", "processes, threads of each", "answers or steps", "tokens", "s", "tokens/s", "predicted s",
        "measured over predicted", "predicted from",
    ]  # fmt: skip
    names = {name: f"{measured.efficiency(name):.2f}" for name in dict.fromkeys(row.stage for row in measured.rows)}
    told = ", ".join(f"{value} at {name}" for name, value in names.items())
    return [
        Sentence(
            f"{measured.device}, {measured.measured[:10]}, commit {(measured.commit or 'unknown')[:8]}; `{COMMAND}`."
        ),
        Table(columns, [list(row) for row in compared(measured, same)]),
        Sentence(f"Efficiency of two processes of one thread over one, 1 being half the time: {told}."),
    ]
