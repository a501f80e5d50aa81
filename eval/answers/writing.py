"""Who writes the shards of a folder of answers, and the loop that has them written."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from architectures.progress.track import Advance, progress
from architectures.sharing import ALONE, Share
from eval.answers.asked_turns import Turn, num_turns
from eval.answers.traces import DecodingSettings, Trace

Missing = Sequence[tuple[Path, Sequence[Turn]]]  # shards that are not there, and what each of them asks


class Writer(Protocol):
    """What writes the shards of one name; of several processes each has one, and all call its methods alike."""

    advance: Advance

    @property
    def taken(self) -> Set[int]: ...

    def mine(self, missing: Sequence[Path]) -> Sequence[Path]:
        """Those that this process writes."""
        ...

    def work_of(self, missing: Missing) -> float:
        """The work of some shards, in any unit; told by `advance` but for answers that are taken."""
        ...

    def write_all(self, missing: Missing) -> Iterator[Trace]: ...


class Kind(Protocol):
    """A kind of Writer: a class, or an engine that is open.

    Attributes:
        draws: How sampled tokens follow from seeds.
    """

    @property
    def draws(self) -> str: ...

    def __call__(
        self,
        target: Path,
        tokenizer: PreTrainedTokenizerBase,
        settings: DecodingSettings,
        *,
        name: str,
        earlier: Mapping[tuple[int, ...], Trace] | None = None,
        share: Share = ALONE,
    ) -> Writer: ...


def write_missing(missing: Missing, answerer: Writer, *, name: str, share: Share = ALONE) -> None:
    """Write this process's shards under a progress bar.

    When all processes have written theirs, lines say how many answers there are and how fast it went.
    """
    start_s = time.monotonic()
    total = sum(num_turns(turns) for _, turns in missing)
    each = answerer.write_all(missing)
    written = [0, 0]  # answers and their tokens
    whole = answerer.work_of(missing)
    with progress(f"{name} answers{share.words}", total=total, whole=whole) as answerer.advance:
        for trace in each:
            is_taken = trace.id in answerer.taken
            answerer.advance(whole / total if is_taken else 0)  # else its batch counts the steps that it takes
            if not is_taken:
                written = [written[0] + 1, written[1] + len(trace.answer_ids)]
    taken, answers, tokens = map(sum, zip(*share.exchange((len(answerer.taken), *written)), strict=True))
    if taken:
        print(f"{name}: {taken} answers taken from earlier ones", file=sys.stderr)
    if answers:
        rate = tokens / (time.monotonic() - start_s)
        print(f"{name}: {answers} answers, {tokens} tokens, {rate:.0f} tokens/s", file=sys.stderr)
