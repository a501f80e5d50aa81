"""Memory of a process in every stage, on a machine that is told of: what cannot fit is refused. No torch.

Trainings are estimated at their fullest (distill/estimates/memory.py). Of stages that only read models the least is
told: their weights, and the keys and values of the texts that are decoded at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from architectures.errors import UserError
from architectures.files.disk import size
from architectures.pages.counts import number_of
from architectures.shapes.shape import Shape
from distill.estimates.held_target import held_target_bytes
from distill.estimates.memory import GROUP_OF_PROCESSES, memory_parts, together
from distill.estimates.trainings import Training
from distill.expected_time.devices import Device
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import Cache
from eval.targets.layer_memory import layer_memory

Row = tuple[str, str]


@dataclass(frozen=True)
class Machines:
    """Where a recipe is to run.

    Attributes:
        processes: That share a stage, one to a device; None where nobody says.
        device_gib: Memory of a device; None where nobody says.
    """

    processes: int | None = None
    device_gib: float | None = None

    def on(self, device: Device) -> "Machines":
        """With the memory of a GPU that is known, unless another was told."""
        known = None if device.published is None else device.published.memory_gib
        return self if self.device_gib is not None else replace(self, device_gib=known)


NOT_SAID = Machines()


@dataclass(frozen=True)
class Need:
    """What one process of a stage holds."""

    stage: str
    size_bytes: int
    origin: str
    remedy: str


def stage_needs(
    recipe: Recipe, target: Shape, source: Shape, draft: Shape, *, processes: int, trained: list[Training], on_gpu: bool
) -> Iterator[Need]:
    """What each stage of a run needs, in their order."""
    dtype, rows = recipe.target.dtype, recipe.data.batch_size
    whole = target.weight_bytes(dtype)
    held = whole if recipe.target.placement == "whole" else held_target_bytes(recipe, target, on_gpu=on_gpu)
    kept = rows * recipe.data.max_seq_len * target.kv_bytes_per_token(dtype)
    by_layers = "target.placement: layers, target.bits, or a smaller data.batch_size"
    texts = f"{number_of(rows, 'text')} of {recipe.data.max_seq_len:,} tokens"
    yield Need("answers, at least", held + kept, f"target, keys and values of {texts}", by_layers)
    yield Need("calibration, at least", *calibrated(recipe, source, on_gpu=on_gpu))
    if isinstance(recipe.distill.teacher, Cache):
        yield Need("teacher's cache, at least", held, "target", by_layers)
    for training in trained:
        shrinks = on_gpu and training.microbatch is None
        smallest = replace(training, microbatch=1) if shrinks else training
        how = "with micro-batches of 1, to which auto goes down" if shrinks else "the parts above, at their fullest"
        yield Need(f"{training.title}, estimated", together(memory_parts(smallest, processes)), how, remedy(smallest))
    scored, read = recipe.eval.batch_size, recipe.data.max_seq_len
    models = held + draft.weight_bytes(recipe.eval.dtype)
    decoded = scored * read * target.kv_bytes_per_token(recipe.eval.dtype)
    fewer = "target.placement: layers, target.bits, or a smaller eval.batch_size"
    yield Need("scorecard, at least", models + decoded, f"target, draft, {number_of(scored, 'row')} decoded", fewer)


def calibrated(recipe: Recipe, source: Shape, *, on_gpu: bool) -> tuple[int, str, str]:
    """What scores are computed of holds, in words too, and what makes it smaller."""
    target, text = recipe.target, (1, recipe.architecture.calibration.sequence_len)
    if target.placement == "layers" and recipe.architecture.source is None:
        in_layers = layer_memory(source, target.dtype, keeps_scores=not on_gpu)
        return (
            in_layers.least_bytes(*text),
            "one layer of what is cut",
            "a smaller architecture.calibration.sequence_len",
        )
    return (
        source.weight_bytes(target.dtype),
        "what is cut",
        "target.placement: layers, or architecture.method: first_last",
    )


def remedy(training: Training) -> str:
    """What makes a training smaller that is not done yet."""
    steps = [
        *([] if training.sharded else ["distill.parallelism: fsdp2"]),
        *([] if training.recomputed else ["distill.activation_checkpointing: true"]),
        *([] if training.teacher is None or training.teacher_sharded else ["distill.teacher: {parallelism: fsdp2}"]),
        *([] if training.microbatch == 1 else ["a smaller device_train_microbatch_size"]),
        "more processes",
    ]
    return ", ".join(steps[:-1]) + f" or {steps[-1]}" if len(steps) > 1 else steps[0]


def stage_rows(needs: list[Need], machines: Machines) -> dict[str, list[Row]]:
    """A block of what one process holds in every stage."""
    held = "" if machines.device_gib is None else f", on devices of {machines.device_gib:g} GiB"
    title = f"memory of one process (of {machines.processes or 1:,}), by stage{held}"
    return {title: [(size(need.size_bytes), f"{need.stage}: {need.origin}") for need in needs]}


def refuse_beyond(needs: list[Need], machines: Machines) -> None:
    """Raise UserError naming every stage that one device cannot hold, and what makes it smaller.

    Args:
        needs: Of one of `machines.processes`, or of as many as a machine has where nobody said how many.
        machines: Where the recipe is to run.
    """
    if machines.device_gib is None:
        return
    count = machines.processes or GROUP_OF_PROCESSES
    large = [need for need in needs if need.size_bytes > machines.device_gib * 2**30]
    lines = [
        f"{need.stage.split(',')[0]}: one of {number_of(count, 'process', 'processes')} needs "
        f"{size(need.size_bytes).strip()}, {need.stage.split(', ')[1]}, and a device has {machines.device_gib:g} GiB. "
        f"Use {need.remedy}."
        for need in large
    ]
    if lines:
        raise UserError("\n".join(lines))
