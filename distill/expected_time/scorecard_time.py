"""How long a scorecard takes: what eval/scorecard/score.py does, counted. Pure; no torch."""

from itertools import product
from math import ceil, inf

from architectures.shapes.shape import Shape
from distill.estimates.memory import GROUP_OF_PROCESSES
from distill.expected_time.devices import Device
from distill.expected_time.lengths import written_answer
from distill.expected_time.rates import are_captured, step_s, steps_of_answers, training_flops_per_s
from distill.expected_time.stage_time import Part, PlannedRun, StageTime, parts_of, unknown
from distill.monitoring.flops import forward_flops
from distill.recipe.recipe import Recipe

Steps = dict[tuple[Shape, int], float]  # seconds, by model and rows

DRAFTS = 2  # the finished one, and the undistilled one beside it
LIVE_WAYS = 3  # the target alone, with the draft, with what the text says alone; and with a policy, if one is tuned
WARM_UPS = 10  # repetitions before steps count
DRAFT_STEPS = 9  # a chain of eight, and one of two tokens
GRID_LOOKAHEADS = 4  # whose verification is timed at other batches


def scorecard_time(run: PlannedRun, device: Device) -> StageTime:
    """Answers, their replay, step times, and live decoding; never taken as measured, since much is left out."""
    config = run.recipe.eval
    steps = scored_steps(run, device)
    speed = training_flops_per_s(device, "live", run.recipe.distill.precision, run.draft)
    if steps is None or speed is None:
        return unknown("scorecard", f"no steps in {config.dtype} were measured on {device.name}")
    written, live = written_answer(config.max_new_tokens), min(config.live_prompts, scored_prompts(run.recipe))
    parts = (
        *parts_of(written_s(run, device, steps), scored_shards(run.recipe)),
        Part(replay_flops(run) / speed.value, num_answers(run.recipe)),
        Part(timing_s(run, steps) + len(config.temperatures) * LIVE_WAYS * live * written * steps[run.target, 1]),
    )
    answers = f"{num_answers(run.recipe):,} answers of {written} tokens{written_by(run.recipe)}"
    words = (
        f"estimated: {answers}, replayed by {1 + DRAFTS} models, steps "
        f"timed, {live} prompts decoded by {LIVE_WAYS} ways at each temperature; "
        f"{1e3 * steps[run.target, 1]:.3g} ms a step of the target alone"
    )
    seconds, shared = sum(part.seconds for part in parts), 1 if device.is_processor else GROUP_OF_PROCESSES
    return StageTime("scorecard", seconds, measured=False, words=words, processes=shared, parts=parts)


def written_by(recipe: Recipe) -> str:
    """Whose time is left out."""
    return "" if recipe.generate.is_local else f" (without the time of generate.engine={recipe.generate.engine})"


def scored_shards(recipe: Recipe) -> tuple[int, ...]:
    """Files of the answers that are scored at each temperature."""
    config = recipe.eval
    return (ceil(scored_prompts(recipe) / config.batch_size),) * len(config.temperatures)


def scored_steps(run: PlannedRun, device: Device) -> Steps | None:
    """Seconds of a step of target and draft at each batch; None where one is not known."""
    config = run.recipe.eval
    context = scored_prompt(run) + written_answer(config.max_new_tokens) // 2
    steps: Steps = {}
    for shape, batch in product((run.target, run.draft), sorted({1, config.batch_size, *config.latency_batch_sizes})):
        rate = step_s(device, shape, config.dtype, batch=batch, context=context)
        if rate is None:
            return None
        steps[shape, batch] = rate.value
    return steps


def written_s(run: PlannedRun, device: Device, steps: Steps) -> float:
    """Seconds in which the target writes the answers of all temperatures; none where an engine does."""
    config = run.recipe.eval
    if not run.recipe.generate.is_local:
        return 0.0
    count = steps_of_answers(device, num_answers(run.recipe), config.batch_size, config.max_new_tokens)
    if not are_captured(device, run.target, config.answer_steps):
        return count * steps[run.target, config.batch_size]
    context = scored_prompt(run) + written_answer(config.max_new_tokens) // 2
    place = {"batch": config.batch_size, "context": context}
    rate = step_s(device, run.target, config.dtype, **place, captured=True)
    assert rate is not None, "scored_steps knows an eager one"
    return count * rate.value


def replay_flops(run: PlannedRun) -> int:
    """FLOPs of target and drafts along all answers."""
    written = written_answer(run.recipe.eval.max_new_tokens)
    answers = [(scored_prompt(run) + written, written)] * num_answers(run.recipe)
    return forward_flops(run.target, answers) + DRAFTS * forward_flops(run.draft, answers)


def timing_s(run: PlannedRun, steps: Steps) -> float:
    """Seconds of taking step times: at batch 1, and less often at others, there both in turn and alone."""
    config = run.recipe.eval
    repeats, seldom = config.latency_repeats + WARM_UPS, max(2, config.latency_repeats // 4) + WARM_UPS
    total_s = repeats * (
        (1 + len(config.lookaheads)) * steps[run.target, 1] + DRAFTS * DRAFT_STEPS * steps[run.draft, 1]
    )
    for batch in config.latency_batch_sizes:
        once_s = (1 + GRID_LOOKAHEADS) * steps[run.target, batch] + DRAFT_STEPS * steps[run.draft, batch]
        total_s += 2 * seldom * once_s
    return total_s


def scored_prompt(run: PlannedRun) -> int:
    """Tokens of a prompt; those of tasks are taken to be as long as those of the data."""
    return min(run.lengths.prompt, run.recipe.eval.max_prompt_len)


def num_answers(recipe: Recipe) -> int:
    """Answers at all temperatures."""
    return len(recipe.eval.temperatures) * scored_prompts(recipe)


def scored_prompts(recipe: Recipe) -> int:
    """Prompts of the scorecard, at most."""
    tasks = recipe.eval.tasks
    there = sum(task.num_prompts or inf for task in tasks) if tasks else recipe.data.num_eval_prompts
    return int(min(recipe.eval.num_prompts, there))
