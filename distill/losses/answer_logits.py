"""A language model read at the positions that predict an answer token, and nowhere else.

Shape suffixes used in this file:
    B = rows of the batch, T = tokens per row, H = hidden width, V = vocabulary entries
    D = tokens that the decoder behind an encoder reads, its start token and the answer
    A = positions kept, of all sequences together, one row each; R = rows of the packed batch, W = slots in each
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from architectures.reading import answer_places, translated, translation
from architectures.shapes.shape import Shape
from architectures.vocabulary_head import head_ids
from distill.data.apart import refuse_attention, texts_apart
from distill.data.packing import cheapest_layout, lengths_read, packed, slots_of
from distill.flops import head_flops
from distill.losses.chunked import Head

Reading = TypeVar("Reading")


class AnswerLogits(nn.Module):
    """A language model whose output head runs on chosen positions only.

    The head of a shallow draft is about half of its work, and a prompt has no answer to learn: skipping it there halves
    the step. Positions are chosen, and the head is read, inside this module because FSDP2 gathers the embeddings and
    the head, which belong to the outermost sharded module, in that module's forward.

    Args:
        lm: Read.
        packing: Compute less padding: lay the sequences of a batch into fewer rows where that saves FLOPs. What is
            read is the same, in the same order, up to the order of floating-point sums.
        multiple: Of slots, that packed rows are wide.

    Raises:
        UserError: If packing is asked for and its attention would mix up the texts of a row.
    """

    def __init__(self, lm: PreTrainedModel, *, packing: bool = False, multiple: int = 1):
        super().__init__()
        self.lm, self.multiple = lm, multiple
        self.flops_per_token = packed_flops_per_token(lm) if packing else None

    def forward(
        self,
        input_ids_BT: Tensor,
        keep_BT: Tensor,
        read: Callable[[Tensor, Head], Reading],
        position_ids_BT: Tensor | None = None,
        prompt_len_B1: Tensor | None = None,
    ) -> Reading:
        """What read makes of hidden_AH and the head, at the positions where keep_BT is True, sequence after sequence.

        That is a loss or a metric computed in chunks (distill/losses/chunked.py), or the logits (logits_of). Under
        FSDP2 the head is gone afterwards, so what is read must not hold on to it.

        There is no attention mask: padding stands on the right, where a causal model never looks back at it from.

        Args:
            position_ids_BT: Of tokens in the text they belong to, where a row holds several texts: positions begin
                again at 0 with each, and no token attends to another text than its own. None: one text to a row.
            prompt_len_B1: Tokens of each row that are its prompt, which an encoder reads; others do not ask.
        """
        return read(self.hidden(input_ids_BT, keep_BT, position_ids_BT, prompt_len_B1), head_of(self.lm))

    def hidden(
        self,
        input_ids_BT: Tensor,
        keep_BT: Tensor,
        position_ids_BT: Tensor | None = None,
        prompt_len_B1: Tensor | None = None,
    ) -> Tensor:
        """hidden_AH as the head is given it, at the positions kept."""
        if self.lm.config.is_encoder_decoder:
            return answer_states(self.lm, input_ids_BT, keep_BT, prompt_len_B1)
        layout, width = None, keep_BT.shape[1]
        if self.flops_per_token is not None:
            cost = {"flops_per_token": self.flops_per_token, "multiple": self.multiple}
            layout = cheapest_layout(lengths_read(keep_BT), width, **cost)
        if layout is None:
            return self.last_hidden(input_ids_BT, position_ids_BT)[keep_BT]
        slots_BT = slots_of(layout, width, keep_BT.device)
        if position_ids_BT is None:
            position_ids_BT = torch.arange(width, device=keep_BT.device).expand_as(slots_BT)
        # where rows have slots left every position is 0: each slot there is a text of its own
        ids_RW, positions_RW = (packed(each_BT, slots_BT, layout) for each_BT in (input_ids_BT, position_ids_BT))
        return self.last_hidden(ids_RW, positions_RW).flatten(0, 1)[slots_BT[keep_BT]]

    def last_hidden(self, input_ids_BT: Tensor, position_ids_BT: Tensor | None) -> Tensor:
        """hidden_BTH behind the last norm."""
        apart = nullcontext() if position_ids_BT is None else texts_apart(self.lm, position_ids_BT)
        with apart:
            states = self.lm.base_model(input_ids=input_ids_BT, position_ids=position_ids_BT, use_cache=False)
        return states.last_hidden_state

    def fsdp_wrap_fn(self, module: nn.Module) -> bool:
        """Tells Composer to shard each transformer block as its own unit."""
        return isinstance(module, GradientCheckpointingLayer)


def answer_states(lm: PreTrainedModel, input_ids_BT: Tensor, keep_BT: Tensor, prompt_len_B1: Tensor | None) -> Tensor:
    """hidden_AH of an encoder-decoder model at the positions kept, which are those of its decoder.

    Its start token stands where a row has the last one of its prompt, and predicts the answer's first.

    Raises:
        ValueError: If nobody says where prompts end.
    """
    if prompt_len_B1 is None:
        raise ValueError("an encoder-decoder model must be told where prompts end: the batch holds no prompt_len.")
    width = keep_BT.shape[1]
    last = int((keep_BT * torch.arange(1, width + 1, device=keep_BT.device) - prompt_len_B1).max())
    answer_len = max(1, last + 1)
    start_id = lm.config.decoder_start_token_id
    read = translation(input_ids_BT, prompt_len_B1, start_id=start_id, answer_len=answer_len)
    places_BD = answer_places(prompt_len_B1, answer_len)
    kept_BD = keep_BT.gather(1, places_BD.clamp(max=width - 1)) & (places_BD < width)
    return translated(lm, read)[kept_BD]


def packed_flops_per_token(lm: PreTrainedModel) -> Callable[[int], int]:
    """FLOPs of a model's layers for one token that attends to so many.

    Raises:
        UserError: If its attention would mix up the texts of a row.
    """
    where = str(lm.config.name_or_path)
    refuse_attention(str(lm.config._attn_implementation), where=where)  # noqa: SLF001  # it has no other name
    shape = Shape.from_config(lm.config.to_dict(), where=where)
    head = head_flops(shape.head_rows, shape.hidden)
    return lambda context: shape.flops_per_token(context) - head


def head_of(lm: PreTrainedModel) -> Head:
    """The output head of a language model, all of its rows."""
    module = lm.get_output_embeddings()
    assert isinstance(module, nn.Linear), "a language model has a linear output head"
    cap = getattr(lm.config, "final_logit_softcapping", None)  # of Gemma
    divisor = getattr(lm.config, "logits_scaling", 1.0)  # of Granite
    return Head(module.weight, module.bias, cap, vocab_size=len(module.weight), ids_V=head_ids(lm), divisor=divisor)


def vocab_size_of(lm: PreTrainedModel) -> int:
    """How many ids a model knows: rows of its head, or of its embedding where its head outputs some of them alone."""
    head = head_of(lm)
    return head.vocab_size if head.ids_V is None else lm.config.get_text_config(decoder=True).vocab_size


def logits_of(hidden_AH: Tensor, head: Head) -> Tensor:
    """Logits_AV, for a model that is to be read whole."""
    return head.logits(hidden_AH)
