"""Questions whose answer is a number, and how that number is read out of a text. Pure; no torch.

Two kinds of them:

    gsm8k            Right if the last number of the text is the one behind "####" in the reference answer (Cobbe et al.
                     2021, "Training Verifiers to Solve Math Word Problems", arXiv 2110.14168).
    multiplication   Three solved products, then two numbers from 1 to 99; right if the first line is their product.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from architectures.errors import UserError
from eval.prompts import Prompt, load_rows, raw_text, task_answer, task_prompt
from eval.tasks import TASKS, PromptSource

SIGN, CURRENCY = "[-\N{MINUS SIGN}]", "[$€£¥]"
NUMBER = re.compile(  # a minus between two terms is none of the second's sign: 10-5 ends in 5, =-5 in -5
    rf"(?:(?<![\w)\]]){SIGN})?{CURRENCY}?(?:(?<={CURRENCY}){SIGN})?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
)
REFERENCE = "####"  # stands before the number in a reference answer of GSM8K
SOLVED = ((7, 12), (31, 4), (60, 25))  # products shown before the one that is asked
SMALLEST, LARGEST = 1, 99


@dataclass(frozen=True)
class Question:
    """What is asked, and the number that answers it."""

    prompt: Prompt
    answer: Decimal


@dataclass(frozen=True)
class Exam:
    """Questions of one kind.

    Attributes:
        name: The kind: "gsm8k" or "multiplication".
        questions: At least one.
        max_new_tokens: Of an answer, where the user names no other length.
        read: The number a text gives as its answer; None if it gives none.
    """

    name: str
    questions: Sequence[Question]
    max_new_tokens: int
    read: Callable[[str], Decimal | None]

    def is_right(self, index: int, text: str) -> bool:
        """Whether a text answers the question of an index."""
        return self.read(text) == self.questions[index].answer


def open_exam(word: str, num_questions: int, *, seed: int) -> Exam:
    """The exam that a word of the command line names: gsm8k, gsm8k=FILE or multiplication.

    Args:
        word: Its name, and perhaps a file of its rows.
        num_questions: Asked at most; a file may have fewer rows.
        seed: Of the numbers to multiply.

    Raises:
        UserError: If there is no such exam, or its rows cannot be read.
    """
    name, separator, path = word.partition("=")
    if name == "gsm8k":
        if separator and not path:
            raise UserError(f"--checks {word}: no file stands after the =. Name one, or leave the = out.")
        source = PromptSource(task="gsm8k", path=path or None, num_prompts=num_questions)
        return Exam(name, load_rows(source, gsm8k_question), 256, last_number)
    if word == "multiplication":
        return Exam(name, multiplication_questions(num_questions, seed=seed), 8, first_line_number)
    near = get_close_matches(name, ("gsm8k", "multiplication"), n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UserError(f"--checks {word}: must be gsm8k, gsm8k=FILE or multiplication.{hint}")


def gsm8k_question(row: Any, where: str) -> Question:
    """A row of GSM8K, whose answer ends in "#### number"."""
    prompt = task_prompt(TASKS["gsm8k"], row, where)
    answer = task_answer(TASKS["gsm8k"], row, where)
    _, mark, last = answer.rpartition(REFERENCE)
    number = whole_number_of(last) if mark else None
    if number is None:
        raise UserError(
            f"{where}: answer must end in a number behind {REFERENCE}, got {answer[-40:]!r}. Mend or delete this row."
        )
    return Question(prompt, number)


def multiplication_questions(count: int, *, seed: int) -> list[Question]:
    """Products of two numbers from 1 to 99, each drawn by itself; the same for the same seed."""
    draws = random.Random(seed)  # noqa: S311 - not for secrets
    pairs = [(draws.randint(SMALLEST, LARGEST), draws.randint(SMALLEST, LARGEST)) for _ in range(count)]
    return [
        Question(Prompt(f"multiplication:{number}", (raw_text(product_prompt(*pair)),)), Decimal(pair[0] * pair[1]))
        for number, pair in enumerate(pairs, start=1)
    ]


def product_prompt(a: int, b: int) -> str:
    """Solved products, a line each, and one to solve; no space at its end, which tokens begin with."""
    return "".join(f"{x} * {y} = {x * y}\n" for x, y in SOLVED) + f"{a} * {b} ="


def last_number(text: str) -> Decimal | None:
    """The last number of a text; commas, signs, decimals and currency signs belong to it."""
    numbers = NUMBER.findall(text)
    return number_of(numbers[-1]) if numbers else None


def first_line_number(text: str) -> Decimal | None:
    """The first line of a text, if it is a number and nothing else."""
    return whole_number_of(text.partition("\n")[0])


def whole_number_of(text: str) -> Decimal | None:
    """A text that is a number and nothing else but white space around it."""
    match = NUMBER.fullmatch(text.strip())
    return number_of(match.group()) if match else None


def number_of(written: str) -> Decimal:
    """The value of a number as NUMBER finds it."""
    return Decimal(re.sub(f"{CURRENCY}|,", "", written).replace("\N{MINUS SIGN}", "-"))
