"""What a recipe would make and cost, told before any weight is read. No torch: `widedraft check` answers at once."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.files.disk import free_bytes, size
from architectures.files.number_types import has_bfloat16, many_rows_gain
from architectures.pages.blocks import Facts, Section
from architectures.pages.counts import number_of
from architectures.pruning.plan import needed_scores
from architectures.shapes.shape import NAMED_SHAPES, Shape
from architectures.targets.target import NOT_HERE, is_gguf, packaged_words
from distill.checking.attempts import attempt
from distill.checking.due_orders import refuse_due_orders
from distill.checking.fits import NOT_SAID, Machines, Models, refuse_beyond, stage_needs, stage_rows
from distill.checking.later_failures import Looked, looks, scored_rows
from distill.checking.planned_cut import Cut, planned
from distill.checking.served_shape import engine_blocks
from distill.checkpoints.files import MASK_CHECKPOINTS_KEPT
from distill.data.longest_texts import refuse_long_calibration, refuse_long_texts
from distill.estimates.cache_sizes import cache_sizes
from distill.estimates.expected_work import (
    Work,
    expected_work,
    finished_counts,
    loss_words,
    read_prompts,
    read_rows,
    work_rows,
)
from distill.estimates.frozen_embeddings import refuse_tied, trained_parameters
from distill.estimates.held_target import held_target_rows
from distill.estimates.memory import GROUP_OF_PROCESSES, MASTER_BYTES, memory_parts, process_counts, together
from distill.estimates.trainings import Training, trainings
from distill.estimates.vocabulary_coverage import vocabulary_block
from distill.estimates.vocabulary_sizes import head_blocks
from distill.expected_time.devices import find_device
from distill.expected_time.lengths import mean_lengths
from distill.expected_time.page import time_rows, time_title
from distill.expected_time.stage_time import PlannedRun
from distill.hub.files.early_checks import refuse_unpublishable, refuse_without_gguf
from distill.recipe.families import refuse_unfit
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import refuse_k_beyond
from distill.run.run import Run, length_of
from distill.run.run_folder import require_run_folder
from eval.targets.layer_memory import refuse_asked_cap

Row = tuple[str, str]

BYTES_PER_TOKEN = 12  # of answers on disk: a token's id and its text as JSON


def check_recipe(recipe: Recipe, device: str | None = None, machines: Machines = NOT_SAID) -> list[Section]:
    """Shapes, parameters, layers kept, memory, disk, prompts, steps, tokens and hours.

    Reads the target's config.json, the prompt files, and the manifest of <run>/data if there is one.

    Args:
        recipe: What would be run.
        device: Where, as `find_device` takes it.
        machines: How many processes share it, and what they may hold.

    Raises:
        UserError: With everything wrong with target, shape and prompts, one line each.
    """
    problems: list[str] = []
    timed_on = attempt(lambda: find_device(device), problems)
    on_gpu = timed_on is not None and not timed_on.is_processor
    attempt(lambda: require_run_folder(Run.of(recipe)), problems)
    attempt(lambda: refuse_unpublishable(recipe), problems)
    cut = attempt(lambda: planned(recipe), problems)
    prompts = [attempt(partial(read_rows, source, recipe.data), problems) for source in recipe.data.prompts]
    tasks = [attempt(partial(read_prompts, source), problems) for source in recipe.eval.tasks]
    counts = attempt(lambda: finished_counts(recipe), problems)
    unchecked: list[str] = []
    if cut is not None:
        attempt(lambda: refuse_unfit(recipe, cut.target.family), problems)
        held = {"dtype": recipe.target.dtype, "holding": recipe.target.holding}
        attempt(lambda: refuse_asked_cap(recipe.target.path, cut.target, **held), problems)
        attempt(lambda: refuse_due_orders(Run.of(recipe), cut.source), problems)
        of = Looked(recipe, cut.target, cut.source, is_answered=counts is not None)
        seen = [attempt(look, problems) for look in looks(of, prompts, tasks)]
        unchecked = [words for words in seen if words is not None]
        attempt(lambda: refuse_k_beyond(recipe.distill.teacher, **entries_of(cut)), problems)
        attempt(lambda: refuse_texts_beyond(recipe, cut), problems)
        attempt(lambda: refuse_without_gguf(recipe.distill.push_to_hub, Run.of(recipe).draft.path, cut.draft), problems)
        if recipe.distill.freeze_input_embeddings:
            attempt(lambda: refuse_tied(tied=cut.draft.tied), problems)
    served = None if cut is None else attempt(partial(engine_blocks, recipe, cut.draft), problems)
    coverage = None if cut is None else attempt(partial(vocabulary_block, recipe, cut.target, cut.draft), problems)
    work = None if problems else attempt(lambda: expected_work(recipe, prompts, counts), problems)
    if cut is None or work is None or timed_on is None or coverage is None or served is None:
        raise UserError("\n".join(problems))
    trained = trainings(recipe, cut.target, cut.draft, on_gpu=on_gpu)
    machines, cached = machines.on(timed_on), sum(cache_bytes(recipe, cut, work).values())
    models = Models(cut.target, cut.source, cut.draft, cached, on_gpu=on_gpu)
    needs_of = partial(stage_needs, recipe, models, trained=trained)
    refuse_beyond(list(needs_of(processes=machines.processes or GROUP_OF_PROCESSES)), machines)
    rows = {
        f"{recipe.run_name}, in {recipe.run_dir}": model_rows(recipe, cut, unchecked),
        **stage_rows(list(needs_of(processes=machines.processes or 1)), machines),
        **coverage,
        **head_blocks(recipe, cut.source, cut.target, cut.draft),
        **served,
        **held_target_rows(recipe, cut.target, on_gpu=on_gpu),
        **{memory_title(each): memory_rows(each) for each in trained},
        f"disk ({size(free_bytes(Path(recipe.run_dir))).strip()} free)": disk_rows(recipe, cut, work),
        "work": [
            *work_rows(recipe, work),
            *scored_rows(recipe, tasks),
            ("loss", loss_words(recipe.distill)),
            *slow_rows(recipe),
        ],
        time_title(timed_on): time_rows(timed_run(recipe, cut, work, prompts), timed_on),
    }
    return [Section(title, [Facts(pairs)]) for title, pairs in rows.items()]


def timed_run(recipe: Recipe, cut: Cut, work: Work, prompts: Sequence[Sequence[Any] | None]) -> PlannedRun:
    """What hours are derived from."""
    return PlannedRun(recipe, cut.target, cut.draft, cut.source, work, mean_lengths(recipe.data, work, prompts))


def refuse_texts_beyond(recipe: Recipe, cut: Cut) -> None:
    """Raise UserError if a text may be longer than the target, or what the draft is cut from, was made for."""
    of_target, of_source = cut.lengths
    source = recipe.architecture.source or recipe.target.path
    selection = recipe.distill.token_selection
    reference = {} if selection is None else {selection.reference: length_of(Path(selection.reference))}
    refuse_long_texts(recipe, {recipe.target.path: of_target}, {source: of_source, **reference})
    if recipe.architecture.plan is None and needed_scores(cut.source, recipe.architecture):
        refuse_long_calibration(recipe, source, of_source)


def model_rows(recipe: Recipe, cut: Cut, unchecked: Sequence[str]) -> list[Row]:
    """Target, draft, which layers link them, and what could not be checked."""
    rows = [("target", recipe.target.path), *described(cut.target, None)]
    if recipe.architecture.source is not None:
        rows += [("cut out of", recipe.architecture.source), *described(cut.source, None)]
    rows += [("draft", cut.origin), *described(cut.draft, recipe.architecture.shape)]
    unread = (f"{path}: {NOT_HERE}. {packaged_words(path)}".rstrip(" .") for path in cut.unread)
    return rows + [("not checked", words) for words in (*unread, *unchecked)]


def described(shape: Shape, name: str | None) -> list[Row]:
    """A shape's dimensions, and its true size beside the published one."""
    nominal = [named.nominal for key, named in NAMED_SHAPES.items() if key == name or named.shape == shape]
    dimensions = (
        f"{number_of(shape.layers, 'layer')}, hidden {shape.hidden}, intermediate {shape.intermediate}, "
        f"{number_of(shape.heads, 'head')} of {shape.head_dim} ({shape.kv_heads} kv), vocabulary {shape.vocab}"
        f"{f', of which {shape.head_vocab} are said' if shape.head_vocab else ''}"
    )
    true_size = f"{shape.parameters():,} parameters, {shape.parameters_without_embeddings():,} without embeddings"
    return [("", dimensions), ("", f"{true_size}; nominal size: {nominal[0] if nominal else 'none'}")]


