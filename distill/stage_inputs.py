"""Inputs of each artifact, recorded in its manifest and compared before a stage runs.

Inputs are plain values: the resolved recipe keys that a stage depends on, and SHA-256 of files and checkpoints.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.hub import read_config, require_whole_head
from architectures.manifest import (
    fingerprint_checkpoint,
    fingerprint_folder,
    fingerprint_tokenizer,
    fingerprint_value,
    sha256_of_file,
)
from architectures.pruning.plan import needed_scores
from architectures.vocabulary import CONFIG_KEY, list_file, read_draft_vocabulary
from distill.draft_vocabulary import TEXT_TOKENS
from distill.recipe.recipe import Recipe, value_at
from distill.recipe.sections import TextConfig, teacher_dtype
from distill.run import Run, cut_from, first_init, shape_of
from eval.tasks import TASKS, PromptSource

RESUMABLE_KEYS = frozenset(  # may change when training resumes
    (
        "max_duration",
        "device_train_microbatch_size",
        "device_eval_batch_size",
        "packing",
        "eval_interval",
        "save_interval",
        "save_num_checkpoints_to_keep",
        "checkpoints",
        "parallelism",
        "shard_degree",
        "activation_checkpointing",
        "loggers",
        "push_to_hub",
    )
)

NOT_THE_DRAFT = {"engines", "tensor_parallel"}  # of export: keys that are checked but change no byte of the draft


def section(recipe: Recipe, key: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a section's values for a manifest.

    A value from the environment may be a secret: its reference is recorded, with a hash that reveals a change.
    """
    prefix = tuple(key.split("."))
    for path, (text, value) in recipe.references.items():
        inside = path[len(prefix) :]
        parent: Any = value_at(inside[:-1], values) if path[: len(prefix)] == prefix and inside else None
        if value_at(inside, values) is not None:
            parent[inside[-1]] = f"{text} (sha256 {fingerprint_value(value)[:12]})"
    return values


def mask_inputs(run: Run) -> dict[str, Any]:
    """Return the inputs of learned masks, without keys that may change when training resumes."""
    recipe = run.recipe
    architecture = recipe.architecture.model_dump(mode="json")
    del architecture["vocabulary"]  # the head is pruned after the masks are trained
    return {
        "target": fingerprint_checkpoint(run.target),
        "target.dtype": recipe.target.dtype,
        "architecture": section(recipe, "architecture", architecture),
        "distill.precision": recipe.distill.precision,
        "text": text_as_input(recipe.text),
        "seed": recipe.seed,
    }


def prune_inputs(run: Run) -> dict[str, Any]:
    """Return the inputs of init: of masks, scores, plan and seed only those that the recipe uses."""
    recipe, wanted, source = run.recipe, run.recipe.architecture, cut_from(run)
    vocabulary = vocabulary_as_input(run)
    if wanted.method == "learned_masks":
        run.masks.require(mask_inputs(run))  # finished masks of this recipe
        return {"masks": fingerprint_value(run.masks.manifest), "target.dtype": recipe.target.dtype, **vocabulary}
    not_the_cut = {"scores", "calibration", "plan", "source", "masks", "vocabulary"}
    inputs = {
        "target": fingerprint_checkpoint(run.target),
        "target.dtype": recipe.target.dtype,
        "architecture": section(recipe, "architecture", wanted.model_dump(mode="json", exclude=not_the_cut)),
        **vocabulary,
    }
    if source != run.target:
        inputs["architecture.source"] = fingerprint_checkpoint(source)
    if wanted.plan is not None:
        return inputs | {"architecture.plan": sha256_of_file(Path(wanted.plan))}
    if "random" in (wanted.method, wanted.width_method):
        inputs["seed"] = recipe.seed
    if needed_scores(shape_of(source), wanted):
        inputs["architecture.calibration"] = scores_inputs(run, source)["calibration"]
    return inputs


def counts_responses(recipe: Recipe) -> bool:
    """Return True if the draft's output ids are counted in the responses, which must then precede pruning."""
    wanted = recipe.architecture.vocabulary
    return wanted is not None and wanted.origin == "responses"


