"""Task accuracy with and without a draft: questions with a numeric answer, decoded greedily both ways.

    gsm8k            Right if the last number of the text is the one after "####" in the reference answer (Cobbe et al.
                     2021, "Training Verifiers to Solve Math Word Problems", arXiv 2110.14168).
    multiplication   Three solved products, then two numbers from 1 to 99; right if the first line is their product.

Wrong answers are the target's own. The check passes if the draft changes no text: each equals plain decoding, or first
differs at a near tie of the target's two best tokens, which one token and several at once may round differently.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from scipy.stats import binomtest

from architectures.console import track
from architectures.errors import UserError
from eval.chat import raw_text
from eval.decoding.kv_cache import Opener, open_sequencer
from eval.decoding.sampling import Decoded, Limits, Speculation
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.lossless import MIN_P, LosslessFinding, Parting, accepted_of, excess_p, find_parting, larger_p
from eval.pair import LoadedPair
from eval.prompts import Prompt, load_rows, task_answer, task_prompt
from eval.tasks import TASKS, PromptSource

SIGN, CURRENCY = "[-\N{MINUS SIGN}]", "[$€£¥]"
NUMBER = re.compile(  # a minus between two terms is not a sign: 10-5 ends in 5, =-5 in -5
    rf"(?:(?<![\w)\]]){SIGN})?{CURRENCY}?(?:(?<={CURRENCY}){SIGN})?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
)
REFERENCE = "####"  # precedes the number in a reference answer of GSM8K
SOLVED = ((7, 12), (31, 4), (60, 25))  # products shown before the question
SMALLEST, LARGEST = 1, 99
CONFIDENCE = 0.95  # of the intervals


@dataclass(frozen=True)
class Question:
    """A prompt, and the number that answers it."""

    prompt: Prompt
    answer: Decimal


@dataclass(frozen=True)
class Benchmark:
    """Questions of one kind.

    Attributes:
        max_new_tokens: Default.
        read: Parses the answer in a response; None if there is none.
    """

    name: str
    questions: Sequence[Question]
    max_new_tokens: int
    read: Callable[[str], Decimal | None]


def load_benchmark(word: str, num_questions: int, *, seed: int) -> Benchmark:
    """Load the questions of gsm8k, gsm8k=FILE or multiplication.

    Args:
        num_questions: Maximum; a file may have fewer rows.
        seed: Of the factors.

    Raises:
        UserError: If there is no such benchmark, or its rows cannot be read.
    """
    name, separator, path = word.partition("=")
    if name == "gsm8k" and bool(separator) == bool(path):
        source = PromptSource(task="gsm8k", path=path or None, num_prompts=num_questions)
        return Benchmark(name, load_rows(source, gsm8k_question), 256, last_number)
    if word == "multiplication":
        return Benchmark(name, multiplication_questions(num_questions, seed=seed), 8, first_line_number)
    raise UserError(f"--accuracy {word}: must be gsm8k, gsm8k=FILE or multiplication.")


def gsm8k_question(row: Any, where: str) -> Question:
    prompt = task_prompt(TASKS["gsm8k"], row, where)
    answer = task_answer(TASKS["gsm8k"], row, where)
    _, mark, last = answer.rpartition(REFERENCE)
    number = parse_number(last) if mark else None
    if number is None:
        raise UserError(
            f"{where}: answer must end with {REFERENCE} and a number, got {answer[-40:]!r}. Fix or delete this row."
        )
    return Question(prompt, number)


def multiplication_questions(count: int, *, seed: int) -> list[Question]:
    """Draw products of two independent numbers from 1 to 99."""
    draws = random.Random(seed)  # noqa: S311 - not for secrets
    pairs = [(draws.randint(SMALLEST, LARGEST), draws.randint(SMALLEST, LARGEST)) for _ in range(count)]
    solved = "".join(f"{x} * {y} = {x * y}\n" for x, y in SOLVED)
    return [  # no trailing space: tokens begin with it
        Question(Prompt(f"multiplication:{number}", (raw_text(f"{solved}{a} * {b} ="),)), Decimal(a * b))
        for number, (a, b) in enumerate(pairs, start=1)
    ]


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text, with its sign; commas and currency symbols are ignored."""
    numbers = NUMBER.findall(text)
    return number_of(numbers[-1]) if numbers else None


def first_line_number(text: str) -> Decimal | None:
    """Return the number on the first line of a text; None if it has anything else."""
    return parse_number(text.partition("\n")[0])


