"""Matched tokens of every round as text: after each round one line `[total per row]`. No torch.

Source: the file that the demonstration of Yan et al. 2024, "Decoding Speculative Decoding" (arXiv 2402.01528), writes.
Matched tokens are the accepted ones and the target's own; a total counts them from the beginning of a prompt. Prompts
are decoded in batches of one row a prompt. A batch ends with the first round after which every row has at least
`tokens - lookahead - 2` of its answer; the rounds after that are never run. The file does not say where a batch ends.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from architectures.files.atomic import write_text
from eval.recorded.brackets import KEYWORDS, Bracketed, read_bracketed

ROUND = re.compile(rf"(?P<wrapped>tensor\()?\[(?P<body>[^\[\]()]*)\](?(wrapped){KEYWORDS}\))")
REMEDY = "Give this file's lookahead and answers."


@dataclass(frozen=True)
class Round:
    """Totals of the rows of a batch after one round, and the piece of the file that says so."""

    piece: Bracketed
    totals: tuple[int, ...]


@dataclass(frozen=True)
class Matched:
    """Matched tokens of rounds, prompt by prompt.

    Attributes:
        prompts: Of each prompt, the matched tokens of each round; none where its answer was too short for a round.
        doubtful_lines: Lines at which a prompt may have begun that nothing tells from a further round.
        most_hidden: Matched tokens that are not counted if one began at all of them; None where nothing limits them.
    """

    prompts: tuple[tuple[int, ...], ...]
    doubtful_lines: tuple[int, ...] = ()
    most_hidden: int | None = 0

    @property
    def num_rounds(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_tokens(self) -> int:
        """Matched tokens of all prompts."""
        return sum(map(sum, self.prompts))

    def per_prompt(self) -> list[float | None]:
        """Matched tokens a round of each prompt; None where it had no round."""
        return [sum(matched) / len(matched) if matched else None for matched in self.prompts]

    def per_data_set(self) -> float:
        """Matched tokens a round over all rounds; the least they can be if there are doubtful lines."""
        return self.num_tokens / self.num_rounds

    def highest_per_data_set(self) -> float | None:
        """The most they can be; None where nothing limits them."""
        return None if self.most_hidden is None else (self.num_tokens + self.most_hidden) / self.num_rounds


def read_rounds(path: Path) -> list[Round]:
    """The rounds of a file, all of one batch size.

    Raises:
        UserError: If the file is no such file; the message names file, line and round.
    """
    pieces = read_bracketed(path, ROUND, noun="round", example="[3], or [3, 5] for a batch of two")
    rounds = [Round(piece, piece.numbers()) for piece in pieces]
    for round_ in rounds:
        if len(round_.totals) != len(rounds[0].totals):
            raise round_.piece.mistake(
                f"has {len(round_.totals)} rows, but the first has {len(rounds[0].totals)}",
                "Give one file a batch size.",
            )
    return rounds


def match_with_answers(rounds: Sequence[Round], lengths: Sequence[int], *, lookahead: int) -> Matched:
    """Matched tokens where the length of every answer is known, and with it where each prompt ends.

    Args:
        rounds: Of a file.
        lengths: Tokens of the answers, in the order of the prompts; answers behind the last round are left out.
        lookahead: Draft tokens a round proposed.

    Raises:
        UserError: If the rounds cannot be those of such answers.
    """
    batch_size = len(rounds[0].totals)
    prompts: list[tuple[int, ...]] = []
    start = 0
    for first in range(0, len(lengths) - batch_size + 1, batch_size):
        if start == len(rounds):
            break
        enough = batch_length(lengths, first, rounds[start]) - lookahead - 2
        end = start if enough <= 0 else end_of_batch(rounds, start, enough=enough, prompt=first + 1)
        prompts += matched_in_batch(rounds[start:end], batch_size, lookahead)
        start = end
    if start < len(rounds):
        raise rounds[start].piece.mistake(
            f"begins a prompt behind the last that is decoded of {len(lengths)} answers",
            "The script appends to its file: keep one run of it, or give the answers it was made with.",
        )
    return Matched(tuple(prompts))


def match_by_totals(rounds: Sequence[Round], *, lookahead: int | None = None) -> Matched:
    """Matched tokens where nothing but the file is known: a prompt begins where the total of a row does not rise.

    A prompt whose first totals are all above those before it cannot be told from a further round. The lines where that
    is possible are `doubtful_lines`: those where no total is above lookahead + 1, or all of them without a lookahead.

    Raises:
        UserError: If a round matches more tokens than the lookahead allows.
    """
    starts = [0, *(i for i in range(1, len(rounds)) if not rises(rounds[i - 1], rounds[i]))]
    most = None if lookahead is None else lookahead + 1
    doubtful = [
        i for i in range(len(rounds)) if i not in set(starts) and (most is None or max(rounds[i].totals) <= most)
    ]
    batch_size = len(rounds[0].totals)
    batches = [rounds[start:end] for start, end in pairwise([*starts, len(rounds)])]
    hidden = sum(sum(rounds[i - 1].totals) for i in doubtful)
    return Matched(
        prompts=tuple(row for batch in batches for row in matched_in_batch(batch, batch_size, lookahead)),
        doubtful_lines=tuple(rounds[i].piece.line for i in doubtful),
        most_hidden=None if doubtful and lookahead is None else hidden,
    )


def write_rounds(prompts: Sequence[Sequence[int]], path: Path) -> None:
    """Write the totals after each round, of one prompt after another, as batches of one; whole or not at all."""
    write_text("".join(f"[{total}]\n" for totals in prompts for total in totals), path)


def matched_lines(matched: Matched, *, num_answers: int | None = None) -> str:
    """The averages a person reads, those of every prompt first."""
    means = ["no round" if mean is None else f"{mean:.2f}" for mean in matched.per_prompt()]
    lines = [
        f"prompt {number}: {mean} ({sum(of_round)} tokens, {len(of_round)} rounds)"
        for number, (mean, of_round) in enumerate(zip(means, matched.prompts, strict=True), start=1)
    ]
    prompts = f"{len(matched.prompts)}{'' if num_answers is None else f' of {num_answers}'} prompts"
    lines.append(
        f"data set: {matched.per_data_set():.2f} ({matched.num_tokens} tokens, {matched.num_rounds} rounds, {prompts})"
    )
    return "\n".join(["matched tokens a round, the target's own included", *lines, *doubts(matched)])


def doubts(matched: Matched) -> list[str]:
    """What the averages may miss, in words; nothing if they are certain."""
    if not matched.doubtful_lines:
        return []
    highest = matched.highest_per_data_set()
    count = len(matched.doubtful_lines)
    lines = f"line {matched.doubtful_lines[0]}" + (f" and {count - 1} more" if count > 1 else "")
    bound = "give --lookahead to bound it" if highest is None else f"at most {highest:.2f}"
    return [
        (
            f"NOT CERTAIN: at {lines} a prompt may begin whose first total is above the total before it. If one does, "
            f"it is counted with the prompt before it, and the data set's average is higher ({bound}). Give answers "
            "with --recorded to know."
        )
    ]


def batch_length(lengths: Sequence[int], first: int, batch: Round) -> int:
    """The one length of the answers that a batch, which begins with this round, has from the first on."""
    batch_size = len(batch.totals)
    distinct = sorted(set(lengths[first : first + batch_size]))
    if len(distinct) > 1:
        raise batch.piece.mistake(
            f"begins a batch of {batch_size} prompts, but their answers have {distinct} tokens, not one length",
            REMEDY,
        )
    return distinct[0]


def end_of_batch(rounds: Sequence[Round], start: int, *, enough: int, prompt: int) -> int:
    """The index after the first round at which every row has enough tokens."""
    goes_on = f"but prompt {prompt}, begun at line {rounds[start].piece.line}, goes on until {enough} tokens"
    for index in range(start, len(rounds)):
        if index > start and not rises(rounds[index - 1], rounds[index]):
            raise rounds[index].piece.mistake(f"begins a prompt, {goes_on}", REMEDY)
        if min(rounds[index].totals) >= enough:
            return index + 1
    raise rounds[-1].piece.mistake(
        f"is the last, {goes_on}",
        "If the file was cut short, delete the lines of this prompt, else give this file's lookahead and answers.",
    )


def matched_in_batch(rounds: Sequence[Round], batch_size: int, lookahead: int | None) -> list[tuple[int, ...]]:
    """The matched tokens of each row of a batch, round by round."""
    before = (0,) * batch_size
    matched: list[tuple[int, ...]] = []
    for round_ in rounds:
        matched.append(tuple(total - earlier for total, earlier in zip(round_.totals, before, strict=True)))
        if min(matched[-1]) < 1 or (lookahead is not None and max(matched[-1]) > lookahead + 1):
            most = "or more" if lookahead is None else f"to lookahead + 1 = {lookahead + 1}"
            raise round_.piece.mistake(
                f"goes from {list(before)} to {list(round_.totals)}, but a round matches 1 {most} tokens",
                REMEDY,
            )
        before = round_.totals
    return list(zip(*matched, strict=True)) if matched else [()] * batch_size


def rises(before: Round, after: Round) -> bool:
    """Whether every total is above the one before it, as within a prompt."""
    return all(total > earlier for earlier, total in zip(before.totals, after.totals, strict=True))
