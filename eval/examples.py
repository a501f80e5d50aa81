"""A few texts of wall-clock decoding with the writer of each token: examples.json next to a scorecard, for reports."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter
from transformers import PreTrainedTokenizerBase

from architectures.files.reading import read_typed
from eval.answers.traces import Trace
from eval.decoding.texts import Decoded
from eval.scorecard_schema import Record, write_record

Writer = Literal["target", "accepted", "corrected", "bonus"]
FORMAT = "widedraft.examples/2"
NUM_EXAMPLES = 4
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # how a tokenizer decodes the first bytes of a character


class Example(Record):
    """One text: where its prompt came from, the last message, and the response in pieces, each with its writer."""

    source: str
    category: str | None
    prompt: str
    pieces: tuple[tuple[str, Writer], ...]


class Examples(Record):
    """The file; fingerprints name its models."""

    format: Literal["widedraft.examples/2"] = FORMAT
    target: str
    draft: str
    examples: tuple[Example, ...]


def write_examples(
    path: Path,
    traces: Sequence[Trace],
    decoded: Sequence[Decoded],
    tokenizer: PreTrainedTokenizerBase,
    *,
    target: str,
    draft: str,
) -> None:
    """Write some of the texts that were decoded with a draft.

    Args:
        path: The file, replaced if it is there.
        traces: Their prompts.
        decoded: The texts, in the same order.
        tokenizer: Of both models.
        target: Its fingerprint.
        draft: Its fingerprint.
    """
    examples = []
    for index in chosen_indices([trace.category for trace in traces], NUM_EXAMPLES):
        trace, text = traces[index], decoded[index]
        pieces = spans(tokenizer, text.token_ids, writers_of_rounds(text))
        prompt = trace.messages[-1]["content"] if trace.messages else ""
        examples.append(Example(source=trace.source, category=trace.category, prompt=prompt, pieces=tuple(pieces)))
    write_record(Examples(target=target, draft=draft, examples=tuple(examples)), path)


def read_examples(path: Path) -> Examples:
    """The texts in a file.

    Raises:
        UserError: If it is no such file; names it and the field.
    """
    return read_typed(path, TypeAdapter(Examples), "Delete the file, or run `widedraft eval` again.")


def chosen_indices(categories: Sequence[str | None], most: int) -> list[int]:
    """Indices of the first prompt of every category, then of the second of each, and so on; at most `most`."""
    seen: Counter[str | None] = Counter()
    turns = []
    for index, category in enumerate(categories):
        turns.append((seen[category], index))
        seen[category] += 1
    return sorted(index for _, index in sorted(turns)[:most])


def writers_of_rounds(text: Decoded) -> list[Writer]:
    """Who wrote each token of a text, by its verification steps; a stop token that ends it counts as the target's."""
    writers: list[Writer] = []
    for number, round_ in enumerate(text.rounds, start=1):
        ends = text.stopped and number == len(text.rounds)
        own: Writer = "target" if ends else "corrected" if round_.accepted < round_.proposed else "bonus"
        accepted: list[Writer] = ["accepted"] * round_.accepted
        writers += accepted
        writers.append(own)
    return writers


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
