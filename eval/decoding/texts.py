"""Texts while they are written: tokens committed so far, when to stop, and what becomes of them.

Shape suffixes used in this file:
    B = rows, D = draws, K = tokens of a round
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
    """When a text ends.

    Attributes:
        max_new_tokens: Its length at most, >= 1.
        stop_ids: Tokens that end it and are its last; may be empty.
    """

    max_new_tokens: int
    stop_ids: AbstractSet[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got max_new_tokens={self.max_new_tokens}.")


@dataclass(frozen=True)
class Seeds:
    """Where random numbers come from: three streams that share nothing.

    Attributes:
        draft: Of the tokens a draft proposes.
        accept: Of whether they are kept.
        target: Of the tokens the target draws; plain decoding uses this stream alone.
    """

    draft: int = 0
    accept: int = 1
    target: int = 2

    @classmethod
    def of(cls, seed: int) -> "Seeds":
        """Three seeds that no other seed makes any of."""
        return cls(3 * seed, 3 * seed + 1, 3 * seed + 2)


DRAWS = "torch.rand by SeedSequence((stream, row))"  # how `stream` draws; folders of sampled texts claim it


@dataclass(frozen=True)
class Round:
    """One draft-then-verify cycle, which emitted accepted + 1 tokens.

    Attributes:
        start: Tokens emitted before it.
        lookahead: Tokens that were asked for.
        proposed: Tokens that were proposed: fewer where the text was to end before as many.
        accepted: Proposed tokens kept; a stop token is the target's own and not among them.
        rows: Texts that were decoded together and share the seconds.
        draft_s: Seconds the draft took, for all rows.
        verify_s: Seconds the target took, likewise.
        looked_up: Whether the text itself proposed, and no model.
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
        """Whether its last token never went through the draft, which kept everything it could be asked for."""
        return not self.looked_up and self.accepted == self.proposed == self.lookahead


@dataclass(frozen=True)
class Speculation:
    """How a draft is used.

    Attributes:
        lookahead: Tokens proposed per round, fewer where the text is to end before.
        rule: One of eval.decoding.sampling.RULES.
        draft_p_min: The draft's confidence (its largest probability at temperature 1) below which it proposes no
            more in this step, in [0, 1]: llama.cpp's `--spec-draft-p-min`; 0 never ends a step early.
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
    """A text and how it came about.

    Attributes:
        token_ids: The emitted tokens, the stop token included if one ended the text.
        rounds: The trace; empty for plain decoding.
        prefill_s: Seconds to read the prompts of the batch, with both models if there are two.
        decode_s: Seconds from then to the last token.
        rule: How tokens were accepted, at temperature 0 by equality whatever was asked for; None for plain decoding.
        stopped: Whether a stop token ended it, and not its length.
        logp: log p of every token, of what it was drawn from; of texts sampled without a draft, else empty.
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
    """One text in the making.

    Attributes:
        index: Of its prompt.
        context: Tokens the decoder has before it emits anything: the prompt, or the start token of an encoder-decoder.
        emitted: What was decided.
        rounds: The trace.
        missing: Tokens but the last that were emitted and never went through the draft.
        stopped: Whether a stop token was emitted.
        logp: As of Decoded.
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
        """Tokens of context and text together."""
        return len(self.context) + len(self.emitted)

    def last(self, count: int) -> list[int]:
        """The last tokens of context and text, at least one."""
        if count <= len(self.emitted):  # mostly so, and what follows takes time with the length of the text
            return self.emitted[-count:]
        return self.everything()[-count:]

    def everything(self) -> list[int]:
        return [*self.context, *self.emitted]

    def num_left(self, limits: Limits) -> int:
        """Tokens that may still be emitted."""
        return limits.max_new_tokens - len(self.emitted)

    def extend(self, token_ids: Sequence[int], limits: Limits) -> int:
        """Emit tokens up to the one that ends the text; returns how many were."""
        for count, token in enumerate(token_ids, start=1):
            self.emitted.append(token)
            self.stopped = token in limits.stop_ids
            if self.stopped:
                return count
        return len(token_ids)

    def is_finished(self, limits: Limits) -> bool:
        """Whether nothing more may be emitted."""
        return self.stopped or self.num_left(limits) <= 0


def row_seed(index: int, repetition: int = 0) -> int:
    """The seed of one prompt's draws in one repetition; no other prompt or repetition has it.

    Args:
        index: Of the prompt among all that are decoded, in this call or another, below 2**32.
        repetition: From 0, below 2**32.
    """
    return repetition << 32 | index


def stream_seed(seed: int, row: int) -> int:
    """The seed of one row's draws in one stream."""
    return int(np.random.SeedSequence((seed, row % 2**64)).generate_state(1, np.uint64)[0] >> 1)


def stream(seed: int, row_seeds: Sequence[int], count: int, device: torch.device) -> Tensor:
    """draws_BD of one stream: a row's depend on the stream's seed and its own alone, not on its neighbours.

    Args:
        seed: Of the stream, >= 0.
        row_seeds: Of each row, from -2**63 to 2**64 - 1.
        count: Draws a row.
        device: Where they are wanted.
    """
    return uniform_draws([stream_seed(seed, row) for row in row_seeds], count).to(device)


def window(draws_BD: Tensor, texts: Sequence[Text], width: int) -> Tensor:
    """The draws for the next `width` tokens of each text, as [B, K]; each text's begin where it stands."""
    starts_B1 = torch.tensor([[len(text.emitted)] for text in texts], device=draws_BD.device)
    indices_B1 = torch.tensor([[text.index] for text in texts], device=draws_BD.device)
    return draws_BD[indices_B1, starts_B1 + torch.arange(width, device=draws_BD.device)]
