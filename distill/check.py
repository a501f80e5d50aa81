"""`widedraft check`: report every error of a recipe at once, and the size and cost of a run.

Of local weights only the headers are read; without any, nothing here imports torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from architectures import hub
from architectures.compatibility import LABELS, EngineName, Pair, Problem, check, one_setting, read_model
from architectures.console import Table, facts, plural
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.files import free_bytes
from architectures.pruning.plan import draft_and_origin, needed_scores
from architectures.shapes import NAMED_SHAPES, ContextLength, Shape, context_length, model_shape
from architectures.target_files import require_tokenizer
from architectures.vocabulary import (
    CONFIG_KEY,
    TOKENIZER,
    reject_small_head,
    with_requested_head,
)
from distill import estimate
from distill.data.conversations import Conversation, load_conversations
from distill.draft_vocabulary import require_possible_ids
from distill.estimate import GIB, Rows
from distill.hub.push import reject_unpublishable
from distill.recipe.recipe import Recipe
from distill.recipe.sections import TIED_AND_FROZEN, missing_package, reject_k_beyond
from distill.recipe.validate import reject_orders, reject_unfit
from distill.run import Run, reject_long_texts, require_run_folder
from eval.chat import RowErrors
from eval.layer_memory import reject_asked_cap
from eval.prompts import Prompt, load_prompts
from eval.tasks import PromptSource

Value = TypeVar("Value")

SMALLER_TARGET = "target.placement: layers, or target.bits"
SMALLER_TRAINING = (
    "distill.parallelism: fsdp2, distill.activation_checkpointing: true, distill.teacher.parallelism: fsdp2, a smaller "
    "distill.device_train_microbatch_size, or more processes"
)
HINTS = {  # by stage that exceeds the device's memory
    "prune": "target.placement: layers, or architecture.method: first_last",
    "generate": f"{SMALLER_TARGET}, or a smaller data.batch_size",
    "cache": SMALLER_TARGET,
    "masks": SMALLER_TRAINING,
    "distill": SMALLER_TRAINING,
    "eval": f"{SMALLER_TARGET}, or a smaller eval.batch_size",
}


class Row(NamedTuple):
    """A fact about a run; `details` are printed with --verbose."""

    name: str
    value: str
    details: str = ""


def facts_table(rows: Sequence[Row], *, verbose: bool) -> Table:
    """Tabulate facts: with their details, or values of the same name in one row."""
    if verbose:
        return facts([(row.name, row.value + row.details) for row in rows])
    names = dict.fromkeys(row.name for row in rows)
    return facts([(name, ", ".join(row.value for row in rows if row.name == name)) for name in names])


# --- shapes of a run, from config files only -----------------------------------------------------------------------


def planned_shapes(recipe: Recipe) -> estimate.PlannedShapes:
    """Compute the shapes of target, source and draft.

    Raises:
        UserError: If a checkpoint is neither available locally nor known, or the draft cannot be pruned.
    """
    wanted = recipe.architecture
    target, length, is_read = shape_at_hand("target.path", recipe.target.path, recipe.target.revision)
    if target.head_vocab:
        reject_small_head({CONFIG_KEY: target.head_vocab}, recipe.target.path)
    source, source_length, unread = target, length, () if is_read else (recipe.target.path,)
    if wanted.source_at is not None:
        source, source_length, is_read = shape_at_hand("architecture.source", *wanted.source_at)
        unread += () if is_read else (wanted.source_at[0],)
    draft, how = draft_and_origin(wanted, source, recipe.seed)
    draft = with_requested_head(replace(draft, vocab=target.vocab), wanted.vocabulary)
    return estimate.PlannedShapes(target, source, draft, how, (length, source_length), unread)


def shape_at_hand(key: str, path: str, revision: str) -> tuple[Shape, ContextLength | None, bool]:
    """Return shape and context length of a checkpoint, and True if its own config.json has them."""
    try:
        config, own = hub.config_at_hand(path, revision)
    except UserError as error:
        absent = not hub.is_gguf(path) and not hub.packaged_words(path) and not Path(path).exists()
        hint = f" A GGUF file becomes this directory by `widedraft import FILE --to {path}`." if absent else ""
        raise UserError(f"{key}: {error}{hint}") from error
    return model_shape(config, where=path), context_length(config, where=path), own


# --- the check -----------------------------------------------------------------------------------------------------


def check_recipe(
    recipe: Recipe, device: str | None = None, *, processes: int | None = None, device_gib: float | None = None
) -> list[Row]:
    """List the facts about a run: shapes, memory, disk, steps, hours.

    Args:
        device: As in `find_device`.
        processes: Processes of every stage; None reports one, and raises if a device is too small for one of 8.
        device_gib: Memory of a device; by default that of `device`.

    Raises:
        UserError: With all errors, one per line.
    """
    problems: list[str] = []

    def attempt(step: Callable[..., Value], *args: object, **options: object) -> Value | None:
        try:
            return step(*args, **options)
        except UserError as error:
            problems.append(str(error))
            return None

    # Read everything that can be read, and collect all errors.
    run = Run.of(recipe)
    on = attempt(estimate.find_device, device)
    on_gpu = on is not None and on.is_gpu
    attempt(require_run_folder, run)
    attempt(reject_unpublishable, recipe)
    shapes = attempt(planned_shapes, recipe)
    malformed = RowErrors(skip=recipe.data.malformed == "skip")
    load = load_conversations if recipe.data.responses == "given" else load_prompts
    how = {"chat_template_kwargs": cycle(recipe.data.chat_template_kwargs), "errors": malformed}  # of all rows
    sources = [attempt(read_rows, source, load, **how) for source in recipe.data.prompts]
    for source in recipe.eval.tasks:
        attempt(read_rows, source)
    template = attempt(malformed.raise_any if shapes is None else partial(reject_unrendered, run, sources, malformed))
    counts = attempt(estimate.finished_counts, recipe)
    encode, engines = None, None
    if shapes is not None:
        encode = encoder_at_hand(run)
        attempt_rules(recipe, shapes, attempt)
        if recipe.distill.freeze_input_embeddings and shapes.draft.tied:
            problems.append(TIED_AND_FROZEN)
        engines = attempt(engine_rows, recipe, shapes.draft, on_gpu=on_gpu)
    work = None if problems else attempt(estimate.expected_work, recipe, sources, counts, encode)
    if problems or shapes is None or work is None:
        raise UserError("\n".join(problems))

    # Raise if a device is too small, assuming a full machine of processes if the number is not given.
    gib = device_gib or (None if on is None else on.memory_gib)
    among = processes or estimate.PROCESSES_PER_MACHINE
    sequences = (work.sequences if recipe.distill.online is None else None) or None
    needed = estimate.stage_memory(recipe, shapes, processes=among, on_gpu=on_gpu, sequences=sequences)
    too_large = {stage: size for stage, parts in needed.items() if gib and (size := sum(parts.values()) / GIB) > gib}
    if too_large:
        one_of = f"one of {plural(among, 'process', 'processes')}"
        raise UserError(
            "\n".join(
                f"{stage}: {one_of} needs {size:.1f} GiB, and a device has {gib:g} GiB. Use {HINTS[stage]}."
                for stage, size in too_large.items()
            )
        )

    memory = estimate.stage_memory(recipe, shapes, processes=processes or 1, on_gpu=on_gpu, sequences=sequences)
    limit, free = "" if gib is None else f" of {gib:g}", free_bytes(Path(recipe.run_dir)) / GIB
    unopened = [str(named.name) for named, rows in zip(recipe.data.prompts, sources, strict=True) if rows is None]
    wanted = recipe.architecture
    return [
        Row("target", *shape_words(shapes.target, path=recipe.target.path)),
        *([] if wanted.source is None else [Row("source", *shape_words(shapes.source, path=wanted.source))]),
        Row("draft", *shape_words(shapes.draft, wanted.shape)),
        Row("pruned by", shapes.how),
        *(engines or []),
        *(Row("memory", *in_gib(parts, limit, f"{stage} ")) for stage, parts in memory.items()),
        Row("disk", *in_gib(estimate.disk_bytes(recipe, shapes, work), f" of {free:.0f} free")),
        *work_rows(recipe, work),
        Row("hours", hours(recipe, shapes, work, on)),
        *([Row("malformed rows", f"{sum(malformed.counts.values())}", " left out")] if malformed.counts else []),
        *([Row("chat template", "none", ": prompts are continued as raw text")] if template is False else []),
        *(
            Row("not checked", " ".join([path, hub.packaged_words(path)]).strip(), f": {hub.NOT_HERE}")
            for path in shapes.unread
        ),
        *(Row("not checked", f"data set {name}", ": opened by generate") for name in unopened if counts is None),
    ]


def read_rows(source: PromptSource, load: Callable[..., Rows] = load_prompts, **how: Any) -> Rows | None:
    """Read the rows of a file; None for a data set, which is slow to open and counts as num_prompts rows.

    Args:
        how: Arguments of `load`.
    """
    if source.path is None:
        list(islice(how.get("chat_template_kwargs", ()), source.num_prompts or 0))
        return None
    return load([source], **how)


def reject_unrendered(run: Run, sources: Sequence[Rows | None], malformed: RowErrors) -> bool | None:
    """Render every row with the target's chat template, if its tokenizer is available locally.

    Returns:
        False if the target has no chat template; None if that is not known.

    Raises:
        UserError: For malformed rows, those that the template rejects among them; if every prompt is too long.
    """
    folder, data = tokenizer_folder(run), run.recipe.data
    rows = [row for source in sources for row in source or ()]
    if folder is None or not (folder / "config.json").is_file() or not rows:
        malformed.raise_any()
        return None
    from distill.data.given import Renderer, checked_conversation
    from eval.models import load_tokenizer, require_rows
    from eval.prompts import rendered

    tokenizer = load_tokenizer(folder)
    require_rows(folder, last_id=max(tokenizer.get_vocab().values()))
    lengths = [len(ids) for _, ids in rendered(tokenizer, [row for row in rows if isinstance(row, Prompt)], malformed)]
    if data.responses == "given":
        check = partial(checked_conversation, Renderer(folder))
        checked = [malformed.attempt(partial(check, row)) for row in rows if isinstance(row, Conversation)]
        lengths = [len(each[1]) for each in checked if each is not None]
    malformed.raise_any()
    if lengths and min(lengths) >= data.max_seq_len:
        raise UserError(
            f"data.max_seq_len: all {len(lengths)} prompts have at least {min(lengths)} tokens, and it is "
            f"{data.max_seq_len}. Raise it, or shorten the prompts."
        )
    return bool(tokenizer.chat_template)


def attempt_rules(recipe: Recipe, shapes: estimate.PlannedShapes, attempt: Callable[..., object]) -> None:
    """Attempt checks that raise UserError for failures of later stages, some of them hours after the start."""
    target, draft, run, wanted = shapes.target, shapes.draft, Run.of(recipe), recipe.architecture
    held = {"dtype": recipe.target.dtype, "holding": recipe.target.holding}
    of_target, of_source = shapes.lengths
    lengths = {recipe.target.path: of_target}, {wanted.source or recipe.target.path: of_source}
    attempt(reject_unfit, recipe, target.family)
    attempt(reject_asked_cap, recipe.target.path, target, **held)
    attempt(reject_k_beyond, recipe.distill.teacher, vocab=target.vocab, rows=draft.head_rows)
    attempt(reject_long_texts, recipe, *lengths)
    attempt(reject_missing_packages, recipe)
    attempt(reject_impossible_ids, run, target.vocab)
    if not Path(recipe.target.path).is_relative_to(recipe.run_dir):  # the tiny target of --debug has no weights yet
        attempt(reject_damaged, recipe.target.path, recipe.target.revision)
        if wanted.source_at is not None:
            attempt(reject_damaged, *wanted.source_at, needs_tokenizer=False)
    if wanted.plan is None and wanted.source is None and not (run.scores.is_finished or run.init.is_finished):
        attempt(reject_orders, recipe.target.placement, needed_scores(shapes.source, wanted))


def reject_damaged(path: str, revision: str, *, needs_tokenizer: bool = True) -> None:
    """Raise UserError if a local checkpoint has no tokenizer, or other tensors than its config; reads only headers."""
    folder = hub.local_path(path, revision)
    if folder is None:
        return
    if hub.is_gguf(folder):
        from architectures.gguf_import import open_gguf

        open_gguf(folder)
        return
    from architectures.checkpoint import open_weights, read_entries, shard_names
    from architectures.pruning.prune import require_whole

    if needs_tokenizer:
        require_tokenizer(folder)
    shape = model_shape(hub.read_config(folder), where=str(folder / "config.json"))
    if shape.family in FAMILIES and not hub.is_multimodal(folder):
        require_whole(open_weights(folder, base_prefix=FAMILIES[shape.family].base_prefix), shape)
    else:
        for name in shard_names(folder):
            read_entries(folder / name)


def reject_missing_packages(recipe: Recipe) -> None:
    """Raise UserError if a pending training run logs to a tracker that is not installed."""
    if not (Run.of(recipe).draft.manifest or {}).get("finished"):
        problems = [words for name in recipe.distill.loggers if (words := missing_package(name))]
        if problems:
            raise UserError("\n".join(problems))


def reject_impossible_ids(run: Run, vocab_size: int) -> None:
    """Raise UserError if the target's tokenizer is available locally and does not fit the reduced vocabulary."""
    wanted, folder = run.recipe.architecture.vocabulary, tokenizer_folder(run)
    if wanted is not None and folder is not None:
        require_possible_ids(wanted, folder, vocab_size)


