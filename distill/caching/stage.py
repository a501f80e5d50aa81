"""The stage `widedraft cache`: when a cache is made, continued, current or refused. No torch until it is made."""

from pathlib import Path

from architectures.checkpoints.manifest import read_manifest
from architectures.errors import UserError
from distill.recipe.recipe import Recipe
from distill.recipe.teacher import AnyCache, Cache, keeps_states
from distill.run.entry_ids import entry_ids
from distill.run.stage_folders import begin_stage, refuse_changed, require_finished
from distill.run.stage_inputs import (
    cache_inputs,
    first_init,
    generate_inputs,
    recipe_hash,
    target_record,
    teacher_dtype,
)
from distill.teacher_cache.record import is_whole, verify_files
from eval.answers.shards import shards_without_states


def cache_stage(recipe: Recipe) -> None:
    """Write what the teacher says of the answers in <run>/data, into <run>/teacher_cache.

    Raises:
        UserError: If the recipe's teacher is live, the answers are not the recipe's, a cache is there that was made
            from something else, or entries of a small vocabulary are asked for before a draft was cut.
    """
    kept = require_cached_teacher(recipe).contents
    run, target = Path(recipe.run_dir), begin_stage(recipe)
    require_finished(run / "data", "generate")
    refuse_changed(run / "data", generate_inputs(recipe, target))
    cache, inputs = run / "teacher_cache", cache_inputs(recipe, target)
    if read_manifest(cache) is not None:
        refuse_changed(cache, inputs)
        if is_whole(cache):
            print(f"   {cache}: up to date", flush=True)
            return
    write_cache(recipe, target, inputs)
    print(f"   {cache}: {kept} of the teacher")


def states_are_due(recipe: Recipe) -> bool:
    """Whether a cache is to be made of states that are missing beside finished answers; says so if there are any."""
    run = Path(recipe.run_dir)
    data, cache = run / "data", run / "teacher_cache"
    if not keeps_states(recipe.distill.teacher) or read_manifest(data) is None or is_whole(cache):
        return False
    lacking = shards_without_states(data, ("train", "eval"))
    if lacking:
        print(f"   {data}: {len(lacking)} shards without hidden states, the first is {lacking[0].name}", flush=True)
    return bool(lacking)


def write_cache(recipe: Recipe, target: Path, inputs: dict[str, str]) -> None:
    """Let the teacher read the answers, or take the states it kept; continues an interrupted capture."""
    from distill.caching.capture import CaptureSettings, capture_teacher
    from distill.caching.kept_states import KeptStates
    from distill.caching.reading import TargetReading
    from distill.train import read_answers, restore_signals

    teacher = require_cached_teacher(recipe)
    restore_signals()  # importing Composer took Ctrl-C away
    train_set, eval_set = read_answers(recipe, target)
    dtype = teacher_dtype(recipe, recipe.distill.precision)
    settings = CaptureSettings(
        teacher,
        dtype=dtype,
        seed=recipe.seed,
        batch_size=recipe.data.batch_size,
        ids=entry_ids(recipe, first_init(recipe)),
    )
    details = {
        "dtype": settings.dtype,
        "captured_while": teacher.captured_while,
        "max_seq_len": recipe.data.max_seq_len,
        "seed": recipe.seed,
        "target": target_record(recipe),
        "recipe": recipe_hash(recipe),
    }
    answers = {"train": train_set.examples, "eval": eval_set.examples}
    run = Path(recipe.run_dir)
    if keeps_states(teacher):
        source = KeptStates(run / "data", target, dtype=dtype, max_seq_len=recipe.data.max_seq_len)
    else:
        source = TargetReading(target, settings)
    capture_teacher(target, answers, run / "teacher_cache", settings, source=source, inputs=inputs, details=details)


def verify_cache_stage(recipe: Recipe) -> None:
    """Compare every file of <run>/teacher_cache with its checksum.

    Raises:
        UserError: If the recipe's teacher is live, the cache is not finished, or a file is not as it was written.
    """
    require_cached_teacher(recipe)
    cache = Path(recipe.run_dir) / "teacher_cache"
    print(f"   {cache}: {verify_files(cache)} files are as they were written")


def require_cached_teacher(recipe: Recipe) -> AnyCache:
    """The recipe's teacher, which is read from a cache, else UserError."""
    teacher = recipe.distill.teacher
    if not isinstance(teacher, Cache):
        raise UserError(f"distill.teacher.source is {teacher.source}: there is nothing to cache. Set it to cache.")
    return teacher
