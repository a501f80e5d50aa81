"""The last hidden states that a model chose its tokens from, kept while it decodes.

A step of plain decoding makes one for each unfinished text: the input of the output head. Whoever wants them later and
has not kept them reads the finished text once more.

Shape suffixes used in this file:
    B = unfinished texts, T = tokens fed to each, H = width of the last hidden state; A = tokens of a text
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from eval.decoding.batch import Emitted
from eval.decoding.texts import Decoded


class HiddenStates:
    """What goes into the output head of a model, on the processor and in the model's number type, token by token.

    Args:
        model: Decodes plainly; from now on it notes what its output head is given.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        assert isinstance(head, nn.Linear), "a causal language model has a linear output head"
        head.register_forward_pre_hook(self.note)
        self.rows: Iterator[Tensor] = iter(())
        self.texts: dict[int, list[Tensor]] = {}

    def note(self, _head: nn.Module, inputs: tuple[Tensor]) -> None:
        """Called before each product with the head; no token follows what is noted while prompts are read."""
        hidden_BTH = inputs[0]
        self.rows = iter(hidden_BTH[:, -1].cpu())

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
                self.texts.setdefault(names[step.index], []).append(next(self.rows))
            yield step

    def take(self, name: int) -> Tensor:
        """hidden_AH of a text that has ended, which is let go of here."""
        return torch.stack(self.texts.pop(name))
