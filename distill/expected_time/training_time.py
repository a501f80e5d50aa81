"""How long a recipe's trainings take: of the draft, of those of earlier stages, of learned masks. Pure; no torch.

FLOPs are counted as distill/monitoring/flops.py counts them while a training runs, so that a measured speed in FLOPs a
second means the same here. Among several devices a training is divided as if talking to each other took nothing, which
nobody has measured.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from architectures.pages.counts import number_of
from architectures.shapes.shape import Shape
from distill.estimates.expected_work import expected_reading
from distill.estimates.memory import process_counts
from distill.estimates.trainings import learned_tokens, trainings
from distill.expected_time.devices import Device
from distill.expected_time.rates import step_s, steps_of_answers, training_flops_per_s
from distill.expected_time.stage_time import Part, PlannedRun, StageTime, unknown
from distill.formulas.losses import Knowledge
from distill.monitoring.flops import forward_flops, head_flops, training_flops
from distill.recipe.sections.samples import SamplesConfig
from distill.recipe.sections.teacher import HiddenCache, LiveTeacher, NoTeacher, teacher_dtype
from distill.recipe.sections.times import split_time
from distill.recipe.sections.training import GPU_PADDING

Sequence = tuple[int, int]  # tokens, and positions that the output head runs at


def trained_drafts(run: PlannedRun) -> Iterator[tuple[str, Shape]]:
    """The drafts of the stages before the last, which share its answers, and the draft."""
    for layers in (run.recipe.architecture.stages or [])[:-1]:
        head = {"vocab": run.target.vocab, "head_vocab": run.draft.head_vocab, "tied": run.draft.tied}
        yield f"training, {number_of(layers, 'layer')}", replace(run.source, layers=layers, **head)
    yield "training", run.draft


def training_time(run: PlannedRun, device: Device, draft: Shape, name: str) -> StageTime:
    """Steps and evaluations of one draft."""
    sequence, source = learned_sequence(run), teacher_source(run)
    count = trained_sequences(run, sequence[0])
    config = run.recipe.distill
    rate = training_flops_per_s(device, source, config.precision, draft, packing=config.packing)
    if config.online is not None:
        return unknown(name, "it takes as long as requests come; serving them is most of it")
    if count is None:
        return unknown(name, "how many answers there are is known once `widedraft generate` opens the data set")
    if rate is None:
        return unknown(name, f"no training in {config.precision} was measured on {device.name}")
    computed = padded(run, device, sequence)
    each = training_flops(draft, [computed], teacher=teacher_flops(run, draft, computed, source))
    evaluations = num_evaluations(run, count)
    flops = count * each + evaluations * evaluation_flops(run, draft)
    words = (
        f"{number_of(count, 'sequence')} of {sequence[0]:,} tokens, {each / sequence[0] / 1e9:.3g} GFLOP a token, and "
        f"{number_of(evaluations, 'evaluation')}; {rate.words}"
    )
    most, seconds = most_processes(run, device, "distillation"), flops / rate.value
    batch = config.global_train_batch_size
    parts = (Part(seconds, batch, is_even=True),)
    return StageTime(name, seconds, rate.measured, words, processes=most, parts=parts, steps=ceil(count / batch))


def new_answers_time(run: PlannedRun, device: Device, draft: Shape, name: str) -> StageTime:
    """Answers that are written anew while a draft trains: a decoding of its own for every batch."""
    recipe, samples, config = run.recipe, run.recipe.distill.samples, run.recipe.distill
    count, most = trained_sequences(run, run.lengths.whole), samples.max_new_tokens or recipe.data.max_new_tokens
    share = 1.0 if samples.source == "mix_token" else mean_probability(samples)
    rows = max(1, round(share * config.global_train_batch_size))
    writers = [(draft, "float32")]
    if samples.source == "mix_token":
        writers.append((run.target, teacher_dtype(recipe.target.dtype, config.precision)))
    context = run.lengths.prompt + most // 2
    rates = [step_s(device, shape, dtype, batch=rows, context=context) for shape, dtype in writers]
    known = [rate for rate in rates if rate is not None]
    if count is None or len(known) < len(rates):
        missing = " and ".join(dtype for (_, dtype), rate in zip(writers, rates, strict=True) if rate is None)
        why = "how many answers there are is not known yet" if count is None else f"no step in {missing} was measured"
        return unknown(name, f"answers that are written while the draft trains; {why}")
    steps = steps_of_answers(device, count, config.global_train_batch_size, most)
    seconds = steps * sum(rate.value for rate in known)
    words = (
        f"{number_of(round(share * count), 'answer')} of at most {most} tokens, {rows} at a time, {steps:,.0f} steps"
    )
    told = "; ".join(rate.words for rate in known)
    processes = most_processes(run, device, "distillation")
    parts = (Part(seconds, config.global_train_batch_size, is_even=True),)
    return StageTime(
        name, seconds, all(rate.measured for rate in known), f"{words}; {told}", processes=processes, parts=parts
    )


def mean_probability(samples: SamplesConfig) -> float:
    """The chance that the student writes a sequence, on average over a training; of a ramp in dur alone it is exact."""
    length, unit = split_time(samples.ramp)
    lacking = (samples.most_probable - samples.begin) / 2 * length if unit == "dur" else 0.0
    return samples.most_probable - lacking


def masks_time(run: PlannedRun, device: Device) -> StageTime:
    """The training of learned masks: all of the target learns, beside its frozen self. Never taken as measured."""
    masks, text = run.recipe.architecture.masks, run.recipe.text
    assert text is not None  # a recipe with learned masks has text
    rate = training_flops_per_s(device, "live" if masks.kl_weight else "none", masks.precision, run.target)
    if rate is None:
        return unknown("mask training", f"no training in {masks.precision} was measured on {device.name}")
    steps = int(split_time(masks.max_duration)[0])
    count = steps * masks.global_train_batch_size
    sequence = (text.max_seq_len, text.max_seq_len - 1)
    teacher = forward_flops(run.target, [sequence]) if masks.kl_weight else 0
    flops = count * training_flops(run.target, [sequence], teacher=teacher)
    words = f"{number_of(count, 'sequence')} of {text.max_seq_len:,} tokens, gates not counted; {rate.words}"
    most, seconds = most_processes(run, device, "mask training"), flops / rate.value
    parts = (Part(seconds, masks.global_train_batch_size, is_even=True),)
    return StageTime("mask training", seconds, measured=False, words=words, processes=most, parts=parts, steps=steps)


def most_processes(run: PlannedRun, device: Device, title: str) -> int:
    """Devices of one machine that can share a training; those of a processor share its cores."""
    if device.is_processor:
        return 1
    found = trainings(run.recipe, run.target, run.draft, on_gpu=True)
    [training] = [each for each in found if each.title == title]
    return process_counts(training)[-1]


def learned_sequence(run: PlannedRun) -> Sequence:
    """A sequence of the draft's training, as long as they are on average."""
    if run.recipe.distill.train_on == "answers":
        return run.lengths.whole, run.lengths.answer
    return learned_tokens(run.recipe)


