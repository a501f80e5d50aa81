"""What is asked of an engine and what it replies, as token ids; and what no honest reply can be."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from architectures.errors import UserError
from eval.answers.token_ids import unknown_id
from eval.decoding.sampling import Sampling

INVISIBLE = str.maketrans("", "", "\ufffd")  # what stands for bytes that are no character yet; engines hold them back


@dataclass(frozen=True)
class Asked:
    """One text that an engine is to write.

    Attributes:
        prompt_ids: As our own rendering has them.
        max_new_tokens: Of the text at most.
        sampling: How tokens are chosen.
        stop_ids: Tokens that end it.
        seed: Of its draws, from 0 to 2**63 - 1; of no account where it is greedy.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    stop_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Reply:
    """What an engine wrote.

    Attributes:
        token_ids: The text, the token that ended it included.
        stopped: Whether the engine says that a token ended it, and not its length.
        text: The same in words without special tokens, where the engine tells.
        num_prompt_tokens: That the engine read, where it tells.
    """

    token_ids: tuple[int, ...]
    stopped: bool
    text: str | None = None
    num_prompt_tokens: int | None = None


@dataclass(frozen=True)
class Served:
    """What an engine says of itself.

    Attributes:
        name: Of the engine, as vllm.
        version: Of it.
        context: Tokens that prompt and answer may have together there; None where it does not tell.
        is_seeded: Whether what it draws follows from the seed of each request.
    """

    name: str
    version: str
    context: int | None = None
    is_seeded: bool = True

    @property
    def words(self) -> str:
        return f"{self.name} {self.version}"


class EngineLostError(UserError):
    """An engine that answered is gone, or refuses to."""


class Server(Protocol):
    """One engine that answers; several threads may ask it at once."""

    @property
    def where(self) -> str: ...

    @property
    def served(self) -> Served: ...

    def ask(self, asked: Asked) -> Reply:
        """Raises EngineLostError."""
        ...

    def rendered(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...] | None:
        """A conversation by the engine's own template, opened for the assistant; None where it cannot be asked."""
        ...


@dataclass(frozen=True)
class Words:
    """What the target's ids mean.

    Attributes:
        tokenizer: Of the target.
        vocab_size: Rows of the target's embedding.
    """

    tokenizer: PreTrainedTokenizerBase
    vocab_size: int


def refuse_impossible(reply: Reply, asked: Asked, words: Words, where: str) -> None:
    """Raise UserError for a reply that the target cannot have written to what was asked."""
    fault = fault_of(reply, asked, words)
    if fault is not None:
        raise UserError(
            f"{where}: {fault}. Its answers are not the target's: serve the target with its own tokenizer and nothing "
            "between it and these requests."
        )


def fault_of(reply: Reply, asked: Asked, words: Words) -> str | None:
    """What is wrong with a reply; None where nothing is."""
    ids = reply.token_ids
    if not ids:
        return "returned no token of an answer"
    if (unknown := unknown_id(ids, words.vocab_size)) is not None:
        return f"returned token id {unknown}, beyond the target's vocabulary of {words.vocab_size}"
    if reply.num_prompt_tokens not in (None, len(asked.prompt_ids)):
        return f"read {reply.num_prompt_tokens} tokens where {len(asked.prompt_ids)} were sent"
    return fault_of_end(reply, asked) or fault_of_text(reply, words.tokenizer)


def fault_of_end(reply: Reply, asked: Asked) -> str | None:
    """What is wrong with where an answer ends."""
    ids, stops = reply.token_ids, frozenset(asked.stop_ids)
    if any(token in stops for token in ids[:-1]):
        return f"wrote on behind a token that ends the target's answers ({named(stops)})"
    if (ids[-1] in stops) != reply.stopped:
        told = "stopped" if reply.stopped else "was cut off"
        return f"says that an answer {told} whose last token is {ids[-1]}; the target ends answers by {named(stops)}"
    if len(ids) > asked.max_new_tokens or (not reply.stopped and len(ids) < asked.max_new_tokens):
        return f"returned {len(ids)} tokens of an answer that may have {asked.max_new_tokens}"
    return None


def named(ids: AbstractSet[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"


def fault_of_text(reply: Reply, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Whether ids and text of a reply are two texts.

    Engines decode piece by piece: white space at the beginning, and characters that are not whole, may be missing.
    """
    if reply.text is None:
        return None
    own = str(tokenizer.decode(list(reply.token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
    if compact(own) == compact(reply.text):
        return None
    return f"returned ids that its text does not have: the ids say {start(own)}, the text {start(reply.text)}"


def compact(text: str) -> str:
    return "".join(text.translate(INVISIBLE).split())


def start(text: str) -> str:
    return f'"{text[:40]}…"' if len(text) > 40 else f'"{text}"'
