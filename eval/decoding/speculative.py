"""Plain and speculative decoding of a batch of sequences, greedy or sampled, with any acceptance method.

Before each verification step the target has read every token of a sequence except the last, whose logits it has yet to
compute. So has the draft, except after a step that accepted all its proposals: the last proposed token never went
through it and is fed with the next one, two tokens at once. The rows of a batch advance independently.

Tokens from prompt lookup are not sampled: they are accepted if they equal the target's own choice, whichever method
judges the draft's tokens. The proposer is chosen from the sequence before anything is drawn, so decoding stays
lossless. Lookup costs nothing and pays on repetitive texts, so every trained draft is compared with it.
Implementations differ in which of several matches they take; here it is the latest of the longest.

Sources: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1 (arXiv
2211.17192); acceptance methods are in eval/decoding/sampling.py. Saxena 2023, "Prompt Lookup Decoding"
(github.com/apoorvumang/prompt-lookup-decoding); Yang et al. 2023, "Inference with Reference" (arXiv 2304.04487).

Shape suffixes used in this file:
    B = rows
    D = draws
    K = tokens proposed in a step, the longest row's
    J = K + 1
    T = tokens fed
    V = vocabulary
    S = output ids of the draft: all of V, or those of its reduced vocabulary
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from architectures.vocabulary_head import head_ids, ids_below, tokens_of
from eval.decoding.kv_cache import Feed, Opener, RowSequencer, Sequencer, Span, open_sequencer, takes_rows
from eval.decoding.sampling import (
    EXACT_GREEDY_DRAFT,
    REJECTION,
    RULES,
    Decoded,
    Draws,
    Limits,
    Proposal,
    Sampling,
    Seeds,
    Speculation,
    Text,
    Verdict,
    VerificationStep,
    at,
    confidence_of,
    distribution,
    follow,
    invert_cumulative,
    penalised,
    stream,
    window,
)
from eval.machine import clock_s
from eval.models import shared_vocab_size


@dataclass(frozen=True)
class NgramLookup:
    """Prompt lookup settings.

    Attributes:
        longest: Length of the suffix searched for first, >= 1; then one less, down to `shortest`.
    """

    longest: int = 3
    shortest: int = 1

    def continuation(self, token_ids: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that followed the latest earlier match; none without a match."""
        ids_T = np.asarray(token_ids)
        for length in range(min(self.longest, len(ids_T) - 1), self.shortest - 1, -1):
            earlier = sliding_window_view(ids_T[:-1], length)  # the suffix itself is no match
            [starts] = np.nonzero((earlier == ids_T[-length:]).all(axis=1))
            if len(starts):
                after = int(starts[-1]) + length
                return ids_T[after : after + count].tolist()
        return []


@dataclass(frozen=True)
class LookupFirst:
    """Prompt lookup if the last `size_n` tokens occurred before, the draft otherwise.

    The two parameters are those of llama.cpp's `--spec-type ngram-simple,draft-simple`.
    """

    size_n: int = 12
    size_m: int = 48

    def continuation(self, token_ids: Sequence[int], limit: int) -> list[int]:
        return NgramLookup(self.size_n, self.size_n).continuation(token_ids, min(self.size_m, limit))


