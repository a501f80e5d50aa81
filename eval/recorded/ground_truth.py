"""Answers of a target as text: blocks `tensor([[ids]])`, one a prompt, generated tokens only. No torch.

Source: the ground truth that the demonstration of Yan et al. 2024, "Decoding Speculative Decoding" (arXiv 2402.01528),
replays in place of a target. Its answers are greedy, and its prompts are JSON lines {"prompt": text} of the same count.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from architectures.files.atomic import write_text
from eval.recorded.brackets import KEYWORDS, read_bracketed

BLOCK = re.compile(rf"tensor\(\[\[(?P<body>[^\[\]()]*)\]\]{KEYWORDS}\)")
OPENING = "tensor([["
LINE_CHARS = 80  # what torch breaks lines at


def read_ground_truth(path: Path, *, vocab_size: int | None = None) -> list[tuple[int, ...]]:
    """The token ids of every block.

    Args:
        path: The file; a block may run over many lines, and may name a device or number type.
        vocab_size: Ids must be smaller; None where no model has to know them.

    Raises:
        UserError: If the file is no such file; the message names file, line and block.
    """
    largest = None if vocab_size is None else vocab_size - 1
    limit = f"the draft's vocab_size is {vocab_size}"
    blocks = read_bracketed(path, BLOCK, noun="block", example="tensor([[518, 799, 2]]), one row of ids")
    return [block.numbers(largest=largest, limit=limit) for block in blocks]


def write_ground_truth(answers: Sequence[Sequence[int]], path: Path) -> None:
    """Write answers as blocks, whole or not at all."""
    write_text("".join(f"{block_text(answer)}\n" for answer in answers), path)


def block_text(answer_ids: Sequence[int]) -> str:
    """One block as torch prints a tensor [1, T] of whole numbers, however long; equal to it up to a thousand tokens."""
    width = max(len(str(token)) for token in answer_ids)
    words = [str(token).rjust(width) for token in answer_ids]
    a_line = max(1, (LINE_CHARS - len(OPENING) + 1) // (width + len(", ")))
    lines = [", ".join(words[start : start + a_line]) for start in range(0, len(words), a_line)]
    return OPENING + (",\n" + " " * len(OPENING)).join(lines) + "]])"
