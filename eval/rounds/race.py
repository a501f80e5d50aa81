"""Two ways of decoding one prompt side by side, each by a clock of its own; and who wrote which token.

One of them works at a time: the one whose clock is behind. So neither slows the other, and what is seen at any moment
is what each would show after the same time alone.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from transformers import PreTrainedTokenizerBase

from eval.decoding.batch import Emitted
from eval.decoding.texts import Decoded

Writer = Literal["target", "accepted", "corrected", "bonus"]
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer says of the first bytes of a character


@dataclass
class Runner:
    """One way of decoding, in the middle of it.

    Attributes:
        steps: From eval.decoding.speculative.decode_steps, for one prompt.
        drafts: Whether a draft takes part.
        token_ids: Emitted so far.
        writers: Of each token.
        rounds: Rounds so far.
        spent_s: Seconds it worked.
        decoded: The text, once it is done.
    """

    steps: Iterator[Emitted | tuple[int, Decoded]]
    drafts: bool
    token_ids: list[int] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    rounds: int = 0
    spent_s: float = 0.0
    decoded: Decoded | None = None

    @property
    def is_done(self) -> bool:
        """Whether the text is finished."""
        return self.decoded is not None

    @property
    def rate(self) -> float:
        """Tokens per second so far, the reading of the prompt included; 0 before the first."""
        return len(self.token_ids) / self.spent_s if self.spent_s else 0.0

    @property
    def tau(self) -> float:
        """Tokens per round so far; 0 before the first."""
        return len(self.token_ids) / self.rounds if self.rounds else 0.0

    def advance(self) -> None:
        """Do one step, and note what it added."""
        start_s = time.perf_counter()
        step = next(self.steps)
        self.spent_s += time.perf_counter() - start_s
        if not isinstance(step, Emitted):
            _, self.decoded = step
            return
        self.rounds += 1
        self.token_ids += step.token_ids
        self.writers += writers_of(step, drafts=self.drafts)


def race(*runners: Runner) -> Iterator[None]:
    """Let the runners work in turns until all are done; yields after every step."""
    while unfinished := [runner for runner in runners if not runner.is_done]:
        min(unfinished, key=lambda runner: runner.spent_s).advance()
        yield


def writers_of(step: Emitted, *, drafts: bool) -> list[Writer]:
    """Who wrote each token of a step: the target's own corrects a proposed one, or is a bonus.

    The stop token of a text that ends inside what was kept counts as the target's, and as no correction.
    """
    last: Writer = "target" if not drafts else "corrected" if step.rejected is not None else "bonus"
    accepted: list[Writer] = ["accepted"] * step.accepted
    return [*accepted, last]


def spans(
    tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], writers: Sequence[Writer]
) -> list[tuple[str, Writer]]:
    """The text in pieces, each with its writer; a character of several tokens belongs to its last."""
    pieces: list[tuple[str, Writer]] = []
    shown = ""
    for count, writer in enumerate(writers, start=1):
        text = str(tokenizer.decode(list(token_ids[:count]), clean_up_tokenization_spaces=False))
        if text.endswith(UNFINISHED) and count < len(writers):
            continue
        pieces.append((text[len(shown) :], writer))
        shown = text
    return pieces
