"""How many prompts, answers, steps and tokens a recipe means, told before anything is generated. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from architectures.checkpoints.manifest import Counts, changed_inputs
from architectures.errors import UserError
from architectures.pages.counts import number_of
from architectures.shapes.section import MasksConfig
from distill.data.conversations import Conversation, load_conversations
from distill.recipe.recipe import Recipe
from distill.recipe.sections.data import DataConfig
from distill.recipe.sections.online import OnlineConfig
from distill.recipe.sections.times import split_time
from distill.recipe.sections.training import DistillConfig
from distill.run.recorded import target_record
from distill.run.run import Run
from distill.run.stage_inputs import asked_inputs
from eval.answers.earlier_answers import num_answered
from eval.prompts import Prompt, load_prompts
from eval.tasks import PromptSource


@dataclass(frozen=True)
class Work:
    """The answers there will be.

    Attributes:
        prompts: Rows the recipe names; None if a data set has to be opened to count them.
        answers: Sequences to train on, one answer each or a conversation of given ones; None if not known.
        answer_tokens: Of those, once they are written.
        at_most: Whether the first two are bounds: a data set may have fewer rows than the recipe reads.
        taken: Answers, held-out ones among them, that data.answers_from holds and nobody has to write.
    """

    prompts: int | None
    answers: int | None
    answer_tokens: int | None = None
    at_most: bool = False
    taken: int = 0


def read_prompts(source: PromptSource) -> list[Prompt] | None:
    """The prompts of a file; None for a data set, which takes longer to open than a check may."""
    return None if source.path is None else load_prompts([source])


def read_rows(source: PromptSource, data: DataConfig) -> Sequence[Prompt | Conversation] | None:
    """The same of the data's own sources, which may bring their answers."""
    if data.answers == "written" or source.path is None:
        return read_prompts(source)
    return load_conversations([source])


def expected_work(
    recipe: Recipe, sources: Sequence[Sequence[Prompt | Conversation] | None], counts: Counts | None
) -> Work:
    """Counts of the finished answers if they are this recipe's (`finished_counts`), else from the prompts.

    Raises:
        UserError: If no prompt would be left to train on.
    """
    if counts is not None:
        train = counts["train"]
        return Work(counts["prompts"], train.get("sequences", train["answers"]), train["answer_tokens"])
    return unwritten_work(recipe, sources)


def unwritten_work(recipe: Recipe, sources: Sequence[Sequence[Prompt | Conversation] | None]) -> Work:
    """Counts from the prompts alone; errors as for `expected_work`."""
    bounds = [named.num_prompts for named, rows in zip(recipe.data.prompts, sources, strict=True) if rows is None]
    if None in bounds:
        return Work(None, None)
    prompts = [prompt for rows in sources if rows is not None for prompt in rows]
    total = len(prompts) + sum(bound or 0 for bound in bounds) + recipe.data.self_written_prompts
    held_out = recipe.data.num_eval_prompts
    alone = not recipe.distill.learns_answers
    if held_out >= total + alone:
        most = "at most" if alone else "less than"
        raise UserError(
            f"data.num_eval_prompts must be {most} the number of prompts, got {held_out} and {total}. "
            "Hold out fewer, or add prompts."
        )
    if alone:
        return Work(total, 0, at_most=bool(bounds))
    asked = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
    answers = total - held_out + sum(len(prompt.later_turns) for prompt in asked)
    taken = num_answered(asked, [Path(folder) for folder in recipe.data.answers_from])
    return Work(total, answers, at_most=bool(bounds), taken=taken)


def request_rows(online: OnlineConfig, duration: str) -> list[tuple[str, str]]:
    """Requests and updates of a training on a stream."""
    wanted = online.stream.num_requests
    many = "all of the stream" if wanted is None else f"{wanted:,}"
    steps = number_of(online.steps_per_update, "step")
    return [
        ("requests", f"{many}, {'answered live' if online.answers == 'live' else 'replayed'}"),
        ("updates", f"every {online.update_interval} requests, {steps} each ({duration})"),
    ]


def finished_counts(recipe: Recipe) -> Counts | None:
    """What a finished <run>/data that this recipe made holds; the files of the target are not compared."""
    manifest = Run.of(recipe).data.manifest
    if manifest is None or manifest.get("target") != target_record(recipe.target):
        return None
    changed = changed_inputs(manifest, asked_inputs(recipe))
    return manifest.get("counts") if set(changed) <= {"target"} else None


