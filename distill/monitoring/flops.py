"""FLOPs of a training step, and how many this device can do: what model FLOP utilisation is made of."""

import time
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from architectures.shapes import Shape

BACKWARD = 2  # times the forward pass: gradients of inputs and of weights
PROBE_SIZE, PROBE_RUNS = 1024, 5


def forward_flops(shape: Shape, answers: Iterable[tuple[int, int]]) -> int:
    """FLOPs of a forward pass over sequences whose output head runs at some positions only.

    Args:
        shape: Of the model.
        answers: Tokens of each sequence, and positions of it that the head runs at.
    """
    head = head_flops(shape.vocab, shape.hidden)
    return sum(
        num_tokens * (shape.flops_per_token((num_tokens + 1) // 2) - head) + num_kept * head
        for num_tokens, num_kept in answers
    )


def head_flops(vocab: int, hidden: int) -> int:
    """FLOPs of an output head at one position."""
    return 2 * vocab * hidden


def training_flops(student: Shape, answers: Iterable[tuple[int, int]], *, teacher: int) -> int:
    """FLOPs a step cannot do without: the student's forward and backward pass, and those of its teacher.

    What is computed twice to save memory is not counted, so that doing so does not look like more use of the device.
    """
    return (1 + BACKWARD) * forward_flops(student, answers) + teacher


def answers_in(batch: Mapping[str, Tensor]) -> list[tuple[int, int]]:
    """Tokens of each sequence of a batch, and positions of it that the head runs at."""
    return list(zip(batch["attention_mask"].sum(dim=1).tolist(), batch["keep"].sum(dim=1).tolist(), strict=True))


def measured_cpu_flops(dtype: torch.dtype) -> float:
    """FLOPs per second of a large matrix product on this process's threads: the best of a few runs."""
    one, other = (torch.randn(PROBE_SIZE, PROBE_SIZE).to(dtype) for _ in range(2))
    time_product(one, other)  # the first sets up threads and buffers
    best_s = min(time_product(one, other) for _ in range(PROBE_RUNS))
    return 2 * PROBE_SIZE**3 / best_s


def time_product(one: torch.Tensor, other: torch.Tensor) -> float:
    """Seconds of one product."""
    start_s = time.perf_counter()
    torch.matmul(one, other)
    return time.perf_counter() - start_s
