"""How long each stage of a recipe takes on a device. Pure; no torch.

Not counted: loading models, cutting the draft, writing files, padding.
"""

from math import ceil

from architectures.pages.counts import number_of
from distill.estimates.memory import GROUP_OF_PROCESSES
from distill.expected_time.devices import Device
from distill.expected_time.lengths import written_answer
from distill.expected_time.rates import are_captured, step_s, steps_of_answers, training_flops_per_s
from distill.expected_time.scorecard_time import scorecard_time
from distill.expected_time.stage_time import Part, PlannedRun, StageTime, parts_of, unknown
from distill.expected_time.training_time import masks_time, new_answers_time, trained_drafts, training_time
from distill.monitoring.flops import forward_flops, head_flops
from distill.recipe.sections.teacher import (
    AnyCache,
    AnyTeacher,
    Cache,
    HiddenCache,
    SparseCache,
    bytes_per_token,
    keeps_states,
    teacher_dtype,
)
from distill.teacher_cache.shard_sizes import shard_tokens

UNOPENED = "how many prompts there are is known once `widedraft generate` opens the data set"


def stage_times(run: PlannedRun, device: Device) -> list[StageTime]:
    """Every stage that takes long, in the order of a run."""
    recipe = run.recipe
    times = [masks_time(run, device)] if recipe.architecture.method == "learned_masks" else []
    times.append(answers_time(run, device))
    if passes_for_cache(recipe.distill.teacher):
        times.append(cache_time(run, device))
    for name, draft in trained_drafts(run):
        times.append(training_time(run, device, draft, name))
        if recipe.distill.samples.writes:
            times.append(new_answers_time(run, device, draft, f"new answers of {name}"))
    return [*times, scorecard_time(run, device)]


def answers_time(run: PlannedRun, device: Device) -> StageTime:
    """The target's answers to the prompts that need one."""
    recipe, data, count = run.recipe, run.recipe.data, prompts_answered(run)
    if count is None:
        return unknown("answers", UNOPENED)
    if not recipe.generate.is_local:
        return unknown("answers", f"{count:,}, by generate.engine={recipe.generate.engine}, whose speed is its own")
    written = run.lengths.answer if data.answers == "written" else written_answer(data.max_new_tokens)
    bound = "at most " if run.work.at_most else ""
    words = f"{bound}{count:,} of {written} tokens in batches of {data.batch_size}"
    context = run.lengths.prompt + data.max_new_tokens // 2
    captured = are_captured(device, run.target, data.answer_steps)
    place = {"batch": data.batch_size, "context": context}
    step = step_s(device, run.target, recipe.target.dtype, **place, captured=captured)
    reading = training_flops_per_s(device, "live", recipe.distill.precision, run.draft)
    if step is None or reading is None:
        return unknown("answers", f"no answers or steps in {recipe.target.dtype} were measured on {device.name}")
    steps = steps_of_answers(device, count, data.batch_size, data.max_new_tokens)
    words += f", {steps:,.0f} steps"
    seconds = steps * step.value
    seconds += count * forward_flops(run.target, [(run.lengths.prompt, 1)]) / reading.value
    measured = step.measured and reading.measured
    words += f"; {step.words}; prompts read at the speed of training"
    parts = tuple(parts_of(seconds, answer_shards(run, count)))
    return StageTime("answers", seconds, measured, words, processes=sharing(device), parts=parts)


def answer_shards(run: PlannedRun, count: int) -> tuple[int, int]:
    """Files of so many answers, held-out ones and those to train on: each is one process's."""
    held_out, size = min(count, run.recipe.data.num_eval_prompts), run.recipe.data.shard_size
    return ceil(held_out / size), ceil((count - held_out) / size)


def sharing(device: Device) -> int:
    """Devices of one machine that share what is cut into pieces; processes of a processor share its cores."""
    return 1 if device.is_processor else GROUP_OF_PROCESSES


def prompts_answered(run: PlannedRun) -> int | None:
    """How many answers the target writes, beside those that are there; None where that is not known."""
    held_out = run.recipe.data.num_eval_prompts
    if run.recipe.data.answers == "given" or not run.recipe.distill.learns_answers:
        return held_out
    return None if run.work.answers is None else run.work.answers + held_out - run.work.taken


def passes_for_cache(teacher: AnyTeacher) -> bool:
    """Whether something of the teacher is computed for a cache: states that it kept while answering are copied."""
    return isinstance(teacher, SparseCache) or (isinstance(teacher, Cache) and not keeps_states(teacher))


def cache_time(run: PlannedRun, device: Device) -> StageTime:
    """The teacher reads every answer once, held out or not; or of states that it kept, entries are made."""
    teacher = run.recipe.distill.teacher
    assert isinstance(teacher, HiddenCache | SparseCache), "of others nothing is written"
    rate = training_flops_per_s(device, "live", run.recipe.distill.precision, run.draft)
    if run.work.answers is None:
        return unknown("teacher cache", UNOPENED)
    if rate is None:
        return unknown("teacher cache", f"nothing was measured on {device.name}")
    if isinstance(teacher, SparseCache) and keeps_states(teacher):
        tokens = run.work.answers * run.lengths.answer
        flops = tokens * head_flops(run.draft.head_rows, run.target.hidden)
        done = (
            f"{teacher.contents} of the states kept of {tokens:,} tokens, assumed to be made at the speed of training"
        )
    else:
        count = run.work.answers + run.recipe.data.num_eval_prompts
        flops = count * forward_flops(run.target, [(run.lengths.whole, run.lengths.answer)])
        sequences = number_of(count, "sequence")
        done = f"{sequences} of {run.lengths.whole:,} tokens, assumed to be read at the speed of training"
    seconds = flops / rate.value
    return StageTime(
        "teacher cache",
        seconds,
        measured=False,
        words=f"{done}; {rate.words}",
        processes=sharing(device),
        parts=(Part(seconds, cache_files(run, teacher)),),
    )


def cache_files(run: PlannedRun, teacher: AnyCache) -> int:
    """Files of a cache, each of them one process's; those of held-out answers, a few, are counted in."""
    recipe = run.recipe
    dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
    widths = {"hidden": run.target.hidden, "rows": run.draft.head_rows, "dtype": dtype}
    capacity = shard_tokens(bytes_per_token(teacher, "train", **widths))
    return max(1, ceil((run.work.answers or 0) * run.lengths.answer / capacity))
