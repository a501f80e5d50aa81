"""What step times are held against: fewer threads, what one thread can do, and what other programs did meanwhile."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.progress.processor import ProcessorTimes, contention, processor_times
from eval.latency.floor import shape_of, step_bytes
from eval.latency.machine import seconds, torch_threads
from eval.latency.steps import Setting
from eval.latency.threads import step_by_threads, thread_counts
from eval.models.identity import decoding_layers
from eval.records.evidence import ModelStep, StepEvidence
from eval.records.grid import TARGET

READ_BYTES, SQUARE, PROBES = 2**26, 256, 4  # of what one thread reads and multiplies; the fastest of so many runs


@dataclass(frozen=True)
class Started:
    """The machine when timing began."""

    times: ProcessorTimes = field(default_factory=processor_times)
    load_average: float = field(default_factory=lambda: os.getloadavg()[0])


@torch.inference_mode()
def step_evidence(
    models: Mapping[str, PreTrainedModel], medians_ms: Mapping[str, float], setting: Setting, started: Started
) -> StepEvidence:
    """What to hold step times against that were measured since then.

    Args:
        models: TARGET and the drafts, by name.
        medians_ms: Of one token by each of them.
        setting: Where these steps were taken.
        started: Of the moment before.
    """
    meanwhile, threads = contention(started.times, processor_times()), torch.get_num_threads()
    on_processor = models[TARGET].device.type == "cpu"
    counts = thread_counts(threads) if on_processor else []
    return StepEvidence(
        threads=threads,
        by_threads=step_by_threads(models[TARGET], setting, counts) if len(counts) > 1 else (),
        chosen_from=(),
        steps=model_steps(models, medians_ms, setting),
        refused=meanwhile.refused,
        others=meanwhile.others,
        load_average=started.load_average,
    )


def model_steps(
    models: Mapping[str, PreTrainedModel], medians_ms: Mapping[str, float], setting: Setting
) -> tuple[ModelStep, ...]:
    """Every model with what its step takes on a single thread at least; of a GPU nothing of that is known."""
    one_thread: dict[torch.dtype, tuple[float, float]] = {}
    found = []
    for name, model in models.items():
        least_ms = None
        if model.device.type == "cpu":
            if model.dtype not in one_thread:
                one_thread[model.dtype] = one_thread_rates(model.dtype)
            least_ms = least_on_one_thread(model, setting, *one_thread[model.dtype])
        found.append(ModelStep(model=name, layers=decoding_layers(model), ms=medians_ms[name], least_ms=least_ms))
    return tuple(found)


def least_on_one_thread(
    model: PreTrainedModel, setting: Setting, bytes_per_s: float, flops_per_s: float
) -> float | None:
    """Milliseconds of a step's bytes or FLOPs, whichever take longer; None where its shape is not known."""
    shape, context = shape_of(model), len(setting.context_ids)
    num_bytes = step_bytes(model, batch=setting.batch, context=context)
    if shape is None or num_bytes is None:
        return None
    flops = setting.batch * shape.flops_per_token(context)
    return 1000 * max(num_bytes / bytes_per_s, flops / flops_per_s)


def one_thread_rates(dtype: torch.dtype) -> tuple[float, float]:
    """Bytes read and FLOPs done a second by a single thread, which waits for no other."""
    device = torch.device("cpu")
    with torch_threads(1):
        read: Tensor = torch.ones(READ_BYTES // 4)
        read_s = min(seconds(read.sum, device) for _ in range(PROBES))
        square = torch.ones(SQUARE, SQUARE, dtype=dtype)
        product_s = min(seconds(lambda: square @ square, device) for _ in range(PROBES))
    return read.nbytes / read_s, 2 * SQUARE**3 / product_s