def memory_title(training: Training) -> str:
    """What the columns of a memory table are."""
    counts = process_counts(training)
    columns = "" if len(counts) == 1 else f" ({' | '.join(f'of {n}' for n in counts)}; by {parallelism(training)})"
    auto = "; less where auto finds too little" if training.microbatch is None else ""
    return f"memory of one process{columns}, {training.title}, estimated{auto}"


def parallelism(training: Training) -> str:
    """How processes share a training."""
    return "FSDP2" if training.sharded else "DDP"


def memory_rows(training: Training) -> list[Row]:
    """What one process holds at its fullest, where it is alone and where there are several."""
    columns = [memory_parts(training, processes) for processes in process_counts(training)]
    by_name = [{part.name: part for part in parts} for parts in columns]
    rows = []
    for name, last in by_name[-1].items():
        sizes = [size(parts[name].size_bytes) if name in parts else " " * len(size(0)) for parts in by_name]
        rows.append((" | ".join(sizes), f"{name}: {last.origin}"))
    return [*rows, (" | ".join(size(together(parts)) for parts in columns), "together")]


def disk_rows(recipe: Recipe, cut: Cut, work: Work) -> list[Row]:
    """What the run folder grows to."""
    kept = recipe.distill.save_num_checkpoints_to_keep
    parts = {f"init, {recipe.target.dtype}": cut.draft.weight_bytes(recipe.target.dtype)}
    if recipe.architecture.method == "learned_masks":
        count = MASK_CHECKPOINTS_KEPT + 1
        parts[f"{count} checkpoints of mask training"] = count * 3 * cut.target.parameters() * MASTER_BYTES
        parts[f"masks, {recipe.target.dtype}"] = cut.target.weight_bytes(recipe.target.dtype)
    if is_gguf(recipe.target.path):
        parts["target imported from GGUF, float32"] = cut.target.weight_bytes("float32")
    if work.prompts is not None:
        answered = work.prompts if recipe.distill.learns_answers else recipe.data.num_eval_prompts
        parts["answers, at most"] = answered * recipe.data.max_seq_len * BYTES_PER_TOKEN
    parts |= {f"{name}, at most": count for name, count in cache_bytes(recipe, cut, work).items()}
    moments = 2 * trained_parameters(cut.draft, frozen=recipe.distill.freeze_input_embeddings)
    parts[f"{kept} checkpoints, and one more while it is written"] = (
        (kept + 1) * (cut.draft.parameters() + moments) * MASTER_BYTES
    )
    parts[f"draft, {recipe.export.dtype}"] = cut.draft.weight_bytes(recipe.export.dtype)
    return sizes(parts)


