"""`widedraft check`: every mistake of a recipe at once, and what a run makes and costs. No torch, no weights."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from architectures.compatibility import LABELS, EngineName, Pair, Problem, check, read_model
from architectures.errors import UserError
from architectures.files.disk import free_bytes
from architectures.pruning.plan import load_plan
from architectures.pruning.selection import needed_scores, plan_pruning
from architectures.shapes.context_length import ContextLength, context_length
from architectures.shapes.requested_shape import WIDTHS, draft_shape, masked_shape
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import NAMED_SHAPES, Shape
from architectures.tables import plural
from architectures.targets.target import NOT_HERE, cached_config, config_at_hand, is_gguf, local_path, packaged_words
from architectures.vocabulary import (
    CONFIG_KEY,
    COUNTED,
    DRAFT_VOCABULARY_NAME,
    TOKENIZER,
    coverage,
    ids_by_count,
    list_file,
    read_draft_vocabulary,
    read_list,
    read_tokens,
    refuse_small_head,
    with_asked_head,
)
from distill.data.held_out import distinct
from distill.data.longest_texts import refuse_long_texts
from distill.estimate import (
    GIB,
    PROCESSES_PER_MACHINE,
    Device,
    Encode,
    PlannedShapes,
    Rows,
    Work,
    disk_bytes,
    expected_work,
    find_device,
    finished_counts,
    read_prompts,
    read_rows,
    scored_prompts,
    stage_needs,
    stage_seconds,
    trained_lengths,
    training_memory,
    training_steps,
    trainings,
)
from distill.hub.push import refuse_unpublishable
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import refuse_k_beyond
from distill.recipe.sections.training import TIED_AND_FROZEN, missing_package
from distill.recipe.validate import refuse_orders, refuse_unfit
from distill.run.run import Run
from distill.run.run_folder import require_run_folder
from distill.vocabulary import id_counts_in, listed_ids, pooled
from eval.targets.layer_memory import refuse_asked_cap

Row = tuple[str, str]
Value = TypeVar("Value")

MAX_COUNTED_TOKENS = 2_000_000  # for coverage: a second's reading

# --- shapes of a run, from config files only -----------------------------------------------------------------------


def planned_shapes(recipe: Recipe) -> PlannedShapes:
    """Shapes of target, source and draft.

    Raises:
        UserError: If a checkpoint is not here and not known, or the draft cannot be cut.
    """
    wanted = recipe.architecture
    target, length, is_read = shape_at_hand("target.path", recipe.target.path, recipe.target.revision)
    if target.head_vocab:
        refuse_small_head({CONFIG_KEY: target.head_vocab}, recipe.target.path)
    source, source_length, unread = target, length, () if is_read else (recipe.target.path,)
    if wanted.source_at is not None:
        source, source_length, is_read = shape_at_hand("architecture.source", *wanted.source_at)
        unread += () if is_read else (wanted.source_at[0],)
    draft, how = draft_and_origin(wanted, source, recipe.seed)
    draft = with_asked_head(replace(draft, vocab=target.vocab), wanted.vocabulary)
    return PlannedShapes(target, source, draft, how, (length, source_length), unread)


def shape_at_hand(key: str, path: str, revision: str) -> tuple[Shape, ContextLength | None, bool]:
    """Shape and context length of a checkpoint the recipe names, and whether its own config.json gave them."""
    try:
        config, own = config_at_hand(path, revision)
    except UserError as error:
        hint = f" A GGUF file becomes this folder by `widedraft import FILE --to {path}`."
        raise UserError(f"{key}: {error}{'' if is_gguf(path) or packaged_words(path) else hint}") from error
    return Shape.from_config(config, where=path), context_length(config, where=path), own


def draft_and_origin(wanted: ArchitectureConfig, source: Shape, seed: int) -> tuple[Shape, str]:
    """The draft's shape, and how it is cut out of its source, in words."""
    if wanted.plan is not None:
        plan = load_plan(Path(wanted.plan), source, target=None)
        return plan.draft, f"{wanted.plan}, layers {', '.join(map(str, plan.source_layers))}"
    if wanted.method == "learned_masks":
        return masked_shape(source, wanted), f"masks trained for {wanted.masks.max_duration}"
    draft = draft_shape(source, wanted)
    narrower = any(getattr(draft, name) != getattr(source, name) for name in WIDTHS)
    method = f"{wanted.method}, widths by {wanted.width_method}" if narrower else wanted.method
    if wanted.stages is not None:
        if wanted.stages[0] > source.layers:
            raise UserError(
                f"architecture.stages must begin with at most the {source.layers} layers there are, got "
                f"{wanted.stages}. A draft is cut from its target: choose fewer."
            )
        return draft, f"{method}, in stages of {', '.join(map(str, wanted.stages))} layers"
    if needed_scores(source, wanted):
        text = f"{wanted.calibration.tokens} tokens of {wanted.calibration.text or 'the prompts'}"
        return draft, f"{method}, from scores on {text}"
    plan = plan_pruning(source, wanted, seed=seed)
    return draft, f"{method}, layers {', '.join(map(str, plan.source_layers))} of 0 to {source.layers - 1}"


