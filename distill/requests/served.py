"""One answered request as an update learns from it, and its file.

Shape suffixes used in this file:
    A = tokens of the answer, H = width of the target's last hidden state
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from architectures.errors import UserError
from architectures.files.atomic import write_bytes
from distill.data.batches import Example

Positions = Literal["rejected", "all"]


@dataclass(frozen=True)
class Served:
    """An answer of the target, and where its draft was wrong.

    Attributes:
        request: Its place in the stream.
        source: Whose curve it belongs to.
        prompt_ids: What was asked.
        answer_ids: What the target wrote.
        mistakes: Places in the answer of tokens that stand where another one was proposed. The token after a round
            that was kept whole is no mistake: nothing was proposed there.
        hidden_AH: The input of the target's head behind each token of the answer.
        seen_by: Updates that the draft which served it had had.
    """

    request: int
    source: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    mistakes: tuple[int, ...]
    hidden_AH: Tensor
    seen_by: int

    def places(self, positions: Positions) -> Sequence[int]:
        """Places in the answer that are learned."""
        return self.mistakes if positions == "rejected" else range(len(self.answer_ids))

    def example(self, positions: Positions) -> Example:
        """As a sequence to train on: token i of the answer is predicted where the token before it stands."""
        *input_ids, last_id = (*self.prompt_ids, *self.answer_ids)
        before = len(self.prompt_ids) - 1
        spans = tuple((before + place, before + place + 1) for place in self.places(positions))
        return Example(tuple(input_ids), last_id, spans, begins=len(self.prompt_ids))

    def states(self, positions: Positions) -> Tensor:
        """What stands behind each of these tokens, a row for each position that is learned."""
        return self.hidden_AH[list(self.places(positions))]


def write_served(served: Served, path: Path) -> None:
    """Write it to a file, whole or not at all."""
    tensors = {name: torch.tensor(getattr(served, name), dtype=torch.int64) for name in ("prompt_ids", "answer_ids")}
    tensors["mistakes"] = torch.tensor(served.mistakes, dtype=torch.int64)
    told = {"request": str(served.request), "source": served.source, "seen_by": str(served.seen_by)}
    write_bytes(save({**tensors, "hidden": served.hidden_AH.contiguous()}, metadata=told), path)


def read_served(path: Path) -> Served:
    """Read it back.

    Raises:
        UserError: If the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            told = file.metadata() or {}
            ids = {name: tuple(file.get_tensor(name).tolist()) for name in ("prompt_ids", "answer_ids", "mistakes")}
            hidden_AH, request, seen_by = file.get_tensor("hidden"), int(told["request"]), int(told["seen_by"])
            return Served(request=request, source=told["source"], seen_by=seen_by, hidden_AH=hidden_AH, **ids)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UserError(
            f"{path}: damaged ({error}). Delete the run's folder `online`, and train again from its last checkpoint."
        ) from error
