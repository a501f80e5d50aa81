"""A causal language model read at the positions that predict an answer token, and nowhere else.

Shape suffixes used in this file:
    B = rows of the batch, T = tokens per row, H = hidden width, V = vocabulary entries
    A = positions kept, of all sequences together, one row each
"""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from distill.chunked import Head

Reading = TypeVar("Reading")


class AnswerLogits(nn.Module):
    """A causal language model whose output head runs on chosen positions only.

    The head of a shallow draft is about half of its work, and a prompt has no answer to learn: skipping it there halves
    the step. Positions are chosen, and the head is read, inside this module because FSDP2 gathers the embeddings and
    the head, which belong to the outermost sharded module, in that module's forward.
    """

    def __init__(self, lm: PreTrainedModel):
        super().__init__()
        self.lm = lm

    def forward(
        self,
        input_ids_BT: Tensor,
        keep_BT: Tensor,
        read: Callable[[Tensor, Head], Reading],
        position_ids_BT: Tensor | None = None,
    ) -> Reading:
        """What read makes of hidden_AH and the head, at the positions where keep_BT is True, sequence after sequence.

        That is a loss or a metric computed in chunks (distill/chunked.py), or the logits (logits_of). Under FSDP2 the
        head is gone afterwards, so what is read must not hold on to it.

        There is no attention mask: padding stands on the right, where a causal model never looks back at it from.

        Args:
            position_ids_BT: Of tokens in the text they belong to, where a row holds several texts: positions begin
                again at 0 with each, and no token attends to another text than its own. None: one text to a row.
        """
        positions = {} if position_ids_BT is None else {"position_ids": position_ids_BT}  # BLOOM knows no such argument
        hidden_BTH = self.lm.base_model(input_ids=input_ids_BT, use_cache=False, **positions).last_hidden_state
        return read(hidden_BTH[keep_BT], head_of(self.lm))

    def fsdp_wrap_fn(self, module: nn.Module) -> bool:
        """Tells Composer to shard each transformer block as its own unit."""
        return isinstance(module, GradientCheckpointingLayer)


def head_of(lm: PreTrainedModel) -> Head:
    """The output head of a causal language model, all of its rows."""
    module = lm.get_output_embeddings()
    assert isinstance(module, nn.Linear), "a causal language model has a linear output head"
    cap = getattr(lm.config, "final_logit_softcapping", None)  # of Gemma
    return Head(module.weight, module.bias, cap, vocab_size=len(module.weight))


def logits_of(hidden_AH: Tensor, head: Head) -> Tensor:
    """Logits_AV, for a model that is to be read whole."""
    return head.logits(hidden_AH)