# --- the check -----------------------------------------------------------------------------------------------------


def check_recipe(
    recipe: Recipe, device: str | None = None, *, processes: int | None = None, device_gib: float | None = None
) -> list[Row]:
    """Name and value of everything a run makes and costs.

    Args:
        recipe: What would be run.
        device: Where hours and memory are computed for, as `find_device` takes it.
        processes: That share every stage; None computes one, and refuses what 8 cannot hold either.
        device_gib: Memory of a device; None takes what is known of the device.

    Raises:
        UserError: With everything that is wrong, one line each.
    """
    problems: list[str] = []

    def attempt(step: Callable[[], Value]) -> Value | None:
        """What a step returns; None, and its message among the problems, if the user has to mend something."""
        try:
            return step()
        except UserError as error:
            problems.append(str(error))
            return None

    # Everything that can be read is read; what is wrong is collected.
    on = attempt(lambda: find_device(device))
    attempt(lambda: require_run_folder(Run.of(recipe)))
    attempt(lambda: refuse_unpublishable(recipe))
    shapes = attempt(lambda: planned_shapes(recipe))
    sources = [attempt(partial(read_rows, source, recipe)) for source in recipe.data.prompts]
    for source in recipe.eval.tasks:
        attempt(partial(read_prompts, source))
    counts = attempt(lambda: finished_counts(recipe))
    encode, covered, engines = None, None, None
    if shapes is not None:
        encode = encoder_at_hand(Run.of(recipe))
        for refuse in refusals_of(recipe, shapes, sources, is_generated=counts is not None):
            attempt(refuse)
        engines = attempt(lambda: engine_rows(recipe, shapes.draft))
        covered = attempt(lambda: coverage_words(Run.of(recipe), shapes.target.vocab))
    work = None if problems else attempt(lambda: expected_work(recipe, sources, counts, encode))
    if problems or shapes is None or work is None:
        raise UserError("\n".join(problems))

    # What one device cannot hold is refused, at as many processes as a machine has where nobody says how many.
    on_gpu = on is not None and on.is_gpu
    gib = device_gib or (None if on is None else on.memory_gib)
    needs = partial(stage_needs, recipe, shapes, on_gpu=on_gpu)
    for need in needs(processes=processes or PROCESSES_PER_MACHINE):
        if gib is not None and need.size_bytes > gib * GIB:
            among = plural(processes or PROCESSES_PER_MACHINE, "process", "processes")
            problems.append(
                f"{need.stage}: one of {among} needs {need.size_bytes / GIB:.1f} GiB, and a device has {gib:g} GiB. "
                f"Use {need.remedy}."
            )
    if problems:
        raise UserError("\n".join(problems))

    not_checked = [f"{path}: {NOT_HERE}. {packaged_words(path)}".rstrip(" .") for path in shapes.unread]
    unopened = [str(named.name) for named, rows in zip(recipe.data.prompts, sources, strict=True) if rows is None]
    not_checked += [f"data set {name}: opened by generate" for name in unopened if counts is None]
    return [
        ("run", f"{recipe.run_name}, in {recipe.run_dir}"),
        *shape_rows(recipe, shapes),
        *([] if covered is None else [("coverage", covered)]),
        *(engines or []),
        *memory_rows(recipe, shapes, needs(processes=processes or 1), processes or 1, gib, on_gpu=on_gpu),
        disk_row(recipe, shapes, work),
        *work_rows(recipe, work),
        *hour_rows(recipe, shapes, work, on, is_counted=encode is not None),
        *(("not checked", words) for words in not_checked),
    ]


