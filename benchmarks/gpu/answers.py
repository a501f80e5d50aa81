"""Answers a second: our decoder, by eager and on a GPU by captured steps, beside transformers' `generate`, in turns.

Both read the same prompts and write the same number of tokens, greedily; nothing ends a text early. The prompts are of
random tokens, since time does not depend on which they are, and of lengths that differ by up to an eighth, as those do
that are sorted by length and answered together; transformers reads them filled on the left. What is written down is
what was measured, the reading of the prompts included; a step is what remains of the time without it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from architectures.shapes.shape import Shape
from benchmarks.gpu.attempt import attempt_rows
from benchmarks.gpu.machine import bandwidth
from benchmarks.gpu.models import LLAMA_7B, random_model
from benchmarks.gpu.stage import Row, Setting, Size, SkippedError, lack_of_memory, lack_of_time, number_type
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits
from eval.latency.floor import dtype_name, shape_of, step_bytes
from eval.models.clock import clock_s
from eval.models.loading import load_model
from eval.steps.answer_steps import answer_opener
from eval.steps.sequencer import Opener

TARGET = "target"  # the model of the setting, SmolLM2-135M
OURS, CAPTURED, TRANSFORMERS = "ours", "captured", "transformers"  # the first by eager steps
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        model: A name of MODELS, or TARGET.
        batch: Prompts answered together.
        prompt_tokens: Of the longest prompt.
        new_tokens: Of each answer.
        seconds: About what it takes, of both ways and all repetitions; of a cell that is begun.
    """

    model: str
    batch: int
    prompt_tokens: int
    new_tokens: int
    seconds: float


@dataclass(frozen=True)
class Sizes:
    """What a size measures: cells in order of worth, and how often."""

    cells: Sequence[Cell]
    repeats: int


MODELS: dict[str, Shape] = {"llama-7b": LLAMA_7B}
SIZES: dict[Size, Sizes] = {
    "full": Sizes(
        (
            Cell("llama-7b", 48, 512, 64, 18),
            Cell(TARGET, 48, 512, 64, 9),
            Cell("llama-7b", 8, 512, 64, 8),
            Cell(TARGET, 8, 512, 64, 8),
        ),
        repeats=2,
    ),
    "laptop": Sizes((Cell(TARGET, 48, 32, 16, 40), Cell(TARGET, 8, 32, 16, 15)), repeats=3),
    "tiny": Sizes((Cell(TARGET, 4, 12, 6, 2), Cell(TARGET, 1, 12, 6, 2)), repeats=2),
}


@dataclass(frozen=True)
class Taken:
    """What one way took for one batch.

    Attributes:
        token_ids: Written, row by row.
        whole_s: Seconds of everything.
        step_s: Seconds a step behind the prompts.
    """

    token_ids: Sequence[Sequence[int]]
    whole_s: float
    step_s: float


Way = Callable[[int], Taken]  # writes so many tokens a row


def rows(setting: Setting) -> Iterator[Row]:
    """Every cell, both of ours and transformers'; a model is made once."""
    sizes = SIZES[setting.size]
    bytes_per_s = bandwidth(setting)
    held: dict[str, PreTrainedModel] = {}
    for cell in sizes.cells:
        yield from attempt_rows(named(cell), lambda cell=cell: rows_of(cell, held, setting, sizes.repeats, bytes_per_s))


def rows_of(
    cell: Cell, held: dict[str, PreTrainedModel], setting: Setting, repeats: int, bytes_per_s: float
) -> Iterator[Row]:
    """The rows of a cell, or one that says why it was left out."""
    problem = lack_of_time(setting, cell.seconds, f"{cell.model} at batch {cell.batch}")
    if problem is None and cell.model not in held:
        problem = lack_of_weights(cell, setting)
        if problem is None:
            held[cell.model] = model_of(cell.model, setting)
    if problem is None:
        problem = lack_of_cache(cell, held[cell.model], setting)
    if problem is not None:
        yield named(cell) | {"skipped": problem}
        return
    model = held[cell.model]
    for how, taken in measured(cell, model, repeats).items():
        yield named(cell) | {"how": how, **figures(cell, model, taken, bytes_per_s)}


def named(cell: Cell) -> Row:
    return {
        "model": cell.model,
        "batch": cell.batch,
        "prompt_tokens": cell.prompt_tokens,
        "new_tokens": cell.new_tokens,
    }


def figures(cell: Cell, model: PreTrainedModel, taken: Sequence[Taken], bytes_per_s: float) -> Row:
    """What was measured of one way, medians over the repetitions; and the least a step can take beside its own time."""
    whole_s, step_s = median(turn.whole_s for turn in taken), median(turn.step_s for turn in taken)
    context = sum(lengths_of(cell)) // cell.batch + cell.new_tokens // 2
    read = step_bytes(model, batch=cell.batch, context=context)
    floor_s = None if read is None else read / bytes_per_s
    return {
        "tokens_per_s": cell.batch * cell.new_tokens / whole_s,
        "answers_per_s": cell.batch / whole_s,
        "seconds": whole_s,
        "seconds_each": [turn.whole_s for turn in taken],
        "step_ms": 1000 * step_s,
        "floor_ms": None if floor_s is None else 1000 * floor_s,
        "floor_share": None if floor_s is None else floor_s / step_s,
        "dtype": dtype_name(model),
    }


