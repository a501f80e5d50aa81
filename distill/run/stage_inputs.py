"""What each artifact of a run is made from: named fingerprints, recorded in its manifest and compared before work."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from architectures.checkpoints.fingerprint import (
    fingerprint_checkpoint,
    fingerprint_file,
    fingerprint_folder,
    fingerprint_tokenizer,
    fingerprint_value,
)
from architectures.checkpoints.manifest import KIND_KEYS, read_manifest
from architectures.draft_vocabulary.lists import list_file
from architectures.errors import UserError
from architectures.files.number_types import Dtype
from architectures.pruning.plan import needed_scores
from architectures.shapes.shape import Shape
from architectures.targets.target import local_path, read_config, resolve_checkpoint
from distill.formulas.losses import recorded_loss
from distill.recipe.recipe import Recipe
from distill.recipe.teacher import UNSAID, recorded
from distill.recipe.text import is_plain_text
from distill.run.entry_ids import entry_ids
from distill.run.stage_folders import refuse_changed, require_finished
from distill.vocabulary.text import TEXT_TOKENS
from eval.prompts.source import PromptSource
from eval.prompts.table import TASKS

RESUMABLE_KEYS = frozenset(  # a continued training may change these
    (
        "max_duration",
        "device_train_microbatch_size",
        "device_eval_batch_size",
        "packing",
        "eval_interval",
        "eval_first",
        "save_interval",
        "save_num_checkpoints_to_keep",
        "autoresume",
        "parallelism",
        "loggers",
        "push_to_hub",
        "progress_bar",
        "console_log_interval",
    )
)

NOT_THE_DRAFT = {"engines", "tensor_parallel"}  # of export: what is asked about it, and changes no byte of it

TASK = {"__all__": {"task"}}  # of sources, whose own fingerprint says it: one without a task stays what it was

JSON_READ_BY_LINE = "lines/2"  # the reader before told places in such files otherwise: none is continued with this one


def mask_inputs(recipe: Recipe, target: Path) -> dict[str, str]:
    """What learned masks are made from; keys that a continued training may change are left out."""
    architecture = recipe.architecture.model_dump(mode="json")
    for key in ("save_interval", "device_train_microbatch_size"):
        del architecture["masks"][key]
    for key in ("source_revision", "vocabulary"):  # of a source, which masks have none of; of the cut behind them
        del architecture[key]
    return {
        "target": fingerprint_checkpoint(target),
        "target.dtype": recipe.target.dtype,
        "architecture": fingerprint_value(architecture),
        "text": fingerprint_text(recipe),
        "seed": str(recipe.seed),
    }


def masks_as_input(recipe: Recipe, target: Path) -> dict[str, str]:
    """What init is made from where masks decide: finished masks of this very recipe.

    Raises:
        UserError: If there are none.
    """
    masks = Path(recipe.run_dir) / "masks"
    require_finished(masks, "masks")
    refuse_changed(masks, mask_inputs(recipe, target))
    kept = {key: value for key, value in (read_manifest(masks) or {}).items() if key not in KIND_KEYS}
    return {"masks": fingerprint_value(kept), "target.dtype": recipe.target.dtype}


def prune_inputs(recipe: Recipe, target: Path) -> dict[str, str]:
    """What init is made from; of masks, scores, plan and seed what this recipe looks at."""
    wanted, source = recipe.architecture, cut_from(recipe, target)
    said = vocabulary_as_input(recipe, target)
    if wanted.method == "learned_masks":
        return masks_as_input(recipe, target) | said
    not_the_cut = {"scores", "calibration", "plan", "source", "source_revision", "masks", "vocabulary"}
    inputs = {
        "target": fingerprint_checkpoint(target),
        "target.dtype": recipe.target.dtype,
        "architecture": fingerprint_value(wanted.model_dump(mode="json", exclude=not_the_cut)),
        **said,
    }
    if source != target:
        inputs["architecture.source"] = fingerprint_checkpoint(source)
    if wanted.source is not None and local_path(wanted.source, "main") is None:
        inputs["architecture.source_revision"] = wanted.source_revision
    if wanted.plan is not None:
        return inputs | {"architecture.plan": fingerprint_file(Path(wanted.plan))}
    if "random" in (wanted.method, wanted.width_method):
        inputs["seed"] = str(recipe.seed)
    if needed_scores(Shape.from_config(read_config(source), where=str(source / "config.json")), wanted):
        inputs["architecture.calibration"] = scores_inputs(recipe, source, target)["calibration"]
    return inputs


def counts_answers(recipe: Recipe) -> bool:
    """Whether the ids that the draft says are counted in the answers, which must be there before the cut."""
    wanted = recipe.architecture.vocabulary
    return wanted is not None and wanted.origin == "answers"


def vocabulary_as_input(recipe: Recipe, target: Path) -> dict[str, str]:
    """What the ids of a small output head are made from; nothing where the draft says every id.

    Raises:
        UserError: If they are counted in answers that are not there, or not this recipe's.
    """
    wanted = recipe.architecture.vocabulary
    if wanted is None:
        return {}
    if wanted.origin == "answers":
        data, inputs = Path(recipe.run_dir) / "data", generate_inputs(recipe, target)
        require_finished(data, "generate")
        refuse_changed(data, inputs)
        source: Any = ["answers", inputs]
    elif wanted.origin == "text":
        source = ["text", fingerprint_text(recipe), recipe.seed, TEXT_TOKENS]
    else:
        source = ["list", fingerprint_file(list_file(wanted.origin))]
    return {"architecture.vocabulary": fingerprint_value([wanted.size, fingerprint_tokenizer(target), *source])}


def scores_inputs(recipe: Recipe, source: Path, target: Path) -> dict[str, str]:
    """What scores of source are made from; the number type, since rounding may swap two layers of equal worth."""
    calibration = recipe.architecture.calibration
    data = recipe.data
    writer = [] if source == target else [fingerprint_checkpoint(target)]
    text = fingerprint_sources(data.prompts) if data.prompts else fingerprint_value([*self_writing(recipe), *writer])
    if calibration.text is not None and Path(calibration.text).is_file():
        text = fingerprint_file(Path(calibration.text))
    told_apart = fingerprint_tokenizer(source) != fingerprint_tokenizer(target)
    words = [fingerprint_tokenizer(target)] if told_apart else []  # else what was recorded before this counted holds
    return {
        "target": fingerprint_checkpoint(source),
        "target.dtype": recipe.target.dtype,
        "calibration": fingerprint_value([calibration.model_dump(mode="json", exclude={"text"}), text, *words]),
    }


def self_writing(recipe: Recipe) -> list[str | int]:
    """What the prompts that the target writes itself depend on, beside the target."""
    return ["self-written", recipe.seed, recipe.data.batch_size, recipe.data.shard_size]


def cut_from(recipe: Recipe, target: Path) -> Path:
    """The checkpoint whose weights become the draft's: the target, architecture.source, or the stage before the last.

    Raises:
        UserError: If that stage has not finished, or there is no such checkpoint.
    """
    stages = recipe.architecture.stages
    if stages is not None:
        draft = stage_folder(recipe, stages[-2]) / "draft"
        if not (read_manifest(draft) or {}).get("finished"):
            raise UserError(f"{draft}: not finished. `widedraft run RECIPE` makes one stage after another.")
        return draft
    return source_folder(recipe) or target


def source_folder(recipe: Recipe) -> Path | None:
    """The folder of architecture.source at its revision, fetched if need be; None where the recipe names none."""
    wanted = recipe.architecture
    if wanted.source is None:
        return None
    return resolve_checkpoint(wanted.source, revision=wanted.source_revision)


def stage_folder(recipe: Recipe, layers: int) -> Path:
    """The run folder of one stage."""
    return Path(recipe.run_dir) / f"stage-{layers}"


def generate_inputs(recipe: Recipe, target: Path) -> dict[str, str]:
    """What the answers are made from."""
    return {"target": fingerprint_checkpoint(target), **asked_inputs(recipe)}


def asked_inputs(recipe: Recipe) -> dict[str, str]:
    """What the answers are made from beside the target; of a training on text held-out prompts alone are answered."""
    held_out_alone = {"distill.train_on": "text"} if recipe.distill.train_on == "text" else {}
    return {
        "target.dtype": recipe.target.dtype,
        "data": fingerprint_value(recipe.data.model_dump(mode="json", exclude={"prompts": TASK, "answers_from": True})),
        "prompts": fingerprint_sources(recipe.data.prompts),
        "seed": str(recipe.seed),
        **held_out_alone,
    }


def first_init(recipe: Recipe) -> Path:
    """The init whose output head every later one of a run keeps."""
    stages = recipe.architecture.stages
    return (Path(recipe.run_dir) if stages is None else stage_folder(recipe, stages[0])) / "init"


def cache_inputs(recipe: Recipe, target: Path) -> dict[str, str]:
    """What a cache of the teacher is made from; the draft's ids where entries are of them alone.

    Raises:
        UserError: As `entry_ids`.
    """
    ids = entry_ids(recipe, first_init(recipe))
    return {
        "target": fingerprint_checkpoint(target),
        **fingerprint_tokenizer(target),
        "teacher's dtype": teacher_dtype(recipe, recipe.distill.precision),
        "data": fingerprint_value((read_manifest(Path(recipe.run_dir) / "data") or {}).get("inputs")),
        "data.max_seq_len": str(recipe.data.max_seq_len),
        "data.batch_size": str(recipe.data.batch_size),  # more rows in one product may round otherwise
        "distill.teacher": fingerprint_value(recorded(recipe.distill.teacher)),
        "seed": str(recipe.seed),
        **({} if ids is None else {"architecture.vocabulary": fingerprint_value(list(ids))}),
    }


def teacher_dtype(recipe: Recipe, precision: str) -> Dtype:
    """Number type of the teacher while it teaches."""
    return "float32" if precision == "fp32" else recipe.target.dtype


def training_inputs(recipe: Recipe) -> dict[str, str]:
    """What the checkpoints are made from; keys that a continued training may change are left out."""
    run = Path(recipe.run_dir)
    settings, others = recipe.distill.model_dump(mode="json", exclude=set(RESUMABLE_KEYS)), {}
    for name in ("unknown_inputs", "freeze_input_embeddings"):
        if not settings[name]:
            del settings[name]  # what was recorded before there was this key holds
    settings |= {"teacher": recorded(recipe.distill.teacher), "loss": recorded_loss(recipe.distill.loss)}
    if recipe.distill.token_selection is not None:
        reference = Path(recipe.distill.token_selection.reference)
        others["distill.token_selection.reference"] = fingerprint_checkpoint(reference)
    if recipe.distill.train_on == "text":
        others["text"] = fingerprint_text(recipe)
    return {
        "init": fingerprint_checkpoint(run / "init"),
        "data": fingerprint_value((read_manifest(run / "data") or {}).get("inputs")),
        "distill": fingerprint_value(settings),
        "seed": str(recipe.seed),
        **others,
    }


def draft_inputs(recipe: Recipe, training: dict[str, str]) -> dict[str, str]:
    """What the finished draft is made from."""
    return {
        **training,
        "distill.max_duration": recipe.distill.max_duration,
        "export": fingerprint_value(recipe.export.model_dump(mode="json", exclude=NOT_THE_DRAFT)),
    }


def eval_inputs(recipe: Recipe, target: Path) -> dict[str, str]:
    """What the scorecard is made from."""
    run, settings = Path(recipe.run_dir), recipe.eval.recorded(exclude={"tasks": TASK})
    if not settings["policy_prompts"]:
        del settings["policy_prompts"]  # what was recorded before there was this key holds
    return {
        "target": fingerprint_checkpoint(target),
        "undistilled": fingerprint_checkpoint(run / "init"),
        "draft": fingerprint_checkpoint(run / "draft"),
        "eval": fingerprint_value(settings),
        "prompts": fingerprint_sources(recipe.eval.tasks) if recipe.eval.tasks else training_inputs(recipe)["data"],
        "seed": str(recipe.seed),
    }


def fingerprint_sources(sources: Sequence[PromptSource]) -> str:
    """Content of prompt files and local data sets, and names of those of the hub, as one fingerprint."""
    parts: list[Any] = []
    for source in sources:
        task = [] if source.task is None else [TASKS[source.task].label]
        parts.append(
            [source.model_dump(mode="json", exclude={"task"}), content_of(source.path, source.name), *task],
        )
    return fingerprint_value(parts)


def fingerprint_text(recipe: Recipe) -> str:
    """Section text, and the content of its files and local data sets, as one fingerprint."""
    assert recipe.text is not None  # whoever trains on text has some
    domains = recipe.text.domains
    contents = [content_of(domain.path, domain.dataset) for domain in domains]
    by_line = any(domain.path is not None and not is_plain_text(domain.path) for domain in domains)
    reader = [JSON_READ_BY_LINE] if by_line else []
    return fingerprint_value([recipe.text.model_dump(mode="json"), contents, *reader])


def content_of(path: str | None, dataset: str | None) -> str | None:
    """What a file holds, or all files of a data set in a local folder; None of a hub id, which is known by its name."""
    if path is not None and Path(path).is_file():
        return fingerprint_file(Path(path))
    if dataset is not None and Path(dataset).is_dir():
        return fingerprint_folder(Path(dataset))
    return None


def target_record(recipe: Recipe) -> dict[str, str]:
    """The target as a manifest names it."""
    return {"path": recipe.target.path, "revision": recipe.target.revision}


def source_record(recipe: Recipe) -> dict[str, dict[str, str]]:
    """What the draft is cut out of, as a manifest names it, under "source"; nothing where that is the target."""
    wanted = recipe.architecture
    return {} if wanted.source is None else {"source": {"path": wanted.source, "revision": wanted.source_revision}}


def recipe_hash(recipe: Recipe) -> str:
    """sha256 of the resolved recipe."""
    return fingerprint_value(recorded_values(recipe))


def recorded_values(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe with the names and keys of sections at first, so that what was recorded holds."""
    values = recipe.model_dump(mode="json")
    values["distill"]["teacher"] = {**UNSAID, **values["distill"]["teacher"]}
    values["distill"]["loss"] = recorded_loss(recipe.distill.loss)
    values["eval"] = recipe.eval.recorded()
    return values
