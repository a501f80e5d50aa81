"""A request is answered by speculative decoding, and what the target knew at each token of the answer is kept.

Shape suffixes used in this file:
    A = tokens of the answer, H = width of the target's last hidden state, V = vocabulary entries
"""

import time
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.losses.answer_logits import head_of
from distill.requests.chances import Asker
from distill.requests.served import Served
from eval.decoding.batch import Emitted
from eval.decoding.hidden_states import RoundStates
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import decode_steps
from eval.decoding.texts import Decoded, Limits, Seeds, Speculation, row_seed
from eval.decoding.wanted import Wanted
from eval.models.loading import shared_vocab_size
from eval.records.request import RequestRecord


@dataclass(frozen=True)
class Asked:
    """A request as token ids.

    Attributes:
        request: Its place in the stream.
        source: Whose curve it belongs to.
        prompt_ids: What the target continues.
        max_new_tokens: Of its answer.
    """

    request: int
    source: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int


@dataclass
class Answer:
    """An answer in the making: what each round added, proposed and kept, and what stood behind its tokens."""

    token_ids: list[int] = field(default_factory=list)
    mistakes: list[int] = field(default_factory=list)
    proposals: list[tuple[int, ...]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def add(self, step: Emitted, hidden_AH: Tensor) -> None:
        """What one round added."""
        self.token_ids += step.token_ids
        proposals = step.token_ids[: step.accepted]
        if step.rejected is not None:
            self.mistakes.append(len(self.token_ids) - 1)
            proposals = (*proposals, step.rejected)
        self.proposals.append(proposals)
        self.kept.append(step.accepted)
        self.states.append(hidden_AH)


@dataclass
class Server:
    """Answers one request after another with a draft that may be another each time.

    Attributes:
        target: Decides every token.
        draft: Proposes.
        speculation: How it is used.
        sampling: How tokens are chosen.
        stop_ids: Tokens that end an answer.
        seeds: Of random numbers; a request's depend on its place in the stream as well.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    speculation: Speculation
    sampling: Sampling
    stop_ids: frozenset[int]
    seeds: Seeds
    states: RoundStates = field(init=False)
    asker: Asker = field(init=False)

    def __post_init__(self) -> None:
        self.states = RoundStates(self.target)
        vocab_size = shared_vocab_size(self.target, self.draft)
        self.asker = Asker(self.draft, head_of(self.target), vocab_size, self.sampling)

    def serve(self, asked: Asked, *, updates: int, since_s: float) -> tuple[Served, RequestRecord]:
        """The answer of a request, and how the draft did.

        Args:
            asked: The request.
            updates: That the draft has had.
            since_s: When the request came, by time.monotonic().
        """
        begin_s = time.monotonic()
        answer, decoded = self.answer(asked)
        end_s = time.monotonic()
        served = Served(
            request=asked.request,
            source=asked.source,
            prompt_ids=asked.prompt_ids,
            answer_ids=tuple(answer.token_ids),
            mistakes=tuple(answer.mistakes),
            hidden_AH=torch.cat(answer.states),
            seen_by=updates,
        )
        record = RequestRecord(
            request=asked.request,
            source=asked.source,
            updates=updates,
            alpha=self.asker.chances(served.prompt_ids, served.answer_ids, served.hidden_AH).alpha,
            tau=len(served.answer_ids) / len(decoded.rounds),
            tokens=len(served.answer_ids),
            rounds=len(decoded.rounds),
            proposed=sum(each.proposed for each in decoded.rounds),
            accepted=sum(each.accepted for each in decoded.rounds),
            seconds=end_s - since_s,
            wait_s=begin_s - since_s,
            answer_ids=served.answer_ids,
            proposals=tuple(answer.proposals),
            kept=tuple(answer.kept),
        )
        return served, record

    def answer(self, asked: Asked) -> tuple[Answer, Decoded]:
        """Decode, and keep what stood behind each token."""
        wanted = Wanted(
            [asked.prompt_ids], Limits(asked.max_new_tokens, self.stop_ids), self.sampling, self.speculation
        )
        answer, decoded = Answer(), None
        models, seeds = [self.target, self.draft], [row_seed(asked.request)]
        for step in decode_steps(models, wanted, seeds=self.seeds, row_seeds=seeds):
            if isinstance(step, Emitted):
                answer.add(step, self.states.of(step))
            else:
                decoded = step[1]
        return answer, cast("Decoded", decoded)
