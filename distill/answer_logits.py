"""Logits of a causal language model at the positions that predict an answer token, and nowhere else.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, H = hidden width, V = vocabulary entries
    A = positions kept, of all sequences together, one row each
"""

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


class AnswerLogits(nn.Module):
    """A causal language model whose output head runs on chosen positions only.

    The head of a shallow draft is about half of its work, and a prompt has no answer to learn: skipping it there halves
    the step. The choice is made inside this module because FSDP2 gathers the embeddings and the head, which belong to
    the outermost sharded module, in that module's forward.
    """

    def __init__(self, lm: PreTrainedModel):
        super().__init__()
        self.lm = lm

    def forward(self, input_ids_BT: Tensor, keep_BT: Tensor) -> Tensor:
        """Logits_AV at the positions where keep_BT is True, sequence after sequence.

        There is no attention mask: padding stands on the right, where a causal model never looks back at it from.
        """
        hidden_BTH = self.lm.base_model(input_ids=input_ids_BT, use_cache=False).last_hidden_state
        return head_logits(self.lm, hidden_BTH[keep_BT])

    def fsdp_wrap_fn(self, module: nn.Module) -> bool:
        """Tells Composer to shard each transformer block as its own unit."""
        return isinstance(module, GradientCheckpointingLayer)


def head_logits(lm: PreTrainedModel, hidden_AH: Tensor) -> Tensor:
    """Logits_AV of a causal language model, from what its last norm put out."""
    head = lm.get_output_embeddings()
    assert head is not None, "a causal language model has an output head"
    logits_AV = head(hidden_AH)
    cap = getattr(lm.config, "final_logit_softcapping", None)  # of Gemma
    return logits_AV if cap is None else cap * (logits_AV / cap).tanh()