def refusals_of(
    recipe: Recipe, shapes: PlannedShapes, sources: Sequence[Rows | None], *, is_generated: bool
) -> list[Callable[[], None]]:
    """Each raises UserError for one thing that would fail in a later stage, some of them hours after the start."""
    target, draft, run = shapes.target, shapes.draft, Run.of(recipe)
    held = {"dtype": recipe.target.dtype, "holding": recipe.target.holding}
    entries = {"vocab": target.vocab, "rows": draft.head_rows}
    found: list[Callable[[], None]] = [
        lambda: refuse_unfit(recipe, target.family),
        lambda: refuse_asked_cap(recipe.target.path, target, **held),
        lambda: refuse_due_orders(run, shapes.source),
        lambda: refuse_k_beyond(recipe.distill.teacher, **entries),
        lambda: refuse_texts_beyond(recipe, shapes),
        lambda: refuse_missing_packages(recipe),
        lambda: refuse_foreign_list(recipe, target.vocab),
    ]
    if recipe.distill.freeze_input_embeddings and draft.tied:
        found.append(lambda: refuse(TIED_AND_FROZEN))
    if not is_generated:
        found.append(lambda: refuse_few_prompts(recipe, sources))
    return found


def refuse(message: str) -> None:
    raise UserError(message)


def refuse_due_orders(run: Run, source: Shape) -> None:
    """Raise UserError if an order of layers is still to be found that needs the whole target in memory."""
    wanted = run.recipe.architecture
    if wanted.plan is None and wanted.source is None and not (run.scores.is_finished or run.init.is_finished):
        refuse_orders(run.recipe.target.placement, needed_scores(source, wanted))


def refuse_texts_beyond(recipe: Recipe, shapes: PlannedShapes) -> None:
    """Raise UserError if a sequence may be longer than the target, or what the draft is cut from, was made for."""
    of_target, of_source = shapes.lengths
    source = recipe.architecture.source or recipe.target.path
    refuse_long_texts(recipe, {recipe.target.path: of_target}, {source: of_source})


def refuse_missing_packages(recipe: Recipe) -> None:
    """Raise UserError if a training that is still to come logs to a tracker whose package is not installed."""
    if not (Run.of(recipe).draft.manifest or {}).get("finished"):
        problems = [words for name in recipe.distill.loggers if (words := missing_package(name))]
        if problems:
            raise UserError("\n".join(problems))


def refuse_foreign_list(recipe: Recipe, vocab_size: int) -> None:
    """Raise UserError for a list of token ids with one that the target has no row for."""
    wanted = recipe.architecture.vocabulary
    if wanted is None or wanted.origin in COUNTED:
        return
    beyond = [number for number in read_list(wanted.origin, wanted.size) if number >= vocab_size]
    if beyond:
        raise UserError(
            f"{list_file(wanted.origin)}: holds {beyond[0]}, which is beyond the vocabulary of {recipe.target.path}, "
            f"vocab_size {vocab_size}. Name a list that was made with its tokenizer."
        )


def refuse_few_prompts(recipe: Recipe, sources: Sequence[Rows | None]) -> None:
    """Raise UserError if the prompts that differ leave none to train on; a data set's are not known."""
    if any(rows is None for rows in sources):
        return
    rows, own = [row for rows in sources for row in rows or ()], recipe.data.self_written_prompts
    different, held_out = len(distinct(rows)), recipe.data.num_eval_prompts
    if different < len(rows) and different + own < held_out + recipe.distill.learns_answers:
        raise UserError(
            f"data.num_eval_prompts={held_out} leaves none to train on: {len(rows) - different} of the "
            f"{len(rows) + own} prompts are duplicates. Hold out fewer, or add prompts."
        )


