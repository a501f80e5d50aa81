"""Rounds of speculative decoding for a batch of texts: propose, verify, judge, emit.

Shape suffixes used in this file:
    B = rows, K = tokens proposed in a round, the longest row's; J = K + 1, T = tokens fed, V = vocabulary,
    S = output ids of the draft: all of V, or those of its small head
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from architectures.draft_vocabulary.head import tokens_of
from eval.decoding.batch import Batch, Emitted, marked
from eval.decoding.rules import REJECTION, Draws, Proposal, Verdict, follow
from eval.decoding.sampling import confidence_of, distribution, penalised
from eval.decoding.texts import Round, Text, window
from eval.decoding.turn import Turn
from eval.models.clock import clock_s
from eval.steps.row_step import Span


class Rounds:
    """What is done with a batch where somebody proposes.

    Args:
        batch: Its `wanted` has a speculation.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch, self.wanted, self.streams = batch, batch.wanted, batch.streams
        self.part: Callable[[str], AbstractContextManager[Any]] = nullcontext  # record_function names parts in a trace

    @property
    def texts(self) -> list[Text]:
        """Those that are not finished."""
        return self.batch.texts

    def step(self) -> Iterator[Emitted]:
        """Propose, verify, and emit what was kept and the target's next token."""
        start_s = clock_s(self.batch.device)
        with self.part("draft"):
            turn, counts = self.turn()
        drafted_s = clock_s(self.batch.device)
        draws = self.judging_draws(turn.proposal)
        with self.part("verify"):
            logits_BJV = self.verify(turn.proposal, counts)
        with self.part("accept"):
            verdict = self.judge(logits_BJV, turn, draws)
        columns = [verdict.accepted_B[:, None], verdict.next_B[:, None], turn.proposal.tokens_BK]
        ends = torch.cat(columns, dim=1).tolist()
        seconds = (drafted_s - start_s, clock_s(self.batch.device) - drafted_s)
        for text, looked_up_ids, count, (accepted, following, *ids) in zip(
            self.texts, turn.lookups, counts, ends, strict=True
        ):
            yield self.emit(text, [*ids[:accepted], following], ids[:count], seconds, looked_up=bool(looked_up_ids))
        self.mark_emitted()

    def turn(self) -> tuple[Turn, list[int]]:
        """What is proposed, and how many tokens of it in each row: a text that proposes asks nothing of the draft."""
        limits = [text.num_left(self.wanted.limits) - 1 for text in self.texts]
        lookups = [self.look_up(text, limit) for text, limit in zip(self.texts, limits, strict=True)]
        if self.batch.drafter is None:
            return Turn(Proposal.nothing(len(lookups), self.batch.device), lookups), [len(ids) for ids in lookups]
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
        if self.wanted.lookup_first is None:
            return []
        return self.wanted.lookup_first.continuation(text.everything(), limit)

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
        copied = self.wanted.lookup_first if looked_up else None
        asked = text.lookahead if copied is None else copied.size_m
        round_ = Round(start, asked, proposed, kept - 1, len(self.texts), *seconds, looked_up)
        text.rounds.append(round_)
        text.missing = text.missing + kept if looked_up else int(round_.is_behind)
        if copied is None:  # what was looked up says nothing of a draft
            text.lookahead = speculation.after(round_, text.lookahead)
        corrected = kept == len(token_ids) <= proposed  # not so where a proposed stop token was kept
        rejected = proposed_ids[kept - 1] if corrected else None
        return Emitted(text.index, tuple(token_ids[:kept]), round_.accepted, rejected)

    def propose(self, counts: Sequence[int]) -> tuple[Proposal, Sequence[int]]:
        """The draft's own continuation of every text, and its length: as asked, or to where the draft is in doubt.

        Tokens are kept on the device; nothing is wider than the draft's head.
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
            probs.append(probs_BS if self.wanted.rule == REJECTION else None)
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
        """Tokens proposed for each text: none from the step on at which the draft's confidence is below the threshold.

        The confidence is known from the tokens before, so it is decided before anything is drawn there: lossless.
        """
        least = self.wanted.draft_p_min
        if least == 0:  # and nothing waits for the device
            return counts
        confidences = confidence_of(logits_BS).tolist()
        return [count if own >= least else min(count, step) for count, own in zip(counts, confidences, strict=True)]

    def unread(self, counts: Sequence[int]) -> tuple[Tensor, list[Span]]:
        """What the draft has yet to read of every text of which it is asked something, and where that stands."""
        rows = [text.last(1 + text.missing) if count else [] for text, count in zip(self.texts, counts, strict=True)]
        return self.batch.filled(rows), [
            (text.length - len(ids), len(ids)) for text, ids in zip(self.texts, rows, strict=True)
        ]

    def verify(self, proposal: Proposal, counts: Sequence[int]) -> Tensor:
        """logits_BJV of the target at the last token of every text and at all that are proposed."""
        last_B1 = self.batch.filled([text.last(1) for text in self.texts])
        spans = [(text.length - 1, 1 + count) for text, count in zip(self.texts, counts, strict=True)]
        return self.batch.verifier.feed(torch.cat([last_B1, proposal.tokens_BK], dim=1), spans, whole=True)

    def judging_draws(self, proposal: Proposal) -> Draws | None:
        """What chance decides of a round; made before the target is asked, since making it waits for the device."""
        if self.wanted.sampling.is_greedy:
            return None
        accept_BD, target_BD, count = (
            self.streams.accept_BD,
            self.streams.target_BD,
            proposal.tokens_BK.shape[1],
        )
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

    def seen_along(self, proposal: Proposal) -> Tensor | None:
        """Which tokens stand before each token to be judged, as [B x J, V]; None where no penalty asks."""
        if self.batch.seen_BV is None:
            return None
        seen = [self.batch.seen_BV]
        for tokens_B in proposal.tokens_BK.unbind(dim=1):
            seen.append(seen[-1].scatter(1, tokens_B[:, None], value=True))
        return torch.stack(seen, dim=1).flatten(0, 1)

    def mark_emitted(self) -> None:
        """Note the tokens of the last round, where a penalty asks."""
        if self.batch.seen_BV is not None:
            for row, text in enumerate(self.texts):
                self.batch.seen_BV[row, text.last(text.rounds[-1].accepted + 1)] = True
