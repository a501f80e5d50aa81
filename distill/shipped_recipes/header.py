"""The comment that every recipe of ours begins with."""

import re
from collections.abc import Mapping

LABEL = re.compile(r"# ([A-Z][a-z]+): +(.*)")
NO_LABEL = ""  # of the paragraphs before the first labelled one


def header_paragraphs(text: str) -> Mapping[str, list[str]]:
    """The lines of each labelled paragraph of a recipe's header; what stands before them is under NO_LABEL."""
    found: dict[str, list[str]] = {NO_LABEL: []}
    label = NO_LABEL
    for line in text.split("\n\n", 1)[0].splitlines()[1:]:  # the first names the schema
        labelled = LABEL.fullmatch(line)
        label, words = (labelled[1], labelled[2]) if labelled else (label, line.removeprefix("#"))
        found.setdefault(label, []).append(words.strip())
    return found


def paragraph(text: str, label: str) -> str:
    """A paragraph of a header as one line; empty where there is none."""
    return " ".join(filter(None, header_paragraphs(text).get(label, [])))


def first_sentence(words: str) -> str:
    """Up to the first full stop that ends a sentence; "(arXiv 2402.01528)" and "Llama-3.1" end none."""
    return re.split(r"(?<=[.:]) (?=[A-Z])", words, maxsplit=1)[0].removesuffix(":")
