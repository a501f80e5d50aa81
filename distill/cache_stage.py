"""The stage `cache`: when it is due, and what it writes."""

from functools import partial

from architectures.errors import UserError
from distill.process.interrupts import signals_kept
from distill.recipe.sections.teacher import TeacherConfig, teacher_dtype
from distill.run.run import Run
from distill.run.stage import Finish
from distill.run.stage_inputs import cache_inputs, entry_ids, generate_inputs


def require_own_answers(run: Run) -> None:
    """Refuse to cache a teacher before it has answered, or for answers of another recipe."""
    run.data.require(generate_inputs(run))


def write_cache(run: Run, finish: Finish) -> str:
    """Let the teacher read the answers; continues an interrupted capture."""
    with signals_kept():
        from distill.teacher_cache import CaptureSettings, capture_teacher
        from distill.train import read_split

    recipe, teacher = run.recipe, require_cached_teacher(run.recipe.distill.teacher)
    splits = ("train", "eval") if recipe.distill.learns_answers else ("eval",)
    joined = recipe.data.answers == "given"
    read = {name: read_split(run, name, joined=joined and name == "train") for name in splits}
    dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
    settings = CaptureSettings(
        teacher,
        dtype=dtype,
        seed=recipe.seed,
        batch_size=recipe.data.batch_size,
        ids=entry_ids(run),
        holding=recipe.target.holding,
    )
    capture_teacher(
        run.target,
        {name: answers.examples for name, answers in read.items()},
        run.teacher_cache.path,
        settings,
        inputs=cache_inputs(run),
        share=run.share,
        finish=partial(finish, dtype=dtype, max_seq_len=recipe.data.max_seq_len),
    )
    return f"{teacher.contents} of the teacher"


def require_cached_teacher(teacher: TeacherConfig) -> TeacherConfig:
    """A recipe's teacher, which is read from a cache, else UserError."""
    if not teacher.is_cache:
        raise UserError(f"distill.teacher.source is {teacher.source}: there is nothing to cache. Set it to cache.")
    return teacher