def work_rows(recipe: Recipe, work: Work) -> list[tuple[str, str]]:
    """Prompts, steps and tokens of training."""
    batch, duration = recipe.distill.global_train_batch_size, recipe.distill.max_duration
    held_out = recipe.data.num_eval_prompts
    prompts = "unknown until `widedraft generate` opens the data set" if work.prompts is None else f"{work.prompts:,}"
    bound = "at most " if work.at_most else ""
    rows = [("prompts", f"{bound}{prompts}; {held_out} of them held out")]
    if work.taken:
        rows.append(("answers there", f"{work.taken:,}, taken from {', '.join(recipe.data.answers_from)}"))
    if recipe.text is not None and recipe.architecture.method == "learned_masks":
        rows += mask_work_rows(recipe.architecture.masks, recipe.text.max_seq_len)
    if recipe.architecture.stages is not None:
        rows.append(("stages", f"{len(recipe.architecture.stages)}, each trained for the steps below"))
    if recipe.text is not None and recipe.distill.train_on == "text":
        return rows + text_work_rows(recipe.distill, recipe.text.max_seq_len)
    if recipe.distill.online is not None:
        return rows + request_rows(recipe.distill.online, duration)
    rows += new_answer_rows(recipe)
    value, unit = split_time(duration)
    if unit == "tok":
        least = ceil(value / (batch * recipe.data.max_seq_len))
        return [*rows, ("steps", f"at least {least:,} of {batch} answers each ({duration}, prompts counted)")]
    reading = expected_reading(recipe.distill, work.answers)
    if reading is None:
        return [*rows, ("steps", f"unknown ({duration})")]
    return [
        *rows,
        ("steps", f"{bound if unit == 'ep' else ''}{reading.steps:,} of {batch} answers each ({duration})"),
        *epoch_rows(reading, work, is_exact=unit == "ep"),
        ("answer tokens", tokens(reading.answers, work, Run.of(recipe).data.path, longest=recipe.data.longest_answer)),
    ]


@dataclass(frozen=True)
class Reading:
    """How a training goes through its answers, which it begins anew, in another order, whenever it has read them all.

    Attributes:
        steps: Batches; the last of an epoch may be smaller.
        answers: Sequences read, each as often as it is.
        epochs: How often all of them are; None where nobody knows how many there are.
    """

    steps: int
    answers: int
    epochs: float | None


def expected_reading(distill: DistillConfig, answers: int | None) -> Reading | None:
    """What a duration in ep, ba or sp means for so many answers an epoch; None in ep if their number is not known."""
    (value, unit), batch = split_time(distill.max_duration), distill.global_train_batch_size
    if not answers:
        if unit == "ep":
            return None
        count = int(value) * (batch if unit == "ba" else 1)
        return Reading(ceil(count / batch), count, None)
    steps_of_epoch = ceil(answers / batch)
    if unit == "sp":
        epochs, rest = divmod(int(value), answers)
        steps, read = epochs * steps_of_epoch + ceil(rest / batch), int(value)
    else:
        steps = int(value) * (steps_of_epoch if unit == "ep" else 1)
        epochs, rest = divmod(steps, steps_of_epoch)
        read = epochs * answers + rest * batch
    return Reading(steps, read, read / answers)


def epoch_rows(reading: Reading, work: Work, *, is_exact: bool) -> list[tuple[str, str]]:
    """How often the answers are read, where that is known."""
    if reading.epochs is None:
        return []
    least = "at least " if work.at_most and not is_exact else ""
    orders = ", each in an order of its own" if reading.epochs > 1 else ""
    return [
        (
            "epochs",
            f"{least}{reading.epochs:.3g} over {'at most ' if work.at_most else ''}{work.answers:,} answers{orders}",
        )
    ]


def mask_work_rows(masks: MasksConfig, seq_len: int) -> list[tuple[str, str]]:
    """Steps and tokens of mask training."""
    steps, batch = int(split_time(masks.max_duration)[0]), masks.global_train_batch_size
    return [
        ("mask steps", f"{steps:,} of {batch} sequences each ({masks.max_duration})"),
        ("mask tokens", f"{steps * batch * seq_len:,} of text"),
    ]


def text_work_rows(distill: DistillConfig, seq_len: int) -> list[tuple[str, str]]:
    """Steps and tokens of a student that is trained on text; the last token of a sequence is only predicted."""
    value, unit = split_time(distill.max_duration)
    batch = distill.global_train_batch_size
    steps = ceil(value / {"ba": 1, "sp": batch, "tok": batch * (seq_len - 1)}[unit])
    return [
        ("steps", f"{steps:,} of {batch} sequences each ({distill.max_duration})"),
        ("tokens", f"{steps * batch * (seq_len - 1):,} of text"),
    ]


def new_answer_rows(recipe: Recipe) -> list[tuple[str, str]]:
    """Who writes answers anew while the student trains."""
    samples = recipe.distill.samples
    if not samples.writes:
        return []
    chance = f"with probability {samples.most_probable:g}"
    who = {
        "student": "by the student, all of them",
        "mix_request": f"by the student, each {chance}",
        "mix_token": f"all of them, each token by the student {chance}, else by the teacher",
    }[samples.source]
    if split_time(samples.ramp)[0]:
        who += f" (the probability rises from {samples.begin:g} over {samples.ramp})"
    most = samples.max_new_tokens or recipe.data.max_new_tokens
    return [("new answers", f"{who}; at most {most} tokens. Answer tokens below are those of section data")]


def loss_words(distill: DistillConfig) -> str:
    """What is minimised, also where the recipe left that to its teacher."""
    terms = (term.name if term.weight == 1 else f"{term.weight:g} x {term.name}" for term in distill.terms)
    return " + ".join(terms) + (f", at temperature {distill.temperature:g}" if distill.temperature != 1 else "")


def tokens(answers: int, work: Work, folder: Path, *, longest: int) -> str:
    """The answer tokens of so many answers: their mean length times their number, or an upper bound."""
    if work.answers and work.answer_tokens is not None:
        return f"{round(answers * work.answer_tokens / work.answers):,}, counted in {folder}"
    return f"at most {answers * longest:,}; known once {folder} exists"
