"""Memory of a process in every stage, on a machine that is told of: what cannot fit is refused. No torch.

All stages are estimated at their fullest: trainings by distill/estimates/memory.py, stages that only read models by
reading_memory.py, for texts as long as the recipe allows. Of these what is refused is the least that they can do with:
weights, and the keys and values of the texts that are decoded at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from architectures.errors import UserError
from architectures.files.disk import size
from architectures.pages.counts import number_of
from architectures.pruning.plan import needed_scores
from architectures.shapes.shape import DTYPE_BYTES, Shape
from distill.checking.reading_memory import answers_bytes, calibration_bytes, capture_bytes, resident, scoring_bytes
from distill.estimates.held_target import held_target_bytes
from distill.estimates.memory import GROUP_OF_PROCESSES, memory_parts, together
from distill.estimates.trainings import Training
from distill.expected_time.devices import Device
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import AnyCache, Cache, keeps_states, teacher_dtype
from eval.targets.layer_memory import layer_memory

Row = tuple[str, str]

BY_LAYERS = "target.placement: layers, target.bits"


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
    """What one process of a stage holds.

    Attributes:
        stage: As users call it.
        size_bytes: At its fullest, estimated.
        least_bytes: Without which it cannot be; a device with less is refused.
        origin: What the size is of.
        remedy: What makes it smaller.
    """

    stage: str
    size_bytes: int
    least_bytes: int
    origin: str
    remedy: str


@dataclass(frozen=True)
class Models:
    """What the stages of a run read, and where.

    Attributes:
        target: Shape of what answers and teaches.
        source: Of what the draft is cut out of.
        draft: Of what is trained.
        cached_bytes: Of the teacher's cache on the disk; 0 without one.
        on_gpu: Whether they run on a GPU.
    """

    target: Shape
    source: Shape
    draft: Shape
    cached_bytes: int
    on_gpu: bool


def stage_needs(recipe: Recipe, models: Models, *, processes: int, trained: list[Training]) -> Iterator[Need]:
    """What each stage of a run needs, in their order."""
    yield answers_need(recipe, models)
    if recipe.architecture.plan is None and needed_scores(models.source, recipe.architecture):
        yield calibration_need(recipe, models)
    if isinstance(recipe.distill.teacher, Cache):
        yield cache_need(recipe, recipe.distill.teacher, models)
    yield from (training_need(each, processes, on_gpu=models.on_gpu) for each in trained)
    yield scorecard_need(recipe, models)


def held_bytes(recipe: Recipe, models: Models, dtype: str) -> int:
    """A target as it is held: its weights, or the least that one read layer by layer can do with."""
    if recipe.target.placement == "whole":
        return models.target.weight_bytes(dtype)
    return held_target_bytes(recipe, models.target, on_gpu=models.on_gpu)


def with_work(recipe: Recipe, held: int, working: int, models: Models) -> int:
    """A target and what it works with; one that is not whole counts its own work, and fills what it may take."""
    return held if recipe.target.placement != "whole" else held + resident(working, on_gpu=models.on_gpu)


def answers_need(recipe: Recipe, models: Models) -> Need:
    data, held = recipe.data, held_bytes(recipe, models, recipe.target.dtype)
    least = held + data.batch_size * data.max_seq_len * models.target.kv_bytes_per_token(recipe.target.dtype)
    full = with_work(recipe, held, answers_bytes(recipe, models.target, on_gpu=models.on_gpu), models)
    length = f"{data.max_seq_len - 1:,} + {data.max_new_tokens:,} tokens"
    texts = f"target, and {number_of(data.batch_size, 'text')} of {length}"
    return Need("answers", max(full, least), least, texts, f"{BY_LAYERS}, or a smaller data.batch_size")


def calibration_need(recipe: Recipe, models: Models) -> Need:
    target, text = recipe.target, (1, recipe.architecture.calibration.sequence_len)
    if target.placement == "layers" and recipe.architecture.source is None:
        least = layer_memory(models.source, target.dtype, keeps_scores=not models.on_gpu).least_bytes(*text)
        smaller = "a smaller architecture.calibration.sequence_len"
        return Need("calibration", least, least, "one layer of what is cut", smaller)
    weights = models.source.weight_bytes(target.dtype)
    full = weights + resident(calibration_bytes(recipe, models.source, on_gpu=models.on_gpu), on_gpu=models.on_gpu)
    words = f"what is cut, and a text of {recipe.architecture.calibration.sequence_len:,} tokens"
    return Need("calibration", full, weights, words, "target.placement: layers, or architecture.method: first_last")


def cache_need(recipe: Recipe, cache: AnyCache, models: Models) -> Need:
    target, on_gpu, data = models.target, models.on_gpu, recipe.data
    working = capture_bytes(recipe, cache, target, models.cached_bytes, on_gpu=on_gpu)
    if keeps_states(cache):
        head = target.vocab * target.hidden * DTYPE_BYTES[recipe.target.dtype]
        words = "states that are there, and the target's head"
        return Need("teacher's cache", head + resident(working, on_gpu=on_gpu), head, words, "contents: hidden")
    held = held_bytes(recipe, models, teacher_dtype(recipe.target.dtype, recipe.distill.precision))
    words = f"target, and {number_of(data.batch_size, 'text')} of {data.max_seq_len:,} tokens"
    return Need("teacher's cache", with_work(recipe, held, working, models), held, words, BY_LAYERS)


def training_need(training: Training, processes: int, *, on_gpu: bool) -> Need:
    """At the smallest micro-batch that auto goes down to, where it is not told."""
    shrinks = on_gpu and training.microbatch is None
    smallest = replace(training, microbatch=1) if shrinks else training
    words = "with micro-batches of 1, to which auto goes down" if shrinks else "the parts below, at their fullest"
    full = together(memory_parts(smallest, processes))
    return Need(training.title, full, full, words, remedy(smallest))


def scorecard_need(recipe: Recipe, models: Models) -> Need:
    config, on_gpu = recipe.eval, models.on_gpu
    held = held_bytes(recipe, models, config.dtype)
    drafts = 2 * models.draft.weight_bytes(config.dtype)
    kept = config.batch_size * recipe.data.max_seq_len * models.target.kv_bytes_per_token(config.dtype)
    least = held + drafts // 2 + kept
    full = with_work(recipe, held, scoring_bytes(recipe, models.target, models.draft, on_gpu=on_gpu), models) + drafts
    words = f"target, draft before and after, and {number_of(config.batch_size, 'text')} decoded"
    return Need("scorecard", max(full, least), least, words, f"{BY_LAYERS}, or a smaller eval.batch_size")


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
    """A block of what one process holds in every stage, which of them holds most, and whether that fits."""
    device = "" if machines.device_gib is None else f"; a device has {machines.device_gib:g} GiB"
    title = f"memory of one process (of {machines.processes or 1:,}) in every stage, estimated at its fullest{device}"
    rows = [(need.stage, f"{size(need.size_bytes)}  {need.origin}") for need in needs]
    return {title: [*rows, ("largest", largest_words(needs, machines.device_gib))]}


def largest_words(needs: list[Need], device_gib: float | None) -> str:
    """The stage with the largest need, and whether a device can hold it."""
    most = max(needs, key=lambda need: need.size_bytes)
    told = f"{size(most.size_bytes)}  {most.stage}"
    if device_gib is None:
        return told
    device = int(device_gib * 2**30)
    if most.size_bytes <= device:
        return f"{told}: fits, and {size(device - most.size_bytes).strip()} are left"
    tight = [need for need in needs if need.size_bytes > device]
    words = "; ".join(f"{need.stage}: {need.remedy}" for need in tight)
    return f"{told}: does not fit where texts are as long as the recipe allows. Use for {words}"


def refuse_beyond(needs: list[Need], machines: Machines) -> None:
    """Raise UserError naming every stage that one device cannot hold, and what makes it smaller.

    Args:
        needs: Of one of `machines.processes`, or of as many as a machine has where nobody said how many.
        machines: Where the recipe is to run.
    """
    if machines.device_gib is None:
        return
    count = number_of(machines.processes or GROUP_OF_PROCESSES, "process", "processes")
    lines = [
        f"{need.stage}: one of {count} needs {size(need.least_bytes).strip()}, "
        f"{'at least' if need.least_bytes < need.size_bytes else 'estimated'}, and a device has "
        f"{machines.device_gib:g} GiB. Use {need.remedy}."
        for need in needs
        if need.least_bytes > machines.device_gib * 2**30
    ]
    if lines:
        raise UserError("\n".join(lines))