def planned_pair(recipe: Recipe, draft: Shape) -> Pair:
    """Target and draft of a recipe as engines see them, as far as they are known before anything is pruned.

    Args:
        recipe: Names the target, what the draft is cut out of, and its folder.
        draft: Its shape, with the target's vocabulary.

    Raises:
        UserError: As `read_model`.
    """
    target, wanted = read_model(recipe.target.path, recipe.target.revision), recipe.architecture
    source = target if wanted.source_at is None else read_model(*wanted.source_at)
    folder = Run.of(recipe).draft.path
    planned = replace(
        source,
        name=str(folder),
        path=str(folder.absolute()),
        vocab_size=draft.vocab,
        small_head=draft.head_vocab,
        shape=draft,
        dtype=recipe.export.dtype,
        is_quantized=False,
        tokenizer=None,
        num_assistant_tokens=None,
        form=None,
        planned=True,
    )
    return Pair(
        draft=planned, target=target, revision=recipe.target.revision, tensor_parallel=recipe.export.tensor_parallel
    )


# --- rows ----------------------------------------------------------------------------------------------------------


def shape_rows(recipe: Recipe, shapes: PlannedShapes) -> list[Row]:
    """Target and draft, with true and nominal sizes."""
    wanted = recipe.architecture
    source = [] if wanted.source is None else [("cut out of", f"{wanted.source}: {shape_words(shapes.source)}")]
    return [
        ("target", f"{recipe.target.path}: {shape_words(shapes.target)}"),
        *source,
        ("draft", shape_words(shapes.draft, wanted.shape)),
        ("pruned by", shapes.how),
    ]


def shape_words(shape: Shape, name: str | None = None) -> str:
    """All sizes of a shape, its true parameters, and the nominal size it was published under."""
    head = f", {shape.head_vocab} in the output head" if shape.head_vocab else ""
    nominal = [named.nominal for key, named in NAMED_SHAPES.items() if key == name or named.shape == shape]
    return (
        f"{plural(shape.layers, 'layer')}, hidden {shape.hidden}, intermediate {shape.intermediate}, "
        f"{plural(shape.heads, 'head')} of {shape.head_dim} ({shape.kv_heads} kv), vocabulary {shape.vocab}{head}; "
        f"{shape.parameters():,} parameters, {shape.parameters_without_embeddings():,} without embeddings"
        f"{f', nominal {nominal[0]}' if nominal else ''}"
    )


def engine_rows(recipe: Recipe, draft: Shape) -> list[Row]:
    """One row for each of export.engines.

    Raises:
        UserError: With every reason why one of them does not serve the draft, one line each.
    """
    if not recipe.export.engines:
        return []
    pair = planned_pair(recipe, draft)
    problems: dict[EngineName, list[Problem]] = {engine: check(engine, pair) for engine in recipe.export.engines}
    fatal = [
        f"export.engines: {LABELS[engine]} cannot serve this draft: {each.what}: {each.message}"
        for engine, found in problems.items()
        for each in found
        if each.is_fatal
    ]
    if fatal:
        raise UserError("\n".join(fatal))
    return [
        (f"served by {LABELS[engine]}", "; ".join(f"{each.what}: {each.message}" for each in found) or "yes")
        for engine, found in problems.items()
    ]


def coverage_words(run: Run, vocab_size: int) -> str | None:
    """Share of generated tokens that a reduced vocabulary covers; None for a whole head.

    Raises:
        UserError: If the list is none of this target's, or the size cannot be had.
    """
    wanted, folder = run.recipe.architecture.vocabulary, tokenizer_folder(run)
    if wanted is None:
        return None
    if folder is None:
        return "unknown: the target's tokenizer is not here"
    tokens = read_tokens(folder, vocab_size)
    ids = None if wanted.origin in COUNTED else listed_ids(wanted, tokens, folder)
    if finished_counts(run.recipe) is None:
        return "unknown until responses are generated"
    trained, held_out = (
        pooled(id_counts_in(run.data.path, split, most_tokens=MAX_COUNTED_TOKENS)) for split in ("train", "eval")
    )
    if wanted.origin == "answers":
        assert wanted.size is not None  # of counts the recipe gives it
        ids = ids_by_count(trained, tokens, wanted.size)
    elif ids is None and (run.init.path / DRAFT_VOCABULARY_NAME).is_file():  # counting text takes too long here
        ids = read_draft_vocabulary(run.init.path).ids
    if ids is None:
        return "unknown until the draft is pruned"
    return f"{coverage(ids, trained):.1%} of training responses, {coverage(ids, held_out):.1%} of held-out responses"


