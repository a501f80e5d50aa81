"""A few texts of live decoding in pieces, each with who wrote it: examples.json beside a scorecard, for its report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import TypeAdapter
from transformers import PreTrainedTokenizerBase

from architectures.files.atomic import write_json
from architectures.files.typed_file import read_typed
from eval.answers.traces import Trace
from eval.decoding.texts import Decoded
from eval.side_by_side import Writer, spans

Schema = Literal["widedraft.examples/1"]
[SCHEMA] = get_args(Schema)
MOST_EXAMPLES = 4


@dataclass(frozen=True)
class Example:
    """One text.

    Attributes:
        source: The row its prompt came from.
        category: The prompt's, if it has one.
        prompt: What the target was asked last.
        pieces: The answer in order: some characters, and who wrote them.
    """

    source: str
    category: str | None
    prompt: str
    pieces: tuple[tuple[str, Writer], ...]


@dataclass(frozen=True)
class Examples:
    """The file: texts of one pair of models, which their fingerprints tell."""

    schema: Schema
    target: str
    draft: str
    examples: tuple[Example, ...]


FILE = TypeAdapter(Examples)


def write_examples(
    path: Path,
    traces: Sequence[Trace],
    decoded: Sequence[Decoded],
    tokenizer: PreTrainedTokenizerBase,
    *,
    target: str,
    draft: str,
) -> None:
    """Write some of the texts that were decoded with a draft, whole or not at all.

    Args:
        path: The file, replaced if it is there.
        traces: Their prompts.
        decoded: The texts, in the same order.
        tokenizer: Of both models.
        target: Fingerprint of the model that decided.
        draft: Fingerprint of the one that proposed.
    """
    examples = tuple(
        example(traces[index], decoded[index], tokenizer)
        for index in chosen_indices([trace.category for trace in traces], MOST_EXAMPLES)
    )
    write_json(asdict(Examples(SCHEMA, target, draft, examples)), path)


def chosen_indices(categories: Sequence[str | None], most: int) -> list[int]:
    """Indices of the first prompt of every category, then of the second of each, and so on; at most so many."""
    seen: Counter[str | None] = Counter()
    turns = []
    for index, category in enumerate(categories):
        turns.append((seen[category], index))
        seen[category] += 1
    return sorted(index for _, index in sorted(turns)[:most])


def example(trace: Trace, text: Decoded, tokenizer: PreTrainedTokenizerBase) -> Example:
    pieces = spans(tokenizer, text.token_ids, writers_of_rounds(text))
    asked = trace.messages[-1]["content"] if trace.messages else ""
    return Example(trace.source, trace.category, asked, tuple(pieces))


def writers_of_rounds(text: Decoded) -> list[Writer]:
    """Who wrote each token of a text, told by its rounds.

    A round does not say whether the stop token that ends a text was proposed; it is the target's, and no more is said.
    """
    writers: list[Writer] = []
    for number, round_ in enumerate(text.rounds, start=1):
        ends = text.stopped and number == len(text.rounds)
        own: Writer = "target" if ends else "corrected" if round_.accepted < round_.proposed else "bonus"
        accepted: list[Writer] = ["accepted"] * round_.accepted
        writers += accepted
        writers.append(own)
    return writers


def read_examples(path: Path) -> Examples:
    """The texts in a file.

    Raises:
        UserError: If it is no such file; the message names it and the field.
    """
    return read_typed(path, FILE, "Delete the file, or run `widedraft eval` again.")