def parse_number(text: str) -> Decimal | None:
    match = NUMBER.fullmatch(text.strip())
    return number_of(match.group()) if match else None


def number_of(written: str) -> Decimal:
    return Decimal(re.sub(f"{CURRENCY}|,", "", written).replace("\N{MINUS SIGN}", "-"))


def check_accuracy(
    pair: LoadedPair,
    benchmark: Benchmark,
    *,
    max_new_tokens: int | None = None,
    speculation: Speculation = Speculation(),  # noqa: B008  # never changes
    batch_size: int = 16,
    opener: Opener = open_sequencer,
) -> LosslessFinding:
    """Decode every question both ways; the finding holds unless the draft changed a text.

    Raises:
        UserError: If a question and its response may exceed a model's context length.
    """
    prompts = [pair.rendered(question.prompt) for question in benchmark.questions]
    limits = Limits(max_new_tokens or benchmark.max_new_tokens, pair.stop_ids)
    pair.require_context(prompts, limits.max_new_tokens)

    plain: list[Decoded] = []
    drafted: list[Decoded] = []
    starts = range(0, len(prompts), batch_size)
    for start in track(starts, description=benchmark.name, total=len(starts)):
        some = prompts[start : start + batch_size]
        plain += plain_decode(pair.target, some, limits=limits, opener=opener)
        drafted += speculative_decode(
            pair.target, pair.draft, some, limits=limits, speculation=speculation, opener=opener
        )
    return compare_answers(pair, benchmark, prompts, plain, drafted, width=speculation.num_speculative_tokens + 1)


def compare_answers(
    pair: LoadedPair,
    benchmark: Benchmark,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Decoded],
    drafted: Sequence[Decoded],
    *,
    width: int,
) -> LosslessFinding:
    """Compare answers and texts; texts that differ are read again by `width` tokens per step."""
    # Right answers, by plain decoding and with the draft.
    answers = [question.answer for question in benchmark.questions]
    right, right_drafted = (
        [benchmark.read(written(pair, text)) == answer for text, answer in zip(texts, answers, strict=True)]
        for texts in (plain, drafted)
    )
    only_plain = sum(own > other for own, other in zip(right, right_drafted, strict=True))
    only_drafted = sum(other > own for own, other in zip(right, right_drafted, strict=True))

    # Texts that differ must do so at a near tie, seldom further than readings differ, and leave the argmax equally
    # often on either side.
    parted = [
        find_parting(pair.target, prompt, own.token_ids, other.token_ids, width=width)
        for prompt, own, other in zip(prompts, plain, drafted, strict=True)
        if own.token_ids != other.token_ids
    ]
    partings = [parting for parting in parted if parting is not None]
    num_tied = sum(parting.is_tie for parting in partings)
    noise = max((parting.noise for parting in partings), default=0.0)
    num_larger = sum(max(parting.short) > noise for parting in partings)
    p_value = min(favour_p(partings), larger_p(num_larger, own=2, measured=1))

    detail = (
        f"accuracy without draft {accuracy_with_interval(right)}; with draft {accuracy_with_interval(right_drafted)}; "
        f"right only without {only_plain}, only with {only_drafted}; texts equal {len(plain) - len(parted)} of "
        f"{len(plain)}, near ties {num_tied}, changed {len(parted) - num_tied}; p = {p_value:.3g}, required: "
        f"{MIN_P:g}; truncated {sum(not text.stopped for text in plain)}; {accepted_of(drafted)}"
    )
    return LosslessFinding(benchmark.name, p_value >= MIN_P and num_tied == len(parted), detail)


def favour_p(parted: Sequence[Parting]) -> float:
    """Return the p-value of texts that leave the argmax only with the draft, if either side is equally likely to."""
    plain, drafted = (sum(parting.leaves(side) for parting in parted) for side in (0, 1))
    return excess_p(drafted, plain)


def written(pair: LoadedPair, text: Decoded) -> str:
    ids = list(text.token_ids)
    return str(pair.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def accuracy_with_interval(right: Sequence[bool]) -> str:
    """Format number and share of right answers with the share's 95 % interval.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the
    American Statistical Association 22. Unlike p ± 1.96 √(p(1 - p)/n) it has a width if none or all are right.
    """
    count, total = sum(right), len(right)
    interval = binomtest(count, total).proportion_ci(CONFIDENCE, method="wilson")
    return f"{count}/{total} = {count / total:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
