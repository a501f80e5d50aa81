"""How fast a student trains beside a live teacher, from a cache of it, and alone: tokens a second, MFU and memory.

Aims: 45 % MFU with the teacher live, and from a cache 80 % of the speed of the student alone, both by the recipe's
micro-batch and sequences of 2,048 tokens. "alone" learns the answers' tokens, and asks no teacher.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from architectures.shapes.shape import NAMED_SHAPES, Shape
from architectures.targets.target import read_config
from benchmarks.gpu.attempt import attempt
from benchmarks.gpu.stage import Row, Setting, Size, SkippedError, lack_of_memory, lack_of_time, number_type
from benchmarks.gpu.training import Cell, Pair, estimated_bytes, flops_per_step, measure_training, recipe_of
from benchmarks.loss import reset_peak
from distill.recipe.recipe import load_recipe
from distill.training.trainer import training_device

LIVE_MFU, CACHED_SHARE = 0.45, 0.80
RECIPES = Path(__file__).parents[2] / "recipes"
WIDE = RECIPES / "llama2-7b-wide-796m.yaml"
SMOLLM2 = Path(__file__).parents[1] / "smollm2.yaml"


@dataclass(frozen=True)
class Pace:
    """How long a cell will take, until one has been measured.

    Attributes:
        flops_per_s: A low guess.
        setup_s: Of models, cache and trainer.
    """

    flops_per_s: float
    setup_s: float


PACES: Mapping[Size, Pace] = {"full": Pace(150e12, 5.0), "laptop": Pace(50e9, 3.0), "tiny": Pace(1e8, 0.5)}


def cells(size: Size) -> list[Cell]:
    """What is measured, the most valuable first: the three that the aims are about begin."""
    if size == "full":
        return full_cells()
    sizes = {"laptop": (256, 4, 4, 3, 1), "tiny": (32, 2, 4, 2, 1)}
    seq_len, microbatch, batch, steps, warmup = sizes[size]
    live = Cell(source="live", seq_len=seq_len, microbatch=microbatch, batch=batch, steps=steps, warmup=warmup)
    first = [live, replace(live, source="cached"), replace(live, source="none")]
    if size == "laptop":
        return first
    mixed = replace(live, mixed_lengths=True)
    return [*first, replace(live, source="none", optimizer="decoupled_adamw"), mixed, replace(mixed, packing=True)]


def full_cells() -> list[Cell]:
    """Of a GPU. Steps accumulate four micro-batches where the recipe's do sixteen, so that all fit into the time.

    What the first H200 answered is left out: which optimiser's step is shorter, and micro-batches of 1,024 tokens.
    """
    live = Cell(source="live", seq_len=2048, microbatch=4, batch=16, steps=8, warmup=2)
    cached, alone = replace(live, source="cached"), replace(live, source="none")
    fewer = {"steps": 5, "warmup": 1, "batch": 8}
    mixed = replace(live, **fewer, microbatch=8, mixed_lengths=True)
    return [
        live,
        cached,
        alone,
        replace(live, **fewer, microbatch=8),
        mixed,
        replace(mixed, packing=True),
    ]


def pair_of(setting: Setting) -> Pair:
    """LLaMA-7B and the 796M shape; else the target's shape and a fifth of its layers."""
    if setting.size == "full":
        teacher, student = "llama-7b", "wide-796m"
        return Pair(teacher, NAMED_SHAPES[teacher].shape, student, NAMED_SHAPES[student].shape, WIDE)
    target = Shape.from_config(read_config(setting.target))
    layers = max(1, target.layers // 5)
    return Pair("target", target, f"{layers} layers of target", replace(target, layers=layers), SMOLLM2)


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each cell; what was aimed at follows as soon as it is known.

    Raises:
        SkippedError: If training would take another device than the setting's.
    """
    require_training_device(setting.device)
    pair, pace, rows_by_source = pair_of(setting), PACES[setting.size], dict[str, Row]()
    recipe_batch = load_recipe(pair.recipe).distill.global_train_batch_size
    idle_bytes = reset_peak(str(setting.device))
    for cell in cells(setting.size):
        row = row_of(pair, cell, setting, pace, idle_bytes=idle_bytes)
        yield row
        if "step_s" in row:
            pace = replace(pace, flops_per_s=0.8 * row["flops_per_s"])
        if cell.source not in rows_by_source:
            rows_by_source[cell.source] = row
            yield from aims(cell.source, rows_by_source, recipe_batch=recipe_batch)


def require_training_device(device: torch.device) -> None:
    """Raise SkippedError unless it is the one that `distill.train` takes on this machine."""
    taken = "cuda" if training_device().name == "gpu" else "cpu"
    if device.type != taken:
        raise SkippedError(
            f"training takes {taken} on this machine, not {device}; hide its GPUs (CUDA_VISIBLE_DEVICES)"
        )


def row_of(pair: Pair, cell: Cell, setting: Setting, pace: Pace, *, idle_bytes: int) -> Row:
    """One cell, measured or left out with the reason."""
    dtype = number_type(setting.device)
    precision = "amp_bf16" if dtype == torch.bfloat16 else "fp32"
    recipe = recipe_of(pair, cell, setting.work / "training", precision)
    estimated, flops = estimated_bytes(pair, recipe), flops_per_step(pair, cell)
    told = {
        "teacher": pair.teacher_name,
        "student": pair.student_name,
        **asdict(cell),
        "precision": precision,
        "dtype": str(dtype).removeprefix("torch."),
        "flops_per_step": flops,
        "estimated_gib": round(estimated / 2**30, 3),
    }
    what = f"a training with the teacher {cell.source}"
    needed_s = pace.setup_s + (cell.steps + cell.warmup) * flops / pace.flops_per_s
    problem = lack_of_memory(setting, estimated, what) or lack_of_time(setting, needed_s, what)
    if problem:
        return {**told, "skipped": problem}
    return attempt(told, partial(measure_training, pair, cell, recipe, setting.device, idle_bytes=idle_bytes))


def aims(source: str, rows_by_source: Mapping[str, Row], *, recipe_batch: int) -> Iterator[Row]:
    """What was aimed at, of a cell that was just measured; at the recipe's batch the optimiser's step weighs less."""
    if source == "live" and rows_by_source["live"].get("mfu") is not None:
        yield {
            "aim": f"MFU of {LIVE_MFU:.0%} with a live teacher",
            "aimed": LIVE_MFU,
            "reached": rows_by_source["live"]["mfu"],
            "reached_at_recipe_batch": round(mfu_at_batch(rows_by_source["live"], recipe_batch), 4),
        }
    both = [rows_by_source.get(each, {}).get("step_s") for each in ("none", "cached")]
    if source == "none" and None not in both:
        aim = f"from a cache {CACHED_SHARE:.0%} of the speed of the student alone"
        yield {"aim": aim, "aimed": CACHED_SHARE, "reached": round(both[0] / both[1], 4)}


def mfu_at_batch(row: Row, batch: int) -> float:
    """MFU of so many sequences to a step, if only the optimiser's time stays what it is."""
    times = batch / row["batch"]
    step_s = times * (row["step_s"] - row["optimiser_s"]) + row["optimiser_s"]
    return times * row["flops_per_step"] / step_s / row["peak_flops"]