def vocabulary_as_input(run: Run) -> dict[str, Any]:
    """Return the inputs of a reduced vocabulary; empty if the draft has the whole one.

    Raises:
        UserError: If ids are counted in responses that are missing, or not this recipe's.
    """
    wanted = run.recipe.architecture.vocabulary
    if wanted is None:
        return {}
    origin: Any
    if wanted.origin == "responses":
        origin = generate_inputs(run)
        run.data.require(origin)
    elif wanted.origin == "text":
        origin = {"text": text_as_input(run.recipe.text), "seed": run.recipe.seed, "max_tokens": TEXT_TOKENS}
    else:
        origin = sha256_of_file(list_file(wanted.origin))
    tokenizer = fingerprint_tokenizer(run.target)
    return {"architecture.vocabulary": {"size": wanted.size, "from": origin, **tokenizer}}


def scores_inputs(run: Run, source: Path) -> dict[str, Any]:
    """Return the inputs of importance scores, including the dtype: rounding may swap layers of nearly equal score."""
    recipe, target = run.recipe, run.target
    calibration, prompts = recipe.architecture.calibration, recipe.data.prompts
    text: Any
    if calibration.text is not None and Path(calibration.text).is_file():
        text = sha256_of_file(Path(calibration.text))
    elif prompts:
        text = sources_as_input(prompts)
    else:  # the target generates them
        written = {"seed": recipe.seed, "batch_size": recipe.data.batch_size}
        text = {"self_written": written, "target": fingerprint_checkpoint(target)}
    return {
        "target": fingerprint_checkpoint(source),
        "target.dtype": recipe.target.dtype,
        "calibration": {
            **calibration.model_dump(mode="json", exclude={"text"}),
            "text": text,
            "tokenizer": fingerprint_tokenizer(target)["tokenizer"],
        },
    }


def packed_inputs(recipe: Recipe) -> dict[str, Any]:
    """Return the bits of a quantised target, which is another model; empty if not quantised."""
    return {} if recipe.target.bits is None else {"target.bits": recipe.target.bits}


def generate_inputs(run: Run) -> dict[str, Any]:
    return {"target": fingerprint_checkpoint(run.target), **configured_inputs(run.recipe)}


def configured_inputs(recipe: Recipe) -> dict[str, Any]:
    """Return the inputs of the responses except the target; for training on text, only those to held-out prompts."""
    held_out_alone = {} if recipe.distill.trains_on_responses else {"distill.train_on": "text"}
    return {
        "target.dtype": recipe.target.dtype,
        "data": section(
            recipe,
            "data",
            recipe.data.model_dump(mode="json", exclude={"prompts"}),
        ),
        "prompts": sources_as_input(recipe.data.prompts),
        "seed": recipe.seed,
        **packed_inputs(recipe),
        **held_out_alone,
    }


def cache_inputs(run: Run) -> dict[str, Any]:
    """Return the inputs of a teacher cache, including the draft's output ids if entries are restricted to them."""
    recipe, ids = run.recipe, entry_ids(run)
    return {
        "target": fingerprint_checkpoint(run.target),
        **fingerprint_tokenizer(run.target),
        "teacher's dtype": teacher_dtype(recipe.target.dtype, recipe.distill.precision),
        "data": run.data.inputs,
        "data.max_seq_len": recipe.data.max_seq_len,
        "data.batch_size": recipe.data.batch_size,  # more rows in one product may round differently
        "distill.teacher": section(recipe, "distill.teacher", recipe.distill.teacher.model_dump(mode="json")),
        "seed": recipe.seed,
        **packed_inputs(recipe),
        **({} if ids is None else {"architecture.vocabulary": list(ids)}),
    }


def training_inputs(run: Run) -> dict[str, Any]:
    """Return the inputs of the checkpoints, without keys that may change when training resumes."""
    config = run.recipe.distill
    settings, others = config.model_dump(mode="json", exclude=set(RESUMABLE_KEYS)), {}
    settings["teacher"].pop("parallelism", None)  # a sharded teacher has the same outputs
    if config.train_on == "text":
        others["text"] = text_as_input(run.recipe.text)
    return {
        "init": fingerprint_checkpoint(run.init.path),
        "data": run.data.inputs,
        "distill": section(run.recipe, "distill", settings),
        "seed": run.recipe.seed,
        **packed_inputs(run.recipe),
        **others,
    }