def cache_bytes(recipe: Recipe, cut: Cut, work: Work) -> dict[str, int]:
    """Of a teacher's cache on the disk; none without one, or where nobody knows how many answers there will be."""
    if work.answers is None:
        return {}
    return cache_sizes(recipe, work, hidden=cut.target.hidden, rows=entries_of(cut)["rows"])


def entries_of(cut: Cut) -> dict[str, int]:
    """Ids of the target, and how many of them a cache's entries are of: those that the draft says."""
    return {"vocab": cut.target.vocab, "rows": cut.draft.head_rows}


def slow_rows(recipe: Recipe) -> list[Row]:
    """What this machine would compute in a number type that it must convert, with the remedy."""
    few, many = has_bfloat16(), many_rows_gain()
    named = {
        "target.dtype": (recipe.target.dtype, many),
        "distill.precision": (recipe.distill.precision, many),
        "eval.dtype": (recipe.eval.dtype, few),
    }
    slow = [f"{k}={value}" for k, (value, gains) in named.items() if value in ("bfloat16", "amp_bf16") and not gains]
    if not slow:
        return []
    why = "multiplies many rows faster in float32" if few else "has no bfloat16 instructions"
    return [("slow here", f"{', '.join(slow)}: this machine {why}; `auto` takes float32 here")]


def sizes(parts: dict[str, int]) -> list[Row]:
    """Named sizes in bytes, and their sum."""
    return [(size(count), name) for name, count in {**parts, "together": sum(parts.values())}.items()]