def tokenizer_folder(run: Run) -> Path | None:
    """The directory with the target's tokenizer, if it can be read without fetching or importing anything."""
    path, revision = run.recipe.target.path, run.recipe.target.revision
    folder = run.imported_target if is_gguf(path) else local_path(path, revision)
    folder = folder or cached_config(path, revision)
    return folder if folder is not None and (folder / TOKENIZER).is_file() else None


def encoder_at_hand(run: Run) -> Encode | None:
    """The target's tokenizer as a function; None if it is not here."""
    from tokenizers import Tokenizer

    folder = tokenizer_folder(run)
    if folder is None:
        return None
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def memory_rows(
    recipe: Recipe, shapes: PlannedShapes, needs: Sequence, processes: int, gib: float | None, *, on_gpu: bool
) -> list[Row]:
    """What one process holds in every stage, and the parts of the trainings."""
    limit = "" if gib is None else f" of {gib:g}"
    rows = [(f"memory, {need.stage}", f"{need.size_bytes / GIB:.2f}{limit} GiB") for need in needs]
    for training in trainings(recipe, shapes, on_gpu=on_gpu):
        parts = training_memory(training, processes)
        each = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
        auto = "; auto may take a smaller micro-batch" if training.microbatch is None else ""
        rows.append((f"  parts, {training.stage}", f"{each} GiB, in one of {processes}{auto}"))
    return rows


def disk_row(recipe: Recipe, shapes: PlannedShapes, work: Work) -> Row:
    parts = disk_bytes(recipe, shapes, work)
    each = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    free = free_bytes(Path(recipe.run_dir)) / GIB
    return "disk", f"at most {sum(parts.values()) / GIB:.2f} GiB of {free:.0f} free: {each}"


def work_rows(recipe: Recipe, work: Work) -> list[Row]:
    """Prompts, steps, epochs and the loss."""
    config, bound = recipe.distill, "at most " if work.is_bound else ""
    prompts = "unknown until generate opens the data set" if work.prompts is None else f"{bound}{work.prompts:,}"
    rows = [("prompts", f"{prompts}, {recipe.data.num_eval_prompts} held out; {scored_prompts(recipe)} scored")]
    if recipe.architecture.method == "learned_masks":
        masks = recipe.architecture.masks
        rows.append(("mask steps", f"{masks.max_duration} of {masks.global_train_batch_size} sequences"))
    on_text = config.train_on == "text"
    sequence = trained_lengths(recipe)[0] if on_text else work.sequence_tokens
    length = training_steps(config, None if on_text else work.sequences, sequence)
    if config.online is not None:
        rows.append(("steps", f"{config.online.steps_per_update} after every {config.online.update_interval} requests"))
    elif length is None:
        rows.append(("steps", f"unknown ({config.max_duration})"))
    else:
        epochs = "" if length.epochs is None else f", {length.epochs:.3g} epochs"
        batch = config.global_train_batch_size
        rows.append(("steps", f"{bound}{length.steps:,} of {batch} sequences ({config.max_duration}){epochs}"))
        rows.append(("tokens", f"{bound}{length.sequences * sequence:,}, {sequence:,} a sequence"))
    if recipe.architecture.stages is not None:
        rows.append(("stages", f"{len(recipe.architecture.stages)}, each of these steps"))
    terms = (term.name if term.weight == 1 else f"{term.weight:g} x {term.name}" for term in config.terms)
    temperature = f", temperature {config.temperature:g}" if config.temperature != 1 else ""
    return [*rows, ("loss", f"{' + '.join(terms)}{temperature}")]


def hour_rows(
    recipe: Recipe, shapes: PlannedShapes, work: Work, device: Device | None, *, is_counted: bool
) -> list[Row]:
    """Hours of each stage on one device, and of all."""
    if device is None:
        return [("hours", "unknown: this device was not measured; --device NAME computes those of another")]
    seconds = stage_seconds(recipe, shapes, work, device)
    if not seconds:
        return [("hours", f"unknown: no training in {recipe.distill.precision} was measured on {device.name}")]
    stages = ", ".join(
        f"{name} {'unknown' if each is None else f'{each / 3600:.2g}'}" for name, each in seconds.items()
    )
    total = sum(each or 0.0 for each in seconds.values()) / 3600
    counted = "" if is_counted else "; prompts taken as long as allowed"
    return [("hours", f"{total:.2g}: {stages}; one {device.name}, {device.source}{counted}")]
