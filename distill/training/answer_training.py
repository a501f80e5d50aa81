"""Training on answers: those that are there, and those that are written while the student trains."""

from functools import partial

from composer import Callback, DataSpec

from distill.data.batches import AnswerDataset
from distill.rollouts.rollouts import Rollouts, Writers
from distill.rollouts.writing import Writer
from distill.run.run import Run
from distill.teacher.live import Teacher
from distill.teacher_cache.answers import CachedAnswers
from distill.training.dataspec import Widths, build_dataspec
from distill.training.model import DistillModel
from eval.decoding.sampling import Sampling
from eval.models.loading import stop_token_ids


def answer_training(
    run: Run, model: DistillModel, train_set: AnswerDataset | CachedAnswers, *, batch_size: int
) -> tuple[DataSpec, list[Callback]]:
    """This process's batches of answers, and what writes some anew, where the recipe wants it."""
    samples, seed = run.recipe.distill.samples, run.recipe.seed
    widths = Widths.of(run.recipe)
    build = partial(build_dataspec, train_set, device_batch_size=batch_size, shuffle=True, seed=seed, widths=widths)
    if not samples.writes:
        return build(), []
    rollouts = Rollouts(samples, writers_of(run, model), seed=seed, clock=model.clock)
    return build(rewritten=rollouts.rewritten), [rollouts]


def writers_of(run: Run, model: DistillModel) -> Writers:
    """The student, and the live teacher where it writes tokens, each as the recipe wants it to choose."""
    data, samples, student = run.recipe.data, run.recipe.distill.samples, model.student.lm
    temperature = data.temperature if samples.temperature is None else samples.temperature
    teacher = None
    if samples.source == "mix_token":
        assert isinstance(model.teacher, Teacher), "recipes in which it writes have a live one"
        teacher = Writer(model.teacher.model.lm, Sampling(data.temperature, data.top_p))
    return Writers(
        Writer(student, Sampling(temperature, data.top_p)),
        teacher,
        stop_token_ids(student),
        vocab_size=model.vocab_size,
        max_new_tokens=samples.max_new_tokens or data.max_new_tokens,
        max_seq_len=data.max_seq_len,
    )
