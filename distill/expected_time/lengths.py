"""How long the texts of a recipe are on average, before any is written. No torch, no tokenizer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distill.data.conversations import Conversation
from distill.estimates.expected_work import Work
from distill.recipe.sections.data import DataConfig
from eval.prompts import TEXT, Message, Prompt
from eval.tasks import TASKS

CHARACTERS_PER_TOKEN = 4  # of English under a vocabulary of 32 thousand entries or more
TEMPLATE_TOKENS = 20  # a chat template's own, of one turn
UNSEEN_PROMPT_TOKENS = 700  # of a data set's conversations, which check does not open
WHOLE_ANSWER_TOKENS = 300  # of a chat answer that nothing cuts off
CUT_ANSWER_SHARE = 0.9  # of data.max_new_tokens, where that is what ends most answers

Row = Prompt | Conversation


@dataclass(frozen=True)
class Lengths:
    """Tokens on average.

    Attributes:
        prompt: Before what is learned or written.
        answer: Learned of a sequence, or written to a prompt.
        words: Where they come from.
    """

    prompt: int
    answer: int
    words: str

    @property
    def whole(self) -> int:
        return self.prompt + self.answer


def mean_lengths(data: DataConfig, work: Work, sources: Sequence[Sequence[Row] | None]) -> Lengths:
    """Of the sequences that are trained on; answers are counted where they are on the disk."""
    rows = [row for source in sources if source is not None for row in source]
    given = [row for row in rows if isinstance(row, Conversation)]
    if work.answers and work.answer_tokens is not None:
        answer, words = round(work.answer_tokens / work.answers), "counted"
    elif given:
        answer, words = mean(learned_tokens(row) for row in given), f"{CHARACTERS_PER_TOKEN} characters a token"
    else:
        most = data.max_new_tokens
        answer, words = continued_text(most) if reads_texts(data) else written_answer(most), "assumed"
    prompt = mean(prompt_tokens(row) for row in rows) if rows else unseen_prompt_tokens(data)
    how = f"{CHARACTERS_PER_TOKEN} characters a token" if rows else "assumed"
    answer = max(1, min(answer, data.longest_answer))
    prompt = max(1, min(prompt, data.max_seq_len - answer))
    return Lengths(prompt, answer, f"answers of {answer} tokens ({words}) to prompts of {prompt} ({how})")


def written_answer(most: int) -> int:
    """Tokens of an answer that the target writes, where so many are allowed."""
    return max(1, min(WHOLE_ANSWER_TOKENS, round(CUT_ANSWER_SHARE * most)))


def continued_text(most: int) -> int:
    """Tokens that the target adds to a text, which, unlike an answer, has no end of its own."""
    return max(1, round(CUT_ANSWER_SHARE * most))


def reads_texts(data: DataConfig) -> bool:
    """Whether every source is a task of texts that are continued as they stand."""
    forms = {None if source.task is None else TASKS[source.task].form for source in data.prompts}
    return forms == {"text"} and not data.self_written_prompts


def unseen_prompt_tokens(data: DataConfig) -> int:
    """Of prompts that check does not open: as much as their tasks read of a text, where these say how much."""
    bounds = [TASKS[source.task].max_characters for source in data.prompts if source.task is not None]
    known = [each // CHARACTERS_PER_TOKEN for each in bounds if each is not None]
    return mean(known) if reads_texts(data) and len(known) == len(data.prompts) else UNSEEN_PROMPT_TOKENS


def prompt_tokens(row: Row) -> int:
    """Of everything that is not learned."""
    answers = set(row.answers) if isinstance(row, Conversation) else set()
    return tokens_of(message for index, message in enumerate(row.messages) if index not in answers)


def learned_tokens(row: Conversation) -> int:
    return tokens_of(row.messages[index] for index in row.answers)


def tokens_of(messages: Iterable[Message]) -> int:
    """Of some messages with what the template puts around them, which is nothing around a text."""
    return sum(
        (0 if message["role"] == TEXT else TEMPLATE_TOKENS) + len(message["content"]) // CHARACTERS_PER_TOKEN
        for message in messages
    )


def mean(counts: Iterable[int]) -> int:
    listed = list(counts)
    return round(sum(listed) / len(listed))
