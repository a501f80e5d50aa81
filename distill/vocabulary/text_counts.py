"""How often the text of a recipe holds each token id, by domain. Imports torch and Composer only when it counts."""

from collections import Counter
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from torch import Tensor

    from distill.recipe.sections.text import TextConfig
    from distill.vocabulary.answer_counts import Counts

TEXT_TOKENS = 1_000_000  # counted: a token that occurs once in 100 thousand is then seen ten times


def id_counts_in_text(text: "TextConfig", target: Path, *, seed: int) -> "Counts":
    """The counts of the first TEXT_TOKENS that a training on section text reads, in the mixture it begins with.

    The same sequences in the same order, held-out ones left out; fewer where every domain was read once before that.

    Args:
        text: What is read.
        target: Folder of the tokenizer.
        seed: Of the order.

    Raises:
        UserError: If a text cannot be read, or is too short.
    """
    from distill.text.mixture import text_loader
    from distill.text.streams import Share
    from eval.models.loading import load_tokenizer

    _, sequences = text_loader(text, load_tokenizer(target), batch_size=1, seed=seed, share=Share())
    counts: Counts = {name: Counter() for name in sequences.names}
    for number, sample in enumerate(sequences, start=1):
        counts[sequences.names[int(sample["domain"])]].update(cast("Tensor", sample["input_ids"]).tolist())
        read_once = all(stream.epoch for stream in sequences.streams.values())
        if read_once or number == ceil(TEXT_TOKENS / text.max_seq_len):
            break
    return {name: count for name, count in counts.items() if count}