@dataclass(frozen=True)
class DecodingRequest:
    """Decoding request.

    Attributes:
        prompts: Token ids, each at least one; encoder inputs for an encoder-decoder model.
        speculation: None for plain decoding.
        lookup: Proposes tokens instead of a draft model.
        lookup_first: Prompt lookup with the draft as fallback; None for the draft everywhere.
        target_vocab: Vocabulary size of the target if a draft decodes without it: larger ids are never generated.
        max_new_tokens: Limit of each prompt, at most that of `limits`; None for that of `limits`.
    """

    prompts: Sequence[Sequence[int]]
    limits: Limits
    sampling: Sampling
    speculation: Speculation | None = None
    lookup: NgramLookup | None = None
    lookup_first: LookupFirst | None = None
    target_vocab: int | None = None
    max_new_tokens: Sequence[int] | None = None

    @property
    def rule(self) -> str | None:
        """Acceptance method; None without a draft.

        Looked-up tokens were not sampled, so they must equal the target's choice.
        """
        if self.speculation is None:
            return None
        drawn = self.lookup is None and not self.sampling.is_greedy
        return self.speculation.rule if drawn else EXACT_GREEDY_DRAFT

    @property
    def draft_p_min(self) -> float:
        return 0.0 if self.speculation is None else self.speculation.draft_p_min

    @property
    def feeds(self) -> tuple[Sequence[Feed], ...]:
        """Steps that the target and the draft are fed repeatedly; with a confidence threshold, of every width."""
        if self.speculation is None:
            return ([(1, False)],)
        widest = self.speculation.num_speculative_tokens + 1
        narrowest = 1 if self.draft_p_min > 0 else widest
        return [(width, True) for width in range(narrowest, widest + 1)], [(1, False), (2, False)]

    @property
    def goes_back(self) -> bool:
        return self.speculation is not None

    def __post_init__(self) -> None:
        if not all(self.prompts):
            raise ValueError("every prompt needs at least one token, got a prompt of 0 tokens.")


@dataclass(frozen=True)
class Streams:
    """Uniform numbers per token and sequence: for the draft's samples, for acceptance, and for the target's samples."""

    draft_BD: Tensor
    accept_BD: Tensor
    target_BD: Tensor

    @classmethod
    def of(cls, request: DecodingRequest, seeds: Seeds, row_seeds: Sequence[int], device: torch.device) -> "Streams":
        """Draw the numbers; those of a sequence depend only on the stream's seed and its row seed."""
        # A row one token from its end takes part in steps as wide as the longest proposal of the others.
        drafted = request.speculation.num_speculative_tokens if request.speculation else 0
        looked_up = request.lookup_first.size_m if request.lookup_first else 0
        count = request.limits.max_new_tokens + max(drafted, looked_up) + 1
        return cls(*(stream(seed, row_seeds, count, device) for seed in (seeds.draft, seeds.accept, seeds.target)))

    @classmethod
    def joined(cls, batches: Sequence["Batch"]) -> "Streams":
        """Return the numbers of the rows of several batches; shorter streams get zeros, which no token uses."""
        rows = [[text.index for text in batch.texts] for batch in batches]
        width = max(batch.streams.draft_BD.shape[1] for batch in batches)
        same = zip(*(vars(batch.streams).values() for batch in batches), strict=True)
        return cls(
            *(
                torch.cat([pad(each[own], (0, width - each.shape[1])) for each, own in zip(draws, rows, strict=True)])
                for draws in same
            )
        )


