"""Requests whose responses are recorded: what the draft of the moment would have done with each, by exact replay.

A lossless draft changes no token of a response, so that drafts can be compared on responses that were written once. Of
greedy responses the replay is what decoding does. Of sampled ones it draws whether each token would have been accepted.

Shape suffixes used in this file:
    A = tokens of the response, H = width of the target's last hidden state, V = vocabulary entries
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from architectures.errors import UserError
from distill.data.batches import AnswerDataset
from distill.losses.chunked import Head
from distill.online.served import Journal, RequestRecord, Served
from distill.run.run import Run
from distill.teacher_cache import TeacherCache
from eval.acceptance.replay import Accepts, answer_logits, replay_answer, rule_name
from eval.answers.traces import Trace, read_traces
from eval.decoding.sampling import Sampling
from eval.stream import open_stream


@dataclass(frozen=True)
class Recorded:
    """A request, its response, and the target's hidden states behind the response's tokens."""

    request: int
    source: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    hidden_AH: Tensor


@dataclass(frozen=True)
class RecordedStream(Sequence[Recorded]):
    """Requests in the order of the stream; hidden states are read when a request is asked for.

    Attributes:
        traces: The run's responses, in the order of the cache.
        cache: The target's hidden states at each of their tokens.
        order: The source and the place among the traces of each request.
        max_seq_len: Tokens of prompt and response at most.
    """

    traces: Sequence[Trace]
    cache: TeacherCache
    order: Sequence[tuple[str, int]]
    max_seq_len: int

    def __getitem__(self, request: int) -> Recorded:  # pyright: ignore[reportIncompatibleMethodOverride]  # no slices
        source, index = self.order[request]
        trace = self.traces[index]
        answer_ids = trace.answer_ids[: self.max_seq_len - len(trace.prompt_ids)]
        return Recorded(request, source, trace.prompt_ids, answer_ids, self.cache.rows(index)["hidden"])

    def __len__(self) -> int:
        return len(self.order)


def recorded_stream(run: Run) -> RecordedStream:
    """The stream's requests with the responses and hidden states that the run's own stages made.

    Held-out prompts are not learned from, and a prompt that comes twice or is too long has no response of its own: such
    requests are left out, and counted.

    Raises:
        UserError: If none of the requests has a response, or responses and hidden states do not belong together.
    """
    from composer.utils import dist  # imported here: the process that answers requests need not import Composer

    online, folder, longest = run.recipe.distill.online, run.data.path, run.recipe.data.max_seq_len
    assert online is not None, "a recipe in online mode has it"
    traces = [trace for trace in read_traces(folder, "train") if len(trace.prompt_ids) < longest]
    cache = TeacherCache(run.teacher_cache.path, "train")
    cache.require_examples(AnswerDataset(traces, max_seq_len=longest).examples)
    index_of = {trace.source: index for index, trace in enumerate(traces)}
    requests = list(open_stream(online.stream, seed=run.recipe.seed))
    order = [(each.source, index_of[each.prompt.source]) for each in requests if each.prompt.source in index_of]
    if not order:
        raise UserError(
            f"{folder}: has responses to none of the {len(requests)} requests of distill.online.stream. Name the "
            "sources of data.prompts there, or set distill.online.answers to live."
        )
    if (left_out := len(requests) - len(order)) and dist.get_global_rank() == 0:
        print(
            f"{folder}: {left_out} of {len(requests)} requests have no response to learn from (held out, asked twice "
            "or too long), and are left out.",
            file=sys.stderr,
        )
    return RecordedStream(traces, cache, order, longest)


@dataclass(frozen=True)
class Asker:
    """Computes the acceptance probability of every token of a response, without dropout and without gradients.

    Attributes:
        draft: As it is at the moment.
        head: Of the target.
        vocab_size: Ids that both have.
        sampling: As the responses were written.
    """

    draft: PreTrainedModel
    head: Head
    vocab_size: int
    sampling: Sampling

    @torch.no_grad()
    def accepts(self, prompt_ids: Sequence[int], answer_ids: Sequence[int], hidden_AH: Tensor) -> Accepts:
        """By the acceptance method that decoding uses.

        At temperature 0 a drafted token is accepted where it is the response's. The target's logits are not made there:
        they would cost more than the draft, and say the same except for near ties.
        """
        was_training = self.draft.training
        self.draft.eval()
        draft_AV = answer_logits(self.draft, prompt_ids, answer_ids).clone()[:, : self.vocab_size]
        self.draft.train(was_training)
        if self.sampling.is_greedy:
            equal_A = draft_AV.argmax(dim=-1).cpu().numpy() == np.array(answer_ids)
            return Accepts(equal_A.astype(np.float64), equal_A.astype(np.float64))
        target_AV = self.head.logits(hidden_AH.to(self.head.weight_VH)).float()[:, : self.vocab_size]
        replay = replay_answer(
            target_AV, draft_AV.to(target_AV.device), answer_ids, sampling=self.sampling, prompt_ids=prompt_ids
        )
        return replay.rules[rule_name(self.sampling.temperature)]

    def alpha(self, served: Served) -> float:
        """Mean acceptance rate over a response."""
        return float(self.accepts(served.prompt_ids, served.answer_ids, served.hidden_AH).alpha.mean())


@dataclass(frozen=True)
class ReplayedRounds:
    """Verification steps along a response.

    Attributes:
        starts: Token of the response with which each begins.
        proposed: Drafted tokens of each: the lookahead, or what is left of the response but one.
        kept: How many of them are accepted.
    """

    starts: tuple[int, ...]
    proposed: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def mistakes(self) -> tuple[int, ...]:
        """Tokens of the response in whose place another was drafted."""
        rounds = zip(self.starts, self.proposed, self.kept, strict=True)
        return tuple(start + kept for start, proposed, kept in rounds if kept < proposed)


def rounds_along(accepted_A: Sequence[bool], *, lookahead: int) -> ReplayedRounds:
    """The verification steps of a response.

    Args:
        accepted_A: Whether a drafted token would be accepted at each place.
        lookahead: Tokens drafted a step; the last token of a response is the target's own.
    """
    starts, proposed, kept, start = [], [], [], 0
    while start < len(accepted_A):
        most = min(lookahead, len(accepted_A) - start - 1)
        run = next((k for k in range(most) if not accepted_A[start + k]), most)
        starts.append(start)
        proposed.append(most)
        kept.append(run)
        start += run + 1
    return ReplayedRounds(tuple(starts), tuple(proposed), tuple(kept))


def replay_request(
    recorded: Recorded, accepts: Accepts, *, lookahead: int, seed: int, updates: int
) -> tuple[Served, RequestRecord]:
    """What a draft would have done with a recorded request.

    Args:
        recorded: The request.
        accepts: Acceptance of this draft along the response.
        lookahead: Tokens drafted a verification step.
        seed: Of the draws which tokens of sampled responses are accepted.
        updates: That the draft has had.
    """
    drawn_A = np.random.default_rng([seed, recorded.request, 2]).random(len(accepts.accept))
    rounds = rounds_along(list(drawn_A < accepts.accept), lookahead=lookahead)
    served = Served(
        request=recorded.request,
        source=recorded.source,
        prompt_ids=recorded.prompt_ids,
        answer_ids=recorded.answer_ids,
        mistakes=rounds.mistakes,
        hidden_AH=recorded.hidden_AH,
        seen_by=updates,
    )
    record = RequestRecord(
        request=recorded.request,
        source=recorded.source,
        updates=updates,
        alpha=float(accepts.alpha.mean()),
        tau=len(recorded.answer_ids) / len(rounds.starts),
        tokens=len(recorded.answer_ids),
        rounds=len(rounds.starts),
        proposed=sum(rounds.proposed),
        accepted=sum(rounds.kept),
        seconds=None,
        wait_s=None,
        answer_ids=recorded.answer_ids,
    )
    return served, record


@dataclass
class RecordedRequests:
    """Recorded responses in the order of a stream, replayed with the draft that learns.

    Attributes:
        recorded: In the order of the stream.
        asker: Of the draft.
        journal: Of this process.
        lookahead: Tokens drafted a verification step.
        seed: Of the training.
        served: Requests that are in the journal.
        updates: That the draft has had.
    """

    recorded: Sequence[Recorded]
    asker: Asker
    journal: Journal
    lookahead: int
    seed: int
    served: int = field(init=False)
    updates: int = 0

    def __post_init__(self) -> None:
        self.served = self.journal.begin()

    def take(self, update: int) -> list[tuple[Served, RequestRecord]]:
        """What this process served for an update: less than an interval where the stream has ended."""
        share = self.journal.share
        wanted = [request for request in share.of_update(update) if request < len(self.recorded)]
        for index in range(self.served, update * share.own + len(wanted)):
            recorded = self.recorded[share.request(index)]
            accepts = self.asker.accepts(recorded.prompt_ids, recorded.answer_ids, recorded.hidden_AH)
            replayed = replay_request(recorded, accepts, lookahead=self.lookahead, seed=self.seed, updates=self.updates)
            self.journal.write(*replayed)
            self.served += 1
        return self.journal.read_with_records(wanted)

    def publish(self, model: nn.Module, *, updates: int) -> None:  # noqa: ARG002  # the asker has the model itself
        """From now on requests are served by the draft after so many updates."""
        self.updates = updates

    def close(self) -> None:
        """Nothing to stop."""
