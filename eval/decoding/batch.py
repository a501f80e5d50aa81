"""A batch of texts in the middle of decoding: one step of one model, or one round of two.

Shape suffixes used in this file:
    B = rows, K = tokens proposed in a round, the longest row's; J = K + 1, T = tokens fed, D = draws, V = vocabulary,
    S = output ids of the draft: all of V, or those of its small head
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.draft_vocabulary.head import head_ids, ids_below, tokens_of
from eval.decoding.rules import EXACT_GREEDY_DRAFT, REJECTION, Draws, Proposal, Verdict, at, follow
from eval.decoding.sampling import confidence_of, distribution, invert_cumulative, penalised
from eval.decoding.texts import Decoded, Round, Text, window
from eval.decoding.turn import Turn
from eval.decoding.wanted import Streams, Wanted
from eval.models.clock import clock_s
from eval.models.loading import shared_vocab_size
from eval.proposing.policy import new_record
from eval.steps.row_step import Span
from eval.steps.sequencer import Feed, Opener, Sequencer, open_sequencer


@dataclass(frozen=True)
class Emitted:
    """What one round, or one step of plain decoding, added to one text.

    Attributes:
        index: Of the text among the prompts.
        token_ids: What was added.
        accepted: How many of them the draft wrote; the last one is always the target's.
        rejected: The proposed token in whose place the last one stands; None where it stands in no token's place.
    """

    index: int
    token_ids: tuple[int, ...]
    accepted: int = 0
    rejected: int | None = None


class Batch:
    """Unfinished texts, and what the models have read of them; rows in the order of the texts.

    Args:
        models: The target, and perhaps a draft.
        wanted: What to decode.
        streams: Of random numbers, for all prompts.
        indices: Of the prompts of this batch; they are read at once.
        opener: Makes the models' sequencers, before the clock of the batch starts.

    Raises:
        ValueError: If the target has a small head.
    """

    def __init__(
        self,
        models: Sequence[PreTrainedModel],
        wanted: Wanted,
        streams: Streams,
        indices: Sequence[int],
        opener: Opener = open_sequencer,
    ) -> None:
        if wanted.target_vocab is None and head_ids(models[0]) is not None:
            raise ValueError(f"{models[0].name_or_path}: says some ids alone; a target must be able to say every one.")
        self.wanted, self.streams, self.device = wanted, streams, models[0].device
        self.vocab_size = shared_vocab_size(*models) if wanted.target_vocab is None else wanted.target_vocab
        lookahead = wanted.speculation.lookahead if wanted.speculation else 0
        self.texts = [Text(index, first_tokens(models[0], wanted.prompts[index]), lookahead) for index in indices]
        sequencers = [
            self.sequencer_of(opener, model, feeds)
            for model, feeds in zip(models, wanted.feeds, strict=False)  # alone: no draft
        ]
        self.verifier, self.drafter = sequencers[0], sequencers[1] if len(models) > 1 else None
        self.output_ids_S = ids_below(models[-1], self.vocab_size)  # of the draft, or of what writes alone
        start_s = clock_s(self.device)
        for sequencer in sequencers:
            self.read_contexts(sequencer)
        if wanted.lookup_policy is not None:
            for text in self.texts:
                text.record = new_record(wanted.lookup_policy, text.context)
        self.seen_BV = self.seen_at_first()
        self.prefilled_s = clock_s(self.device)
        self.prefill_s = self.prefilled_s - start_s

    def sequencer_of(self, opener: Opener, model: PreTrainedModel, feeds: Sequence[Feed]) -> Sequencer:
        """A model that has read nothing yet."""
        capacity = max(len(text.context) for text in self.texts) + self.wanted.limits.max_new_tokens
        prompts = [self.wanted.prompts[text.index] for text in self.texts]
        goes_back = self.wanted.goes_back
        return opener(model, prompts, capacity=capacity, vocab_size=self.vocab_size, feeds=feeds, goes_back=goes_back)

    def read_contexts(self, sequencer: Sequencer) -> None:
        """Have a model read every context but its last token."""
        contexts = [text.context[:-1] for text in self.texts]
        if any(contexts):
            sequencer.feed(self.filled(contexts), [(0, len(context)) for context in contexts], whole=False)

    def seen_at_first(self) -> Tensor | None:
        """Which tokens stand in each text, as a repetition penalty asks."""
        if self.wanted.sampling.repetition_penalty == 1:
            return None
        seen_BV = torch.zeros(len(self.texts), self.vocab_size, dtype=torch.bool, device=self.device)
        for row, text in enumerate(self.texts):
            seen_BV[row, list(text.context)] = True
        return seen_BV

    def plain_step(self) -> Iterator[Emitted]:
        """One token more for every text, the model's own."""
        yield from self.append(*self.next_tokens())

    def next_tokens(self) -> tuple[Tensor, list[float]]:
        """tokens_B that the model would add to each text, and log p of each; of greedy ones none."""
        [draws_B] = self.draws(self.streams.target_BD, 1)  # before the model is asked, as judging_draws
        last_B1, starts = self.filled([text.last(1) for text in self.texts]), [text.length - 1 for text in self.texts]
        logits_BS = self.verifier.feed(last_B1, [(start, 1) for start in starts], whole=False)[:, 0]
        columns_B, probs_BS = self.pick(logits_BS, self.seen_by_writer(), draws_B)
        logp = [] if probs_BS is None else at(probs_BS, columns_B).log().tolist()
        return tokens_of(columns_B, self.output_ids_S), logp

    def append(self, tokens_B: Tensor, logp: Sequence[float] = ()) -> Iterator[Emitted]:
        """Add a token to every text, whoever chose it."""
        for text, token, chance in zip_longest(self.texts, tokens_B.tolist(), logp):
            text.extend([token], self.wanted.limits)
            text.logp += [] if chance is None else [chance]
            yield Emitted(text.index, (token,))
        self.seen_BV = marked(self.seen_BV, tokens_B)

    def round(self) -> Iterator[Emitted]:
        """Propose, verify, and emit what was kept and the target's next token."""
        start_s = clock_s(self.device)
        turn, counts = self.turn()
        drafted_s = clock_s(self.device)
        draws = self.judging_draws(turn.proposal)
        verdict = self.judge(self.verify(turn.proposal, counts), turn, draws)
        columns = [verdict.accepted_B[:, None], verdict.next_B[:, None], turn.proposal.tokens_BK]
        ends = torch.cat(columns, dim=1).tolist()
        seconds = (drafted_s - start_s, clock_s(self.device) - drafted_s)
        for text, looked_up_ids, count, (accepted, following, *ids) in zip(
            self.texts, turn.lookups, counts, ends, strict=True
        ):
            yield self.emit(text, [*ids[:accepted], following], ids[:count], seconds, looked_up=bool(looked_up_ids))
        self.mark_emitted()

    def turn(self) -> tuple[Turn, list[int]]:
        """What is proposed, and how many tokens of it in each row: a text that proposes asks nothing of the draft."""
        limits = [text.num_left(self.wanted.limits) - 1 for text in self.texts]
        lookups = [self.look_up(text, limit) for text, limit in zip(self.texts, limits, strict=True)]
        if self.drafter is None:
            return Turn(Proposal.nothing(len(lookups), self.device), lookups), [len(ids) for ids in lookups]
        asked = [
            0 if ids else min(text.lookahead, limit)
            for text, ids, limit in zip(self.texts, lookups, limits, strict=True)
        ]
        drafted, counts = self.propose(asked)
        return Turn(drafted, lookups), [len(ids) or count for ids, count in zip(lookups, counts, strict=True)]

    def look_up(self, text: Text, limit: int) -> list[int]:
        """What followed the last tokens of a text where they stood before, as far as that is asked."""
        if self.wanted.lookup is not None:
            return self.wanted.lookup.continuation(text.everything(), min(text.lookahead, limit))
        if self.wanted.lookup_policy is None or text.record is None:
            return []
        return text.record.proposal(self.wanted.lookup_policy, limit)

    def emit(
        self,
        text: Text,
        token_ids: list[int],
        proposed_ids: list[int],
        seconds: tuple[float, float],
        *,
        looked_up: bool,
    ) -> Emitted:
        """Add a round to a text."""
        speculation, start, proposed = self.wanted.speculation, len(text.emitted), len(proposed_ids)
        assert speculation is not None
        kept = text.extend(token_ids, self.wanted.limits)
        policy = self.wanted.lookup_policy if looked_up else None
        asked = text.lookahead if policy is None else policy.lookahead
        if self.wanted.stopping.proposes_doubted and not looked_up:
            asked = max(1, proposed)  # its last token of doubt never went through the draft, like that of a whole round
        round_ = Round(start, asked, proposed, kept - 1, len(self.texts), *seconds, looked_up)
        text.rounds.append(round_)
        text.missing = text.missing + kept if looked_up else int(round_.is_behind)
        if policy is None:  # what was looked up says nothing of a draft
            text.lookahead = speculation.after(round_, text.lookahead)
        corrected = kept == len(token_ids) <= proposed  # not so where a proposed stop token was kept
        rejected = proposed_ids[kept - 1] if corrected else None
        return Emitted(text.index, tuple(token_ids[:kept]), round_.accepted, rejected)

    def propose(self, counts: Sequence[int]) -> tuple[Proposal, Sequence[int]]:
        """The draft's own continuation of every text, and its length: as asked, or to where the draft is in doubt.

        Tokens are kept on the device; nothing is wider than the draft's head.
        """
        assert self.drafter is not None
        seen_BS = self.seen_by_writer()
        draws = self.draws(self.streams.draft_BD, max(counts), drafting=True)
        ids_BT, spans = self.unread(counts)
        tokens, probs, chances = [], [], [1.0] * len(counts)
        for step, draws_B in enumerate(draws):
            logits_BS = self.drafter.feed(ids_BT, spans, whole=False)[:, 0]
            counts = self.without_doubt(counts, step, logits_BS, chances)
            if max(counts) <= step:
                break
            columns_B, probs_BS = self.pick(logits_BS, seen_BS, draws_B, drafting=True)
            tokens.append(tokens_of(columns_B, self.output_ids_S))
            probs.append(probs_BS if self.wanted.rule == REJECTION else None)
            ids_BT, seen_BS = tokens[-1][:, None], marked(seen_BS, columns_B)
            spans = [
                (text.length + step, int(step + 1 < count)) for text, count in zip(self.texts, counts, strict=True)
            ]
        if not tokens:
            return Proposal.nothing(len(counts), self.device), counts
        counts_B = torch.tensor(counts, device=self.device)
        probs_BKS = torch.stack(probs, dim=1) if probs[0] is not None else None
        return Proposal(torch.stack(tokens, dim=1), probs_BKS, counts_B, self.output_ids_S), counts

    def without_doubt(self, counts: Sequence[int], step: int, logits_BS: Tensor, chances: list[float]) -> Sequence[int]:
        """How many tokens each text gets, its draft having said what may come at a step: no more where it doubts.

        Args:
            counts: How many each would get.
            step: Tokens proposed before.
            logits_BS: What may come.
            chances: Products of the confidences before; the new ones are multiplied in.
        """
        stopping = self.wanted.stopping
        if not stopping.is_on:  # and nothing waits for the device
            return counts
        told = confidence_of(logits_BS).tolist()
        chances[:] = [chance * own for chance, own in zip(chances, told, strict=True)]
        most = step + stopping.proposes_doubted
        return [
            count if stopping.is_sure(own, chance) else min(count, most)
            for count, own, chance in zip(counts, told, chances, strict=True)
        ]

    def unread(self, counts: Sequence[int]) -> tuple[Tensor, list[Span]]:
        """What the draft has yet to read of every text of which it is asked something, and where that stands."""
        rows = [text.last(1 + text.missing) if count else [] for text, count in zip(self.texts, counts, strict=True)]
        return self.filled(rows), [
            (text.length - len(ids), len(ids)) for text, ids in zip(self.texts, rows, strict=True)
        ]

    def seen_by_writer(self) -> Tensor | None:
        """Which of the output ids of the draft, or of what writes alone, stand in each text, as a penalty asks."""
        if self.seen_BV is None or self.output_ids_S is None:
            return self.seen_BV
        return self.seen_BV.index_select(1, self.output_ids_S)

    def verify(self, proposal: Proposal, counts: Sequence[int]) -> Tensor:
        """logits_BJV of the target at the last token of every text and at all that are proposed."""
        last_B1 = self.filled([text.last(1) for text in self.texts])
        spans = [(text.length - 1, 1 + count) for text, count in zip(self.texts, counts, strict=True)]
        return self.verifier.feed(torch.cat([last_B1, proposal.tokens_BK], dim=1), spans, whole=True)

    def judging_draws(self, proposal: Proposal) -> Draws | None:
        """What chance decides of a round; made before the target is asked, since making it waits for the device."""
        if self.wanted.sampling.is_greedy:
            return None
        accept_BD, target_BD, count = self.streams.accept_BD, self.streams.target_BD, proposal.tokens_BK.shape[1]
        return Draws(window(accept_BD, self.texts, count), window(target_BD, self.texts, count + 1))

    def judge(self, logits_BJV: Tensor, turn: Turn, draws: Draws | None) -> Verdict:
        """Which of the proposed tokens are kept, by the rule, and the target's own after them; waits for nothing."""
        flat_NV, seen_NV = logits_BJV.flatten(0, 1), self.seen_along(turn.proposal)
        sampling, (rows, steps) = self.wanted.sampling, logits_BJV.shape[:2]
        if draws is None:
            return follow(penalised(flat_NV, sampling, seen_NV).argmax(dim=-1).view(rows, steps), turn.proposal)
        assert self.wanted.rule is not None
        target_BJV = distribution(flat_NV, sampling, seen_NV).view(rows, steps, -1)
        return turn.judged(self.wanted.rule, target_BJV, draws)

    def is_greedy(self, *, drafting: bool) -> bool:
        """Whether a model takes its most likely token."""
        return self.wanted.sampling.is_greedy or (drafting and self.wanted.rule == EXACT_GREEDY_DRAFT)

    def draws(self, stream_BD: Tensor, count: int, *, drafting: bool = False) -> Sequence[Tensor | None]:
        """Uniform numbers for each of the next tokens of every text; None for each where nothing is drawn."""
        if self.is_greedy(drafting=drafting):
            return [None] * count
        return window(stream_BD, self.texts, count).unbind(dim=1)

    def pick(
        self, logits_BS: Tensor, seen_BS: Tensor | None, draws_B: Tensor | None, *, drafting: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """One column of logits a row, and what it was drawn from; None of the most likely one."""
        sampling = self.wanted.sampling
        if self.is_greedy(drafting=drafting):
            return penalised(logits_BS, sampling, seen_BS).argmax(dim=-1), None
        assert draws_B is not None  # see draws
        probs_BS = distribution(logits_BS, sampling, seen_BS)
        return invert_cumulative(probs_BS, draws_B), probs_BS

    def seen_along(self, proposal: Proposal) -> Tensor | None:
        """Which tokens stand before each token to be judged, as [B x J, V]; None where no penalty asks."""
        if self.seen_BV is None:
            return None
        seen = [self.seen_BV]
        for tokens_B in proposal.tokens_BK.unbind(dim=1):
            seen.append(seen[-1].scatter(1, tokens_B[:, None], value=True))
        return torch.stack(seen, dim=1).flatten(0, 1)

    def mark_emitted(self) -> None:
        """Note the tokens of the last round, where a penalty asks."""
        if self.seen_BV is not None:
            for row, text in enumerate(self.texts):
                self.seen_BV[row, text.last(text.rounds[-1].accepted + 1)] = True

    def filled(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of token ids on the device, filled with id 0 on the left."""
        width = max(map(len, rows))
        return torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=self.device)

    def retire(self) -> Iterator[tuple[int, Decoded]]:
        """Hand out the texts that are finished and let go of their rows."""
        elapsed_s, limits = clock_s(self.device) - self.prefilled_s, self.wanted.limits
        is_finished = [text.is_finished(limits) for text in self.texts]
        if not any(is_finished):
            return
        unfinished = [row for row, finished in enumerate(is_finished) if not finished]
        for text, finished in zip(self.texts, is_finished, strict=True):
            if finished:
                ids, rounds = tuple(text.emitted), tuple(text.rounds)
                how = self.wanted.rule, text.stopped, tuple(text.logp)
                yield text.index, Decoded(ids, rounds, self.prefill_s, elapsed_s, *how)
        if unfinished:
            for sequencer in (self.verifier, self.drafter):
                if sequencer is not None:
                    sequencer.keep(unfinished)
            self.seen_BV = None if self.seen_BV is None else self.seen_BV[unfinished]
        self.texts = [self.texts[row] for row in unfinished]


def first_tokens(target: PreTrainedModel, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """What a decoder has before it says anything: the prompt, or the start token where an encoder reads the prompt."""
    if target.config.is_encoder_decoder:
        return (target.config.decoder_start_token_id,)
    return tuple(prompt_ids)


def marked(seen_BS: Tensor | None, columns_B: Tensor) -> Tensor | None:
    """Seen tokens with one more a row; None stays None."""
    return None if seen_BS is None else seen_BS.scatter(1, columns_B[:, None], value=True)