@dataclass(frozen=True)
class Proposals:
    """Proposals of one verification step.

    Attributes:
        drafted: From the draft, for rows without looked-up tokens.
        lookups: Looked-up tokens per row.
    """

    drafted: Proposal
    lookups: Sequence[Sequence[int]]

    @cached_property
    def looked_up_B(self) -> Tensor:  # noqa: N802  # the suffix of a shape
        return torch.tensor([bool(ids) for ids in self.lookups], device=self.drafted.tokens_BK.device)

    @cached_property
    def proposal(self) -> Proposal:
        """Merged tokens of both proposers, without the draft's probabilities."""
        if not any(self.lookups):
            return self.drafted
        rows_B = self.looked_up_B
        most = max(self.drafted.tokens_BK.shape[1], *map(len, self.lookups))
        filled = torch.tensor([[*ids, *[0] * (most - len(ids))] for ids in self.lookups], device=rows_B.device)
        drafted_BK = pad(self.drafted.tokens_BK, (0, most - self.drafted.tokens_BK.shape[1]))
        lengths_B = torch.tensor([len(ids) for ids in self.lookups], device=rows_B.device)
        return Proposal(filled.where(rows_B[:, None], drafted_BK), None, lengths_B.where(rows_B, self.drafted.counts_B))

    def judged(self, rule: str, target_BJV: Tensor, draws: Draws) -> Verdict:
        """Apply an acceptance rule.

        Args:
            target_BJV: p at every token of `proposal` and after the last.
        """
        if not any(self.lookups):
            return RULES[rule](target_BJV, self.drafted, draws)
        exact = RULES[EXACT_GREEDY_DRAFT](target_BJV, self.proposal, draws)
        if RULES[rule] is RULES[EXACT_GREEDY_DRAFT] or all(self.lookups):
            return exact
        width = self.drafted.tokens_BK.shape[1]
        own_draws = Draws(draws.accept_BK[:, :width], draws.target_BJ[:, : width + 1])
        own = RULES[rule](target_BJV[:, : width + 1], self.drafted, own_draws)
        rows_B = self.looked_up_B
        return Verdict(exact.accepted_B.where(rows_B, own.accepted_B), exact.next_B.where(rows_B, own.next_B))


@dataclass(frozen=True)
class Emitted:
    """Tokens that one step added to one sequence.

    Attributes:
        accepted: Number of draft tokens among them; the last token is always the target's.
        rejected: Proposed token that the last one replaces; None if it replaces none.
    """

    index: int
    token_ids: tuple[int, ...]
    accepted: int = 0
    rejected: int | None = None


