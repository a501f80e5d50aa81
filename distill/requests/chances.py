"""How likely each token of a served answer comes from a draft: exact replay, from what the target knew there.

Shape suffixes used in this file:
    A = tokens of the answer, H = width of the target's last hidden state, V = vocabulary entries
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.losses.chunked import Head
from eval.acceptance.replay import Accepts, answer_logits, replay_answer, rule_name
from eval.decoding.sampling import Sampling


@dataclass(frozen=True)
class Chances:
    """Of one answer.

    Attributes:
        accepts: By the rule that decoding takes.
        proposed_ids: What the draft proposes for each token; None where that is drawn.
    """

    accepts: Accepts
    proposed_ids: tuple[int, ...] | None

    @property
    def alpha(self) -> float:
        """Mean chance of a proposal to be kept, over all tokens."""
        return float(self.accepts.alpha.mean())


@dataclass(frozen=True)
class Asker:
    """Asks a draft about answers that are there, without dropout and without gradients.

    Attributes:
        draft: As it is at the moment.
        head: Of the target.
        vocab_size: Ids that both have.
        sampling: As the answers were written.
    """

    draft: PreTrainedModel
    head: Head
    vocab_size: int
    sampling: Sampling

    @torch.no_grad()
    def chances(self, prompt_ids: Sequence[int], answer_ids: Sequence[int], hidden_AH: Tensor) -> Chances:
        """Of the tokens of an answer.

        Args:
            prompt_ids: What was asked.
            answer_ids: At least one token.
            hidden_AH: The input of the target's head behind each.
        """
        was_training = self.draft.training
        self.draft.eval()
        draft_AV = answer_logits(self.draft, prompt_ids, answer_ids).clone()[:, : self.vocab_size]
        self.draft.train(was_training)
        if self.sampling.is_greedy:
            return certain(draft_AV.argmax(dim=-1), answer_ids)
        target_AV = self.head.logits(hidden_AH.to(self.head.weight_VH)).float()[:, : self.vocab_size]
        replay = replay_answer(
            target_AV, draft_AV.to(target_AV.device), answer_ids, sampling=self.sampling, prompt_ids=prompt_ids
        )
        return Chances(replay.rules[rule_name(self.sampling.temperature)], None)


def certain(proposed_A: Tensor, answer_ids: Sequence[int]) -> Chances:
    """Of a greedy answer: a proposal is kept where it is the answer's token, and the target would say no other.

    The target's logits are not made: they would cost more than the draft, and say the same but for near ties.
    """
    proposed_ids = tuple(proposed_A.tolist())
    equal_A = np.array([ours == own for ours, own in zip(proposed_ids, answer_ids, strict=True)], dtype=np.float64)
    return Chances(Accepts(equal_A, equal_A), proposed_ids)
