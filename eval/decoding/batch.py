"""A batch of texts in the middle of decoding: what was read of them, one step of one model, and what ends.

Shape suffixes used in this file:
    B = rows, D = draws, V = vocabulary, S = output ids of the draft: all of V, or those of its small head
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.draft_vocabulary.head import head_ids, ids_below, tokens_of
from eval.decoding.rules import EXACT_GREEDY_DRAFT, at
from eval.decoding.sampling import distribution, invert_cumulative, penalised
from eval.decoding.texts import Decoded, Text, window
from eval.decoding.wanted import Streams, Wanted
from eval.models.clock import clock_s
from eval.models.loading import shared_vocab_size
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

    def seen_by_writer(self) -> Tensor | None:
        """Which of the output ids of the draft, or of what writes alone, stand in each text, as a penalty asks."""
        if self.seen_BV is None or self.output_ids_S is None:
            return self.seen_BV
        return self.seen_BV.index_select(1, self.output_ids_S)

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
