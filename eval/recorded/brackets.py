"""Text files that hold whole numbers in brackets, as torch prints tensors: found one by one, each with its line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from architectures.errors import UserError
from architectures.files.reading import read_text

KEYWORDS = r"(?:,\s*\w+=[^\s,()\[\]]+)*"  # torch says where a tensor lies and, of unusual ones, the number type
NUMBER = re.compile("[0-9]+")
SPACE = re.compile(r"\s*")
CLOSINGS = ("]])", "])", ")", "]")
MAX_CHARS_SHOWN = 40


@dataclass(frozen=True)
class Bracketed:
    """One piece of such a file.

    Attributes:
        path: The file.
        noun: What a piece of this file is called in messages.
        number: Which piece of the file it is, from 1.
        line: The line of the file it begins in, from 1.
        body: What the innermost brackets hold.
    """

    path: Path
    noun: str
    number: int
    line: int
    body: str

    def mistake(self, fact: str, remedy: str, *, line: int | None = None) -> UserError:
        """An error about this piece, at its first line unless another is given."""
        return UserError(f"{self.path}:{line or self.line}: {self.noun} {self.number} {fact}. {remedy}")

    def numbers(self, *, largest: int | None = None, limit: str = "") -> tuple[int, ...]:
        """The whole numbers in the brackets, at least one.

        Args:
            largest: The greatest that is allowed; None allows all.
            limit: What sets it, for the message.

        Raises:
            UserError: If there are none, or something that is no whole number or too large.
        """
        if not self.body.strip():
            raise self.mistake("is empty", "Give it at least one number.")
        numbers, line = [], self.line
        for piece in self.body.split(","):
            at = line + piece[: len(piece) - len(piece.lstrip())].count("\n")
            numbers.append(self.checked(piece.strip(), at))
            if largest is not None and numbers[-1] > largest:
                raise self.mistake(f"holds {numbers[-1]}, but {limit}", "Use the model it was made for.", line=at)
            line += piece.count("\n")
        return tuple(numbers)

    def checked(self, piece: str, line: int) -> int:
        if "..." in piece:
            raise self.mistake(
                "is elided ('...'): torch leaves out the middle of long tensors",
                "Print it whole, after torch.set_printoptions(threshold=10**9).",
                line=line,
            )
        if NUMBER.fullmatch(piece) is None:
            raise self.mistake(
                f"holds {shorten(piece)}, which is no whole number >= 0",
                "Give whole numbers with commas between them.",
                line=line,
            )
        return int(piece)


def read_bracketed(path: Path, pattern: re.Pattern[str], *, noun: str, example: str) -> Iterator[Bracketed]:
    """The pieces of a file, in order; between them there may be blank space alone.

    Args:
        path: A UTF-8 text file.
        pattern: Matches one piece; its group "body" is what the innermost brackets hold, and begins in its first line.
        noun: What a piece is called in messages.
        example: What one looks like, for messages.

    Raises:
        UserError: If the file cannot be read, holds no piece, or something else.
    """
    text = read_text(path)
    number, line, position = 0, 1, 0
    while (start := end_of_space(text, position)) < len(text):
        number += 1
        line += text.count("\n", position, start)
        match = pattern.match(text, start)
        if match is None:
            if is_cut_short(text[start:].strip(), pattern):
                raise UserError(
                    f"{path}:{line}: {noun} {number} is cut short: the file ends within it. Take the whole file, or "
                    f"delete what there is of this {noun}."
                )
            wrong = what_is_wrong(text, start, pattern)
            raise UserError(f"{path}:{line}: {noun} {number} {wrong}. Write it as {example}.")
        yield Bracketed(path, noun, number, line, match["body"])
        line += text.count("\n", start, match.end())
        position = match.end()
    if number == 0:
        raise UserError(f"{path}: holds no {noun}. Write each as {example}.")


def end_of_space(text: str, start: int) -> int:
    """Where the blank space that begins at an offset ends."""
    match = SPACE.match(text, start)
    assert match is not None
    return match.end()


def is_cut_short(rest: str, pattern: re.Pattern[str]) -> bool:
    """Whether the rest of a file is the beginning of one piece, which closing brackets would end."""
    return any(pattern.fullmatch(rest + closing) for closing in CLOSINGS)


def what_is_wrong(text: str, start: int, pattern: re.Pattern[str]) -> str:
    """Why no piece begins here: what stands before the next line with a sound one is looked at."""
    line_ends = (match.end() for match in re.compile(r"\n\s*").finditer(text, start))
    end = next((position for position in line_ends if pattern.match(text, position)), len(text))
    wrong = text[start:end].strip()
    if any(wrong.count(opening) != wrong.count(closing) for opening, closing in ("[]", "()")):
        counts = ", ".join(f"{wrong.count(bracket)} '{bracket}'" for bracket in "[]()")
        return f"has brackets that are not balanced ({counts}): {shorten(wrong)}"
    return f"has another form: {shorten(wrong)}"


def shorten(text: str) -> str:
    """A text as a message shows it."""
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= MAX_CHARS_SHOWN else f"{shown[:MAX_CHARS_SHOWN]}…")
