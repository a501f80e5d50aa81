"""How long each stage of a recipe takes on a device. Pure; no torch.

Not counted: loading models, cutting the draft, writing files, padding.
"""

from architectures.pages.counts import number_of
from distill.expected_time.devices import Device
from distill.expected_time.lengths import written_answer
from distill.expected_time.rates import are_captured, step_s, steps_of_answers, training_flops_per_s
from distill.expected_time.scorecard_time import scorecard_time
from distill.expected_time.stage_time import PlannedRun, StageTime, unknown
from distill.expected_time.training_time import masks_time, new_answers_time, trained_drafts, training_time
from distill.monitoring.flops import forward_flops, head_flops
from distill.recipe.sections.teacher import AnyTeacher, Cache, SparseCache, keeps_states

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
    return StageTime("answers", seconds, measured, f"{words}; {step.words}; prompts read at the speed of training")


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
    return StageTime("teacher cache", flops / rate.value, measured=False, words=f"{done}; {rate.words}")