class Batch:
    """Unfinished sequences and the state of the models; rows in the order of the sequences.

    Args:
        indices: Prompts of this batch; they are prefilled together.
        opener: Makes the models' sequencers, before the clock of the batch starts.
        prefill_tokens: Maximum tokens fed at once, padding included, for models with a RowSequencer. The caller then
            exhausts `prefill` before the first step, which feeds tokens at each `next`.

    Raises:
        ValueError: If the target has a reduced vocabulary.
    """

    def __init__(
        self,
        models: Sequence[PreTrainedModel],
        request: DecodingRequest,
        streams: Streams,
        indices: Sequence[int],
        opener: Opener = open_sequencer,
        *,
        prefill_tokens: int | None = None,
    ) -> None:
        if request.target_vocab is None and head_ids(models[0]) is not None:
            raise ValueError(f"{models[0].name_or_path}: outputs a reduced vocabulary; a target must output every id.")
        self.request, self.streams, self.device = request, streams, models[0].device
        self.vocab_size = shared_vocab_size(*models) if request.target_vocab is None else request.target_vocab
        own_limits = request.max_new_tokens or [None] * len(request.prompts)
        self.texts = [
            Text(index, first_tokens(models[0], request.prompts[index]), max_new_tokens=own_limits[index])
            for index in indices
        ]
        sequencers = [
            self.sequencer_of(opener, model, feeds)
            for model, feeds in zip(models, request.feeds, strict=False)  # without a draft there is one model
        ]
        self.verifier, self.drafter = sequencers[0], sequencers[1] if len(models) > 1 else None
        self.output_ids_S = ids_below(models[-1], self.vocab_size)  # of the draft, or of the only model
        self.seen_BV = self.seen_at_first()
        start_s = clock_s(self.device)
        self.prefill = self.read_contexts(sequencers, prefill_tokens)
        if prefill_tokens is None:
            list(self.prefill)
        self.prefilled_s = clock_s(self.device)
        self.prefill_s = self.prefilled_s - start_s

    def sequencer_of(self, opener: Opener, model: PreTrainedModel, feeds: Sequence[Feed]) -> Sequencer:
        prompts = [self.request.prompts[text.index] for text in self.texts]
        capacity, goes_back = self.capacity, self.request.goes_back
        return opener(model, prompts, capacity=capacity, vocab_size=self.vocab_size, feeds=feeds, goes_back=goes_back)

    @property
    def capacity(self) -> int:
        """Maximum tokens of a row."""
        return max(text.length + text.num_left(self.request.limits) for text in self.texts)

    def read_contexts(self, sequencers: Sequence[Sequencer], num_tokens: int | None = None) -> Iterator[None]:
        """Feed every token but the last of each sequence; yields after each chunk of at most `num_tokens`."""
        contexts = [text.everything()[:-1] for text in self.texts]
        longest = max(map(len, contexts))
        width = longest if num_tokens is None else max(1, num_tokens // len(contexts))
        for start in range(0, longest, max(1, width)):
            parts = [context[start : start + width] for context in contexts]
            for sequencer in sequencers:
                sequencer.feed(self.filled(parts), [(start, len(part)) for part in parts], whole=False)
            yield

    def seen_at_first(self) -> Tensor | None:
        """Return the mask of the tokens in each context; None without a repetition penalty."""
        if self.request.sampling.repetition_penalty == 1:
            return None
        seen_BV = torch.zeros(len(self.texts), self.vocab_size, dtype=torch.bool, device=self.device)
        for row, text in enumerate(self.texts):
            seen_BV[row, list(text.context)] = True
        return seen_BV

    def plain_step(self) -> Iterator[Emitted]:
        yield from self.append(*self.next_tokens())

    def next_tokens(self) -> tuple[Tensor, list[float]]:
        """Return tokens_B and the log p of each; no log p when greedy."""
        [draws_B] = self.draws(self.streams.target_BD, 1)  # before the forward pass, see judging_draws
        last_B1, starts = self.filled([text.last(1) for text in self.texts]), [text.length - 1 for text in self.texts]
        logits_BS = self.verifier.feed(last_B1, [(start, 1) for start in starts], whole=False)[:, 0]
        columns_B, probs_BS = self.pick(logits_BS, self.seen_by_writer(), draws_B)
        logp = [] if probs_BS is None else at(probs_BS, columns_B).log().tolist()
        return tokens_of(columns_B, self.output_ids_S), logp

    def append(self, tokens_B: Tensor, logp: Sequence[float] = ()) -> Iterator[Emitted]:
        for text, token, chance in zip_longest(self.texts, tokens_B.tolist(), logp):
            text.extend([token], self.request.limits)
            text.logp += [] if chance is None else [chance]
            yield Emitted(text.index, (token,))
        self.seen_BV = marked(self.seen_BV, tokens_B)

    def seen_by_writer(self) -> Tensor | None:
        """Return the seen tokens over the output ids of the proposing model; None without a repetition penalty."""
        if self.seen_BV is None or self.output_ids_S is None:
            return self.seen_BV
        return self.seen_BV.index_select(1, self.output_ids_S)

    def is_greedy(self, *, drafting: bool) -> bool:
        return self.request.sampling.is_greedy or (drafting and self.request.rule == EXACT_GREEDY_DRAFT)

    def draws(self, stream_BD: Tensor, count: int, *, drafting: bool = False) -> Sequence[Tensor | None]:
        """Return uniform numbers for each of the next `count` tokens; None each if nothing is drawn."""
        if self.is_greedy(drafting=drafting):
            return [None] * count
        return window(stream_BD, self.texts, count).unbind(dim=1)

    def pick(
        self, logits_BS: Tensor, seen_BS: Tensor | None, draws_B: Tensor | None, *, drafting: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return one column per row and the distribution it was drawn from; None when greedy."""
        sampling = self.request.sampling
        if self.is_greedy(drafting=drafting):
            return penalised(logits_BS, sampling, seen_BS).argmax(dim=-1), None
        assert draws_B is not None  # see draws
        probs_BS = distribution(logits_BS, sampling, seen_BS)
        return invert_cumulative(probs_BS, draws_B), probs_BS

    def filled(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return token ids as a tensor, left-padded with id 0."""
        width = max(map(len, rows))
        return torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=self.device)

    def retire(self) -> Iterator[tuple[int, Decoded]]:
        """Yield the finished sequences and drop their rows."""
        elapsed_s, limits = clock_s(self.device) - self.prefilled_s, self.request.limits
        is_finished = [text.is_finished(limits) for text in self.texts]
        if not any(is_finished):
            return
        for text, finished in zip(self.texts, is_finished, strict=True):
            if finished:
                ids, steps = tuple(text.emitted), tuple(text.steps)
                how = self.request.rule, text.stopped, tuple(text.logp)
                yield text.index, Decoded(ids, steps, self.prefill_s, elapsed_s, *how)
        self.keep([row for row, finished in enumerate(is_finished) if not finished])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only the given rows."""
        if rows:
            for sequencer in (self.verifier, self.drafter):
                if sequencer is not None:
                    sequencer.keep(rows)
            self.seen_BV = None if self.seen_BV is None else self.seen_BV[rows]
        self.texts = [self.texts[row] for row in rows]

    def join(self, other: "Batch") -> None:
        """Append the rows of another batch of the same models and sampling, which is not used afterwards.

        All sequences get the number of their row as index.
        """
        for own, new in ((self.verifier, other.verifier), (self.drafter, other.drafter)):
            if own is not None:
                assert isinstance(own, RowSequencer), "see takes_rows"
                assert isinstance(new, RowSequencer), "see takes_rows"
                own.join(new, rows=len(self.texts), other_rows=len(other.texts))
        self.streams = Streams.joined([self, other])
        if self.seen_BV is not None and other.seen_BV is not None:
            self.seen_BV = torch.cat([self.seen_BV, other.seen_BV])
        self.texts += other.texts
        for row, text in enumerate(self.texts):
            text.index = row

    def open_drafter(self, draft: PreTrainedModel, opener: Opener, prefill_tokens: int) -> Sequencer:
        """Return a sequencer of another draft that has read every sequence."""
        sequences = [text.everything() for text in self.texts]
        drafter = opener(draft, sequences, capacity=self.capacity, vocab_size=self.vocab_size)
        list(self.read_contexts([drafter], prefill_tokens))
        return drafter

    def replace_draft(self, drafter: Sequencer, speculation: Speculation) -> None:
        """Propose with another draft, of `open_drafter`, from the next step on; the target's cache stays."""
        self.request = replace(self.request, speculation=speculation)
        self.drafter, self.output_ids_S = drafter, ids_below(drafter.model, self.vocab_size)
        for text in self.texts:
            text.missing = 0
        # Steps of more tokens look at more numbers after the last token of a row, and use none of them.
        k = speculation.num_speculative_tokens
        self.streams = Streams(*(pad(draws_BD, (0, k)) for draws_BD in vars(self.streams).values()))


def first_tokens(target: PreTrainedModel, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the decoder's tokens before generation: the prompt, or the start token if an encoder reads the prompt."""
    if target.config.is_encoder_decoder:
        return (target.config.decoder_start_token_id,)
    return tuple(prompt_ids)


def marked(seen_BS: Tensor | None, columns_B: Tensor) -> Tensor | None:
    return None if seen_BS is None else seen_BS.scatter(1, columns_B[:, None], value=True)


class SpeculativeSteps:
    """Speculative decoding of a batch."""

    def __init__(self, batch: Batch) -> None:
        assert batch.request.speculation is not None
        self.batch, self.request, self.streams = batch, batch.request, batch.streams
        self.speculation = batch.request.speculation

    @property
    def texts(self) -> list[Text]:
        return self.batch.texts

    def step(self) -> Iterator[Emitted]:
        """Propose, verify, and emit the accepted tokens and the target's next one."""
        start_s = clock_s(self.batch.device)
        turn, counts = self.turn()
        drafted_s = clock_s(self.batch.device)
        draws = self.judging_draws(turn.proposal)
        logits_BJV = self.verify(turn.proposal, counts)
        verdict = self.judge(logits_BJV, turn, draws)
        columns = [verdict.accepted_B[:, None], verdict.next_B[:, None], turn.proposal.tokens_BK]
        ends = torch.cat(columns, dim=1).tolist()
        seconds = (drafted_s - start_s, clock_s(self.batch.device) - drafted_s)
        for text, looked_up_ids, count, (accepted, following, *ids) in zip(
            self.texts, turn.lookups, counts, ends, strict=True
        ):
            yield self.emit(text, [*ids[:accepted], following], ids[:count], seconds, looked_up=bool(looked_up_ids))
        self.mark_emitted()

    def turn(self) -> tuple[Proposals, list[int]]:
        """Return the proposals and their length per row; the draft skips rows with looked-up tokens."""
        limits = [text.num_left(self.request.limits) - 1 for text in self.texts]
        lookups = [self.look_up(text, limit) for text, limit in zip(self.texts, limits, strict=True)]
        if self.batch.drafter is None:
            return Proposals(Proposal.nothing(len(lookups), self.batch.device), lookups), [len(ids) for ids in lookups]
        asked = [
            0 if ids else min(self.speculation.num_speculative_tokens, limit)
            for ids, limit in zip(lookups, limits, strict=True)
        ]
        drafted, counts = self.propose(asked)
        return Proposals(drafted, lookups), [len(ids) or count for ids, count in zip(lookups, counts, strict=True)]

    def look_up(self, text: Text, limit: int) -> list[int]:
        if self.request.lookup is not None:
            return self.request.lookup.continuation(
                text.everything(), min(self.speculation.num_speculative_tokens, limit)
            )
        if self.request.lookup_first is None:
            return []
        return self.request.lookup_first.continuation(text.everything(), limit)

    def emit(
        self,
        text: Text,
        token_ids: list[int],
        proposed_ids: list[int],
        seconds: tuple[float, float],
        *,
        looked_up: bool,
    ) -> Emitted:
        start, proposed = len(text.emitted), len(proposed_ids)
        kept = text.extend(token_ids, self.request.limits)
        copied = self.request.lookup_first if looked_up else None
        asked = self.speculation.num_speculative_tokens if copied is None else copied.size_m
        step = VerificationStep(start, asked, proposed, kept - 1, len(self.texts), *seconds, looked_up)
        text.steps.append(step)
        text.missing = text.missing + kept if looked_up else int(step.is_behind)
        corrected = kept == len(token_ids) <= proposed  # not if an accepted stop token ended the sequence
        rejected = proposed_ids[kept - 1] if corrected else None
        return Emitted(text.index, tuple(token_ids[:kept]), step.accepted, rejected)

    def propose(self, counts: Sequence[int]) -> tuple[Proposal, Sequence[int]]:
        """Return the draft's proposals and their lengths: as requested, or shorter if its confidence drops.

        Tokens stay on the device; no tensor is wider than the draft's head.
        """
        assert self.batch.drafter is not None
        seen_BS = self.batch.seen_by_writer()
        draws = self.batch.draws(self.streams.draft_BD, max(counts), drafting=True)
        ids_BT, spans = self.unread(counts)
        tokens, probs = [], []
        for step, draws_B in enumerate(draws):
            logits_BS = self.batch.drafter.feed(ids_BT, spans, whole=False)[:, 0]
            counts = self.confident_counts(counts, step, logits_BS)
            if max(counts) <= step:
                break
            columns_B, probs_BS = self.batch.pick(logits_BS, seen_BS, draws_B, drafting=True)
            tokens.append(tokens_of(columns_B, self.batch.output_ids_S))
            probs.append(probs_BS if self.request.rule == REJECTION else None)
            if max(counts) == step + 1:  # no row wants another token
                break
            ids_BT, seen_BS = tokens[-1][:, None], marked(seen_BS, columns_B)
            spans = [
                (text.length + step, int(step + 1 < count)) for text, count in zip(self.texts, counts, strict=True)
            ]
        if not tokens:
            return Proposal.nothing(len(counts), self.batch.device), counts
        counts_B = torch.tensor(counts, device=self.batch.device)
        probs_BKS = torch.stack(probs, dim=1) if probs[0] is not None else None
        return Proposal(torch.stack(tokens, dim=1), probs_BKS, counts_B, self.batch.output_ids_S), counts

    def confident_counts(self, counts: Sequence[int], step: int, logits_BS: Tensor) -> Sequence[int]:
        """Limit proposals to the tokens before the first one with a confidence below the threshold.

        The confidence depends only on earlier tokens and is known before anything is drawn, so decoding stays
        lossless.
        """
        least = self.request.draft_p_min
        if least == 0:  # avoids a device synchronisation
            return counts
        confidences = confidence_of(logits_BS).tolist()
        return [count if own >= least else min(count, step) for count, own in zip(counts, confidences, strict=True)]

    def unread(self, counts: Sequence[int]) -> tuple[Tensor, list[Span]]:
        """Return the tokens that the draft has yet to read and their spans; none for rows without draft proposals."""
        rows = [text.last(1 + text.missing) if count else [] for text, count in zip(self.texts, counts, strict=True)]
        return self.batch.filled(rows), [
            (text.length - len(ids), len(ids)) for text, ids in zip(self.texts, rows, strict=True)
        ]

    def verify(self, proposal: Proposal, counts: Sequence[int]) -> Tensor:
        """Return the target's logits_BJV at the last token of every sequence and at all proposed tokens."""
        last_B1 = self.batch.filled([text.last(1) for text in self.texts])
        spans = [(text.length - 1, 1 + count) for text, count in zip(self.texts, counts, strict=True)]
        return self.batch.verifier.feed(torch.cat([last_B1, proposal.tokens_BK], dim=1), spans, whole=True)

    def judging_draws(self, proposal: Proposal) -> Draws | None:
        """Draw the random numbers of a step; before the target's forward pass, since this waits for the device."""
        if self.request.sampling.is_greedy:
            return None
        count = proposal.tokens_BK.shape[1]
        accept_BK = window(self.streams.accept_BD, self.texts, count)
        return Draws(accept_BK, window(self.streams.target_BD, self.texts, count + 1))

    def judge(self, logits_BJV: Tensor, turn: Proposals, draws: Draws | None) -> Verdict:
        """Apply the acceptance rule, without waiting for the device."""
        flat_NV, seen_NV = logits_BJV.flatten(0, 1), self.seen_along(turn.proposal)
        sampling, (rows, steps) = self.request.sampling, logits_BJV.shape[:2]
        if draws is None:
            return follow(penalised(flat_NV, sampling, seen_NV).argmax(dim=-1).view(rows, steps), turn.proposal)
        assert self.request.rule is not None
        target_BJV = distribution(flat_NV, sampling, seen_NV).view(rows, steps, -1)
        return turn.judged(self.request.rule, target_BJV, draws)

    def seen_along(self, proposal: Proposal) -> Tensor | None:
        """Return the tokens seen before each judged token, as [B x J, V]; None without a repetition penalty."""
        if self.batch.seen_BV is None:
            return None
        seen = [self.batch.seen_BV]
        for tokens_B in proposal.tokens_BK.unbind(dim=1):
            seen.append(seen[-1].scatter(1, tokens_B[:, None], value=True))
        return torch.stack(seen, dim=1).flatten(0, 1)

    def mark_emitted(self) -> None:
        if self.batch.seen_BV is not None:
            for row, text in enumerate(self.texts):
                self.batch.seen_BV[row, text.last(text.steps[-1].accepted + 1)] = True


GREEDY, K_4, SEEDS = Sampling(), Speculation(), Seeds()  # defaults


def speculative_decode(
    target: PreTrainedModel,
    draft: PreTrainedModel | NgramLookup,
    prompts: Sequence[Sequence[int]],
    *,
    limits: Limits,
    speculation: Speculation = K_4,
    sampling: Sampling = GREEDY,
    seeds: Seeds = SEEDS,
    row_seeds: Sequence[int] | None = None,
    opener: Opener = open_sequencer,
    lookup_first: LookupFirst | None = None,
) -> list[Decoded]:
    """Generate the target's continuations with the help of a draft.

    Args:
        draft: Proposes tokens; a model shares the target's tokenizer and device.
        prompts: Token ids, each at least one; encoder inputs for an encoder-decoder model.
        row_seeds: One per prompt, from `eval.decoding.sampling.row_seed`; required above temperature 0, since prompts
            of two calls that both count from 0 would draw the same numbers.
        opener: `open_sequencer`, or an eval.decoding.cuda_graphs.CapturedSteps.
        lookup_first: Prompt lookup that takes precedence over a draft model.

    Returns:
        One per prompt, in order.
    """
    models, lookup = ([target], draft) if isinstance(draft, NgramLookup) else ([target, draft], None)
    request = DecodingRequest(prompts, limits, sampling, speculation, lookup, lookup_first)
    steps = decode_steps(models, request, seeds=seeds, row_seeds=row_seeds, opener=opener)
    return collected(steps, len(prompts))


def plain_decode(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    limits: Limits,
    sampling: Sampling = GREEDY,
    seeds: Seeds = SEEDS,
    row_seeds: Sequence[int] | None = None,
    opener: Opener = open_sequencer,
) -> list[Decoded]:
    """Generate the target's continuations one token at a time; arguments as in `speculative_decode`."""
    request = DecodingRequest(prompts, limits, sampling)
    steps = decode_steps([target], request, seeds=seeds, row_seeds=row_seeds, opener=opener)
    return collected(steps, len(prompts))


def decode_steps(
    models: Sequence[PreTrainedModel],
    request: DecodingRequest,
    *,
    seeds: Seeds = SEEDS,
    row_seeds: Sequence[int] | None = None,
    opener: Opener = open_sequencer,
) -> Iterator[Emitted | tuple[int, Decoded]]:
    """Decode and yield tokens as they are emitted; arguments as in `speculative_decode`.

    All prompts form one batch if every model supports it (eval.decoding.kv_cache.takes_rows); otherwise each is its
    own.

    Args:
        models: The target, and optionally a draft model.

    Yields:
        Tokens that a step added to a sequence; after its last step, (index of the prompt, finished sequence).

    Raises:
        ValueError: If sampling without row seeds.
    """
    everything = range(len(request.prompts))
    if row_seeds is None and not request.sampling.is_greedy:
        raise ValueError("sampling needs row_seeds, one per prompt and unique across calls, got None.")
    draws = Streams.of(request, seeds, everything if row_seeds is None else row_seeds, models[0].device)
    together = all(takes_rows(model, goes_back=request.goes_back) for model in models)
    for indices in [everything] if together else [[index] for index in everything]:
        with torch.inference_mode():
            batch = Batch(models, request, draws, indices, opener)
            step = batch.plain_step if request.speculation is None else SpeculativeSteps(batch).step
        while batch.texts:
            with torch.inference_mode():  # per step: around the yield it would be entered once per sequence
                done = [*step(), *batch.retire()]
            yield from done


def collected(steps: Iterator[Emitted | tuple[int, Decoded]], count: int) -> list[Decoded]:
    texts = dict(finished(steps))
    return [texts[index] for index in range(count)]


def finished(steps: Iterator[Emitted | tuple[int, Decoded]]) -> Iterator[tuple[int, Decoded]]:
    return (step for step in steps if isinstance(step, tuple))
