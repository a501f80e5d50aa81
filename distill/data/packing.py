"""Sequences of different lengths laid into fewer, wider rows, so that a forward pass computes less padding.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, padded; R = rows, W = slots per row
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where sequences lie in rows.

    Attributes:
        lengths: Tokens of each sequence.
        rows: Of each sequence.
        starts: The slot of each sequence's first token in its row.
        num_rows: R.
        width: W, the tokens of the fullest row, and slots up to a multiple.
    """

    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    starts: tuple[int, ...]
    num_rows: int
    width: int


def balanced_layout(lengths: Sequence[int], num_rows: int, multiple: int = 1) -> Layout:
    """The longest sequence first, each at the end of the row that holds the fewest tokens; among equals, the first.

    Source: Graham 1969, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on Applied Mathematics 17(2): the
    fullest row is at most 4/3 of the least possible.

    Args:
        lengths: Tokens of each sequence, at least one sequence.
        num_rows: From 1 to the number of sequences.
        multiple: Of slots, that the rows are wide.
    """
    filled = [(0, row) for row in range(num_rows)]  # a heap from the start
    positions = [(0, 0)] * len(lengths)
    for sequence in sorted(range(len(lengths)), key=lambda sequence: -lengths[sequence]):
        start, row = heapq.heappop(filled)
        positions[sequence] = row, start
        heapq.heappush(filled, (start + lengths[sequence], row))
    rows, starts = zip(*positions, strict=True)
    width = -(-max(tokens for tokens, _ in filled) // multiple) * multiple
    return Layout(tuple(lengths), rows, starts, num_rows, width)


def cheapest_layout(
    lengths: Sequence[int], padded_width: int, *, flops_per_token: Callable[[int], int], multiple: int = 1
) -> Layout | None:
    """The balanced layout of the fewest FLOPs; None where padding every sequence to padded_width takes no more.

    A model whose rows hold one text each needs no mask, and half of its attention is never computed. A row of several
    texts has a mask, and each slot of it is compared with all others of the row: that is why one long row is seldom
    the cheapest.

    Args:
        lengths: Tokens of each sequence.
        padded_width: Slots of a row that holds one sequence.
        flops_per_token: FLOPs for one token that is compared with so many.
        multiple: As in balanced_layout.
    """
    best, least = None, len(lengths) * padded_width * flops_per_token((padded_width + 1) // 2)
    for num_rows in range(1, len(lengths) + 1):
        layout = balanced_layout(lengths, num_rows, multiple)
        flops = num_rows * layout.width * flops_per_token(layout.width)
        if flops < least:
            best, least = layout, flops
    return best


def lengths_read(keep_BT: Tensor) -> list[int]:
    """Tokens of each sequence that can matter: up to its last kept position, since none sees what follows it; >= 1."""
    positions_T = torch.arange(1, keep_BT.shape[1] + 1, device=keep_BT.device)
    return (keep_BT * positions_T).amax(dim=1).clamp(min=1).tolist()


def slots_of(layout: Layout, padded_width: int, device: torch.device) -> Tensor:
    """slots_BT: the index of each token in the flattened rows; -1 for what is in none."""
    starts = [row * layout.width + start for row, start in zip(layout.rows, layout.starts, strict=True)]
    starts_B1, lengths_B1 = (torch.tensor(each, device=device)[:, None] for each in (starts, layout.lengths))
    positions_T = torch.arange(padded_width, device=device)
    return torch.where(positions_T < lengths_B1, starts_B1 + positions_T, -1)


def packed(values_BT: Tensor, slots_BT: Tensor, layout: Layout) -> Tensor:
    """values_RW: the sequences' values in their rows, and zeros in slots that are left."""
    placed_BT = slots_BT >= 0
    values_S = values_BT.new_zeros(layout.num_rows * layout.width)
    values_S[slots_BT[placed_BT]] = values_BT[placed_BT]
    return values_S.view(layout.num_rows, layout.width)