def planned_pair(recipe: Recipe, draft: Shape) -> Pair:
    """Return target and draft for engine checks, as far as known before pruning; errors as `read_model`."""
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
        chat_template_kwargs=one_setting(recipe.data.chat_template_kwargs),
        planned=True,
    )
    return Pair(
        draft=planned, target=target, revision=recipe.target.revision, tensor_parallel=recipe.export.tensor_parallel
    )


# --- rows ----------------------------------------------------------------------------------------------------------


def shape_words(shape: Shape, name: str | None = None, *, path: str = "") -> tuple[str, str]:
    """Format layers, width, vocabulary and parameters; and the rest, with the nominal size of a published shape."""
    head = f", {shape.head_vocab} in the output head" if shape.head_vocab else ""
    nominal = [named.nominal for key, named in NAMED_SHAPES.items() if key == name or named.shape == shape]
    vocabulary, parameters = f"vocabulary {shape.vocab}{head}", f"{shape.parameters():,} parameters"
    heads = f"{plural(shape.heads, 'head')} of {shape.head_dim} ({shape.kv_heads} kv)"
    experts = f" in {shape.experts} experts ({shape.active_experts} per token)" if shape.experts > 1 else ""
    neurons = f"intermediate {shape.intermediate}{experts}"
    without = f"{shape.parameters_without_embeddings():,} parameters without embeddings"
    return (
        f"{path and f'{path}: '}{plural(shape.layers, 'layer')}, hidden {shape.hidden}, {vocabulary}, {parameters}",
        f"; {neurons}, {heads}, {without}{f', nominal {nominal[0]}' if nominal else ''}",
    )