def draft_inputs(run: Run) -> dict[str, Any]:
    return {
        **training_inputs(run),
        "distill.max_duration": run.recipe.distill.max_duration,
        "export": section(run.recipe, "export", run.recipe.export.model_dump(mode="json", exclude=NOT_THE_DRAFT)),
    }


def eval_inputs(run: Run) -> dict[str, Any]:
    scoring, placement = run.recipe.eval, run.recipe.target.placement
    settings = scoring.model_dump(mode="json", exclude={"tasks"})
    return {
        "target": fingerprint_checkpoint(run.target),
        "undistilled": fingerprint_checkpoint(run.init.path),
        "draft": fingerprint_checkpoint(run.draft.path),
        "eval": section(run.recipe, "eval", settings),
        "prompts": sources_as_input(scoring.tasks) if scoring.tasks else run.data.inputs,
        "seed": run.recipe.seed,
        **packed_inputs(run.recipe),
        **({} if placement == "whole" else {"target.placement": placement}),  # affects step times
        **{f"online.{name}": fingerprint_checkpoint(folder) for name, folder in stream_baselines(run).items()},
    }


def stream_baselines(run: Run) -> dict[str, Path]:
    """Return the static drafts to compare with an online one, by name; none without distill.online."""
    online = run.recipe.distill.online
    names = () if online is None else online.baselines
    return {name: run.init.path if name == "init" else Path(name) for name in names}


def sources_as_input(sources: Sequence[PromptSource]) -> list[dict[str, Any]]:
    """Return the settings of each source, with the SHA-256 of local files."""
    return [
        {
            **source.model_dump(mode="json", exclude_none=True),
            **({} if source.task is None else {"task": TASKS[source.task].label}),
            **content_of(source.path, source.name),
        }
        for source in sources
    ]


def text_as_input(text: TextConfig | None) -> dict[str, Any]:
    assert text is not None  # required for training on text
    values = text.model_dump(mode="json")
    for domain, recorded in zip(text.domains, values["domains"], strict=True):
        recorded.update(content_of(domain.path, domain.dataset))
    return values


def content_of(path: str | None, dataset: str | None) -> dict[str, str]:
    """Return the SHA-256 of a file, or of all files of a local data set; empty for a hub id."""
    if path is not None and Path(path).is_file():
        return {"sha256": sha256_of_file(Path(path))}
    if dataset is not None and Path(dataset).is_dir():
        return {"sha256": fingerprint_folder(Path(dataset))}
    return {}


def entry_ids(run: Run) -> tuple[int, ...] | None:
    """Return the ascending ids that cached entries are restricted to; None for every id, or without entries.

    Raises:
        UserError: If the recipe has a reduced vocabulary and no draft was pruned yet.
    """
    if not run.recipe.distill.teacher.keeps_entries:
        return None
    init = first_init(run)
    if run.recipe.architecture.vocabulary is not None:
        init.require_finished()
    elif not init.is_finished:
        return None
    return read_draft_vocabulary(init.path).ids if CONFIG_KEY in read_config(init.path) else None


def require_training_inputs(run: Run) -> None:
    """Raise UserError unless init, responses, any cache and any earlier checkpoints match the recipe."""
    require_whole_head(run.target)
    run.init.require(prune_inputs(run))
    run.data.require(generate_inputs(run))
    if run.recipe.distill.teacher.is_cache:
        run.teacher_cache.require(cache_inputs(run))
    if run.checkpoints.is_finished:
        run.checkpoints.reject_changed(training_inputs(run))


def begin_training(run: Run) -> None:
    """Record the inputs of training in <run>/checkpoints. Call on rank 0 only."""
    run.record(run.checkpoints, training_inputs(run))


def reject_orphaned_training(run: Run) -> None:
    """Raise UserError if an init would be replaced that checkpoints were trained from."""
    if run.init.is_finished and run.checkpoints.is_finished:
        raise UserError(
            f"{run.init.path} would change, but {run.checkpoints.path} was trained from it. "
            f"Choose another run_name, or delete {run.folder}."
        )


def masks_are_due(run: Run) -> bool:
    return run.recipe.architecture.method == "learned_masks" and not run.masks.is_finished
