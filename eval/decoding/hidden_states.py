"""The last hidden states that a model chose its tokens from, kept while it decodes.

A step of plain decoding makes one for each unfinished text: the input of the output head. Whoever wants them later and
has not kept them reads the finished text once more.

Shape suffixes used in this file:
    B = rows of a step, T = tokens fed to each, H = width of the last hidden state; A = tokens of a text
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eval.decoding.batch import Emitted
from eval.decoding.texts import Decoded
from eval.steps.head_inputs import listen


class RoundStates:
    """What goes into the output head of a target while it verifies a draft's proposals for one text.

    Args:
        model: Decodes one text at a time with a draft; from now on it notes what its output head is given.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        listen(model, self.note)
        self.noted_TH = torch.empty(0, 0)

    def note(self, hidden_BTH: Tensor) -> None:
        """Called before each product with the head."""
        self.noted_TH = hidden_BTH[0].clone()

    def of(self, emitted: Emitted) -> Tensor:
        """hidden_AH on the processor, one row for each token that the round before this call added to the text."""
        return self.noted_TH[: len(emitted.token_ids)].cpu()


class HiddenStates:
    """What goes into the output head of a model, on the processor and in the model's number type, token by token.

    Args:
        model: Decodes plainly; from now on it notes what its output head is given.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        listen(model, self.note)
        self.noted_BH = torch.empty(0, 0)
        self.taken = 0  # texts that have had theirs of what is noted
        self.texts: dict[int, list[Tensor]] = {}

    def note(self, hidden_BTH: Tensor) -> None:
        """Called before each product with the head; no token follows what is noted while prompts are read."""
        self.noted_BH, self.taken = hidden_BTH[:, -1].clone(), 0

    def along(
        self, steps: Iterator[Emitted | tuple[int, Decoded]], names: Sequence[int]
    ) -> Iterator[Emitted | tuple[int, Decoded]]:
        """The steps as they are; the state behind each of their tokens is kept under the name of its text.

        Args:
            steps: Of plain decoding by the model: all that one step adds comes before the next one is made, in the
                order of the step's rows.
            names: Of the texts, by their indices.
        """
        for step in steps:
            if isinstance(step, Emitted):
                self.texts.setdefault(names[step.index], []).append(self.next_state(step.index, len(names)))
            yield step

    def next_state(self, index: int, num_texts: int) -> Tensor:
        """hidden_H of the text whose turn it is: by its index where texts that have ended keep their rows."""
        if self.taken == 0:
            self.noted_BH = self.noted_BH.cpu()  # once a step, for all its rows
        row = index if len(self.noted_BH) == num_texts else self.taken
        self.taken += 1
        return self.noted_BH[row]

    def take(self, name: int) -> Tensor:
        """hidden_AH of a text that has ended, which is let go of here."""
        return torch.stack(self.texts.pop(name))