SELDOM_PAYS = "; on a CPU verification is slow there, and few drafts pay (docs/benchmarks.md, Cost of verification)"


def engine_rows(recipe: Recipe, draft: Shape, *, on_gpu: bool) -> list[Row]:
    """Return one row per engine; raises UserError with every reason why one cannot serve the draft."""
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
        Row(
            "served by",
            LABELS[engine]
            + (f" (--verbose: {', '.join(each.what for each in found)})" if found else "")
            + (SELDOM_PAYS if engine == "llama.cpp" and not on_gpu else ""),
            "".join(f"; {each.what}: {each.message}" for each in found),
        )
        for engine, found in problems.items()
    ]


def tokenizer_folder(run: Run) -> Path | None:
    """Return the directory of the target's tokenizer, if readable without downloads or conversion."""
    path, revision = run.recipe.target.path, run.recipe.target.revision
    folder = run.imported_target if hub.is_gguf(path) else hub.local_path(path, revision)
    folder = folder or hub.cached_config(path, revision)
    return folder if folder is not None and (folder / TOKENIZER).is_file() else None


def encoder_at_hand(run: Run) -> estimate.Encode | None:
    """Return the target's tokenizer as a function; None if it is not available locally."""
    from tokenizers import Tokenizer

    folder = tokenizer_folder(run)
    if folder is None:
        return None
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def in_gib(parts: Mapping[str, int], limit: str, stage: str = "") -> tuple[str, str]:
    each = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    return f"{stage}{sum(parts.values()) / GIB:.2f}{limit} GiB", f": {each}"