def padded(run: PlannedRun, device: Device, sequence: Sequence) -> Sequence:
    """A sequence of answers as wide as it is computed; what longer ones of its batch add is not counted."""
    tokens, read_at = sequence
    config, longest = run.recipe.distill, run.recipe.data.max_seq_len
    multiple = config.pad_to_multiple
    if multiple == "auto":
        multiple = 1 if device.is_processor else GPU_PADDING
    if config.train_on == "text" or multiple == 1:
        return sequence
    return max(tokens, min(ceil(tokens / multiple) * multiple, longest)), read_at


def trained_sequences(run: PlannedRun, seq_tokens: int) -> int | None:
    """Sequences of the whole training, each as often as it is read; None where that is not known."""
    value, unit = split_time(run.recipe.distill.max_duration)
    if unit == "tok":
        return max(1, ceil(value / seq_tokens))
    reading = expected_reading(run.recipe.distill, run.work.answers)
    return None if reading is None else reading.answers


def teacher_source(run: PlannedRun) -> str:
    """What the teacher is while the student trains: "live", "cached" or "none"."""
    config = run.recipe.distill
    if config.token_selection is None and all(term.needs() is Knowledge.TOKENS for term in config.terms):
        return "none"
    return "live" if isinstance(config.teacher, LiveTeacher) else "cached"


def teacher_flops(run: PlannedRun, draft: Shape, sequence: Sequence, source: str) -> int:
    """FLOPs of what the student is compared with: the teacher, and a reference, taken to be as large as the draft.

    Both with the rows of their heads that the draft has.
    """
    teacher = replace(run.target, head_vocab=draft.head_vocab)
    reference = 0 if run.recipe.distill.token_selection is None else forward_flops(draft, [sequence])
    if source == "live":
        return forward_flops(teacher, [sequence]) + reference
    of_states = source == "cached" and isinstance(run.recipe.distill.teacher, HiddenCache)
    return reference + (sequence[1] * head_flops(teacher.head_rows, teacher.hidden) if of_states else 0)


def evaluation_flops(run: PlannedRun, draft: Shape) -> int:
    """FLOPs of one evaluation: both models read every held-out answer; the draft alone where no teacher is asked."""
    held_out = [(run.lengths.whole, run.lengths.answer)] * run.recipe.data.num_eval_prompts
    teacher = 0 if isinstance(run.recipe.distill.teacher, NoTeacher) else forward_flops(run.target, held_out)
    return teacher + forward_flops(draft, held_out)


def num_evaluations(run: PlannedRun, sequences: int) -> int:
    """Evaluations: before the first step if wanted, those that come due, and one at the end."""
    config = run.recipe.distill
    value, unit = split_time(config.eval_interval)
    batch, seq_tokens = config.global_train_batch_size, learned_sequence(run)[0]
    epoch = run.work.answers or sequences
    per_interval = {
        "dur": value * sequences,
        "ep": value * epoch,
        "ba": value * batch,
        "sp": value,
        "tok": value / seq_tokens,
    }
    return int(config.eval_first) + max(1, ceil(sequences / per_interval[unit] - 1e-6))
