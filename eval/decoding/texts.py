"""Sequences during decoding: emitted tokens, stopping, random streams and results.

Shape suffixes used in this file:
    B = rows, D = draws, K = tokens of a step
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from eval.decoding.sampling import LOSSLESS, RULES, uniform_draws


@dataclass(frozen=True)
class Limits:
    """Stopping criteria.

    Attributes:
        stop_ids: Tokens that end a sequence and are its last; may be empty.
    """

    max_new_tokens: int
    stop_ids: AbstractSet[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got max_new_tokens={self.max_new_tokens}.")


@dataclass(frozen=True)
class Seeds:
    """Seeds of three independent random streams.

    Attributes:
        draft: Of the draft's samples.
        accept: Of acceptance.
        target: Of the target's samples; the only stream of plain decoding.
    """

    draft: int = 0
    accept: int = 1
    target: int = 2

    @classmethod
    def of(cls, seed: int) -> "Seeds":
        """Derive three seeds that no other seed derives."""
        return cls(3 * seed, 3 * seed + 1, 3 * seed + 2)


DRAWS = "torch.rand by SeedSequence((stream, row))"  # how `stream` draws; recorded with sampled responses


@dataclass(frozen=True)
class Round:
    """One verification step, which emitted accepted + 1 tokens.

    Attributes:
        start: Tokens emitted before it.
        lookahead: Tokens requested from the proposer.
        proposed: Tokens proposed: fewer near the end of the sequence.
        accepted: A stop token is the target's own and not among them.
        rows: Sequences decoded together, which share the seconds.
        draft_s: Seconds of the draft, for all rows.
        verify_s: Seconds of the target, for all rows.
        looked_up: True if prompt lookup proposed, not the draft.
    """

    start: int
    lookahead: int
    proposed: int
    accepted: int
    rows: int
    draft_s: float
    verify_s: float
    looked_up: bool = False

    @property
    def is_behind(self) -> bool:
        """True if the draft has not read its last proposed token, because all requested tokens were accepted."""
        return not self.looked_up and self.accepted == self.proposed == self.lookahead


@dataclass(frozen=True)
class Speculation:
    """How a draft is used.

    Attributes:
        lookahead: Tokens proposed per step, fewer near the end of the sequence.
        draft_p_min: Confidence (the draft's largest probability at temperature 1) below which it stops proposing in
            this step, in [0, 1]: llama.cpp's `--spec-draft-p-min`; 0 never stops.
    """

    lookahead: int = 4
    rule: str = LOSSLESS[0]
    draft_p_min: float = 0.0

    def __post_init__(self) -> None:
        if self.lookahead < 1:
            raise ValueError(f"lookahead must be at least 1, got {self.lookahead}. Use plain_decode to do without.")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}.")
        if not 0 <= self.draft_p_min <= 1:
            raise ValueError(f"draft_p_min must be in [0, 1], got {self.draft_p_min:g}.")


@dataclass(frozen=True)
class Decoded:
    """A decoded sequence.

    Attributes:
        token_ids: The emitted tokens, including a stop token.
        rounds: The verification steps; empty for plain decoding.
        prefill_s: Seconds to prefill the batch, with both models if there are two.
        decode_s: Seconds from then to the last token.
        rule: Acceptance method, exact match at temperature 0 whatever was requested; None for plain decoding.
        stopped: True if a stop token ended it, not the length limit.
        logp: log p of every token under the distribution it was drawn from, if sampled without a draft; else empty.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    prefill_s: float
    decode_s: float
    rule: str | None = None
    stopped: bool = False
    logp: tuple[float, ...] = ()


@dataclass
class Text:
    """A sequence during decoding.

    Attributes:
        context: The decoder's tokens before generation: the prompt, or the start token of an encoder-decoder.
        missing: Emitted tokens except the last that the draft has not read.
        logp: As in Decoded.
    """

    index: int
    context: tuple[int, ...]
    emitted: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    missing: int = 0
    stopped: bool = False
    logp: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.context) + len(self.emitted)

    def last(self, count: int) -> list[int]:
        """Return the last `count` >= 1 tokens of context and response."""
        if count <= len(self.emitted):  # the usual case; the rest takes time linear in the length
            return self.emitted[-count:]
        return self.everything()[-count:]

    def everything(self) -> list[int]:
        return [*self.context, *self.emitted]

    def num_left(self, limits: Limits) -> int:
        return limits.max_new_tokens - len(self.emitted)

    def extend(self, token_ids: Sequence[int], limits: Limits) -> int:
        """Emit tokens up to the one that ends the sequence; return how many were emitted."""
        for count, token in enumerate(token_ids, start=1):
            self.emitted.append(token)
            self.stopped = token in limits.stop_ids
            if self.stopped:
                return count
        return len(token_ids)

    def is_finished(self, limits: Limits) -> bool:
        return self.stopped or self.num_left(limits) <= 0


def row_seed(index: int, repetition: int = 0) -> int:
    """Return the seed of one prompt's draws in one repetition, unique to both.

    Args:
        index: Of the prompt among all that are decoded, in this call or another, below 2**32.
        repetition: From 0, below 2**32.
    """
    return repetition << 32 | index


def stream_seed(seed: int, row: int) -> int:
    return int(np.random.SeedSequence((seed, row % 2**64)).generate_state(1, np.uint64)[0] >> 1)


def stream(seed: int, row_seeds: Sequence[int], count: int, device: torch.device) -> Tensor:
    """Return draws_BD of one stream; a row's depend only on the stream's seed and its own, not on its neighbours.

    Args:
        seed: Of the stream, >= 0.
        row_seeds: From -2**63 to 2**64 - 1.
    """
    return uniform_draws([stream_seed(seed, row) for row in row_seeds], count).to(device)


def window(draws_BD: Tensor, texts: Sequence[Text], width: int) -> Tensor:
    """Return the draws for the next `width` tokens of each sequence, as [B, K]."""
    starts_B1 = torch.tensor([[len(text.emitted)] for text in texts], device=draws_BD.device)
    indices_B1 = torch.tensor([[text.index] for text in texts], device=draws_BD.device)
    return draws_BD[indices_B1, starts_B1 + torch.arange(width, device=draws_BD.device)]