def work_rows(recipe: Recipe, work: estimate.Work) -> list[Row]:
    config, bound = recipe.distill, "at most " if work.is_bound else ""
    prompts = "unknown until generate opens the data set" if work.prompts is None else f"{bound}{work.prompts:,}"
    rows = [Row("prompts", f"{prompts}, {recipe.data.num_eval_prompts} held out")]
    if recipe.architecture.method == "learned_masks":
        masks = recipe.architecture.masks
        rows.append(Row("mask steps", f"{masks.max_duration} of {masks.global_train_batch_size} sequences"))
    length, sequence, _ = estimate.expected_steps(recipe, work)
    if config.online is not None:
        steps = f"{config.online.steps_per_update} after every {config.online.update_interval} requests"
    elif length is None:
        steps = f"unknown ({config.max_duration})"
    else:
        epochs = "" if length.epochs is None else f", {length.epochs:.3g} epochs"
        batch = min(config.global_train_batch_size, work.sequences or config.global_train_batch_size)
        size = f"{batch} sequences of {sequence:,} tokens"
        steps = f"{bound}{length.steps:,} of {size} ({config.max_duration}){epochs}"
    return [*rows, Row("steps", steps)]


def hours(recipe: Recipe, shapes: estimate.PlannedShapes, work: estimate.Work, device: estimate.Device | None) -> str:
    if device is None:
        return "unknown: this device was not measured; --device NAME computes those of another"
    seconds = estimate.stage_seconds(recipe, shapes, work, device)
    if not seconds:
        return f"unknown: no training in {recipe.distill.precision} was measured on {device.name}"
    stages = ", ".join(f"{name} {'unknown' if s is None else rounded(s / 3600)}" for name, s in seconds.items())
    total = sum(each or 0.0 for each in seconds.values()) / 3600
    return f"{rounded(total)}: {stages}; one {device.name}, {device.source}"


def rounded(number: float) -> str:
    """Format with two significant digits: 0.25, 5,400."""
    return f"{float(f'{number:.2g}'):,g}"