def measured(cell: Cell, model: PreTrainedModel, repeats: int) -> dict[str, list[Taken]]:
    """What each way took in each repetition, in turns that begin with one and with the other."""
    prompts = random_prompts(cell, model)
    ways: dict[str, Way] = {
        OURS: partial(ours, model, prompts, answer_opener(model, "eager")),
        TRANSFORMERS: partial(generated, model, prompts),
    }
    if model.device.type == "cuda":  # captured by the warm-up, whose cache has as many slots
        ways[CAPTURED] = partial(ours, model, prompts, answer_opener(model, "captured"))
    for run in ways.values():
        run(WARM_UP_TOKENS)
    taken: dict[str, list[Taken]] = {how: [] for how in ways}
    for repeat in range(repeats):
        for how in list(ways)[:: 1 if repeat % 2 == 0 else -1]:
            taken[how].append(ways[how](cell.new_tokens))
    return taken


def lengths_of(cell: Cell) -> list[int]:
    """Tokens of every prompt, from seven eighths of the longest on."""
    spread = cell.prompt_tokens // 8
    return [cell.prompt_tokens - spread * row // cell.batch for row in reversed(range(cell.batch))]


def random_prompts(cell: Cell, model: PreTrainedModel) -> list[list[int]]:
    """Prompts of these lengths, the same in every call, without the id that fills."""
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    generator = torch.Generator().manual_seed(17)
    return [torch.randint(1, vocab_size, (length,), generator=generator).tolist() for length in lengths_of(cell)]


def ours(model: PreTrainedModel, prompts: Sequence[Sequence[int]], opener: Opener, new_tokens: int) -> Taken:
    """The loop that eval.decoding.answering.Answerer answers a batch with."""
    start_s = clock_s(model.device)
    decoded = plain_decode(model, prompts, limits=Limits(new_tokens), opener=opener)
    whole_s = clock_s(model.device) - start_s
    return Taken([text.token_ids for text in decoded], whole_s, decoded[0].decode_s / new_tokens)


@torch.inference_mode()
def generated(model: PreTrainedModel, prompts: Sequence[Sequence[int]], new_tokens: int) -> Taken:
    """Transformers' own loop: its first token comes with the reading of the prompts, measured by itself."""
    read_s, _ = timed_generate(model, prompts, 1)
    whole_s, ids = timed_generate(model, prompts, new_tokens)
    return Taken(ids, whole_s, (whole_s - read_s) / max(1, new_tokens - 1))


def timed_generate(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], new_tokens: int
) -> tuple[float, list[list[int]]]:
    """Seconds of `generate`, the making of its input included as in ours, and what it wrote."""
    config, width = model.generation_config, max(map(len, prompts))
    assert config is not None
    config.eos_token_id = None  # nothing ends a text
    generate: Any = model.generate  # pyright takes it for a tensor
    start_s = clock_s(model.device)
    ids_BT = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    output_BT = generate(ids_BT, attention_mask=mask_BT, do_sample=False, max_new_tokens=new_tokens, pad_token_id=0)
    ids = output_BT[:, width:].tolist()
    return clock_s(model.device) - start_s, ids


def model_of(name: str, setting: Setting) -> PreTrainedModel:
    """The model of a cell, on the device."""
    dtype = number_type(setting.device)
    if name != TARGET:
        return random_model(MODELS[name], setting.device, dtype)
    if not (setting.target / "config.json").is_file():
        raise SkippedError(f"{setting.target}: no target there")
    return load_model(setting.target, dtype=str(dtype).removeprefix("torch."), device=str(setting.device))


def lack_of_weights(cell: Cell, setting: Setting) -> str | None:
    """Why a model's weights do not fit; None where they do, or are read from the disk."""
    if cell.model == TARGET:
        return None
    dtype = str(number_type(setting.device)).removeprefix("torch.")
    return lack_of_memory(setting, MODELS[cell.model].weight_bytes(dtype), cell.model)


def lack_of_cache(cell: Cell, model: PreTrainedModel, setting: Setting) -> str | None:
    """Why a batch does not fit beside the weights; None where it does.

    It takes its keys and values twice, for a cache is copied when it grows, and while the prompts are read what the
    widest layer puts out and one layer's mask and scores.
    """
    shape = shape_of(model)
    assert shape is not None  # those of MODELS are, and so is the target
    tokens = cell.batch * (cell.prompt_tokens + cell.new_tokens)
    caches = 2 * tokens * shape.kv_bytes_per_token(dtype_name(model))
    widest = 4 * cell.batch * cell.prompt_tokens * (shape.intermediate + 4 * shape.hidden) * model.dtype.itemsize
    scores = 4 * cell.batch * cell.prompt_tokens**2
    return lack_of_memory(setting, caches + widest + scores, f"{cell.model} at batch {cell.batch}")
