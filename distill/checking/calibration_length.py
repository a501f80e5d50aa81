"""Whether the text that scores are computed on is long enough, told before any model is loaded. No torch."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from architectures.checkpoints.fingerprint import TOKENIZER_SETTINGS, chat_template, read_json_file
from architectures.draft_vocabulary.tokens import TOKENIZER
from architectures.errors import UserError
from architectures.importance.calibration_text import calibration_ids, read_text, tokens_needed
from architectures.pruning.plan import needed_scores
from architectures.shapes.shape import Shape
from distill.data.conversations import Conversation
from distill.estimates.vocabulary_coverage import target_at_hand
from distill.recipe.recipe import Recipe
from distill.run.run import Run
from eval.prompts import Prompt, load_prompts
from eval.tasks import PromptSource

Rows = Sequence[Prompt | Conversation]
Encode = Callable[[str], list[int]]
TAG = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)  # of a chat template
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
SPECIAL_TOKENS = 2  # where there is no template: at both ends


def look_for_short_calibration(recipe: Recipe, source: Shape, sources: Sequence[Rows | None]) -> str | None:
    """What could not be seen of the calibration text; None where it is long enough, or needed no more.

    Args:
        recipe: That is checked.
        source: Shape of what is cut.
        sources: The rows of each of data.prompts; None of a data set that is not opened.

    Raises:
        UserError: If the text is surely too short.
    """
    run, wanted = Run.of(recipe), recipe.architecture
    if wanted.plan is not None or not needed_scores(source, wanted) or run.scores.is_finished or run.init.is_finished:
        return None
    text, folder = wanted.calibration.text, target_at_hand(run)
    encode = None if folder is None else encoder_of(folder)
    if text is not None and not text.endswith(".jsonl"):
        return look_at_file(run, Path(text), encode)
    rows = sources if text is None else [load_prompts([PromptSource(path=text)])]
    if any(each is None for each in rows) or (text is None and recipe.data.self_written_prompts):
        return f"whether the prompts have {needed_words(run)}: they are not here yet"
    return look_at_prompts(run, [row for each in rows for row in each or ()], folder, encode)


def look_at_file(run: Run, file: Path, encode: Encode | None) -> str | None:
    """The same of a text file; without a tokenizer it has a token for each byte at most."""
    require_enough(run, read_text(file), encode or bytes_of, f"{file}: the calibration text has")
    return None if encode else f"whether {file} has {needed_words(run)}: the target's tokenizer is not here"


def look_at_prompts(run: Run, rows: Rows, folder: Path | None, encode: Encode | None) -> str | None:
    """The same of prompts, to which the target's chat template adds at most what it holds for each message."""
    unseen = f"whether {len(rows)} prompts have {needed_words(run)}"
    if encode is None or folder is None:
        return f"{unseen}: the target's tokenizer is not here"
    texts = ["\n\n".join(message["content"] for message in row.messages) for row in rows]
    most = [len(row.messages) * template_tokens(folder, encode) for row in rows]
    framed = dict(zip(texts, most, strict=True))
    words = f"architecture.calibration: {len(rows)} prompts in the target's chat template have at most"
    require_enough(run, texts, lambda text: [*encode(text), *[0] * framed[text]], words)
    try:
        require_enough(run, texts, encode, words)
    except UserError:
        return f"{unseen} in the target's chat template: by their words alone they have fewer"
    return None


def require_enough(run: Run, texts: Iterable[str], encode: Encode, named: str) -> None:
    """Raise UserError for texts with fewer tokens than the recipe asks for."""
    calibration = run.recipe.architecture.calibration
    calibration_ids(texts, encode, 0, tokens=calibration.tokens, sequence_len=calibration.sequence_len, named=named)


def needed_words(run: Run) -> str:
    calibration = run.recipe.architecture.calibration
    needed = tokens_needed(calibration.tokens, calibration.sequence_len)
    return f"the {needed:,} tokens of architecture.calibration"


def template_tokens(folder: Path, encode: Encode) -> int:
    """At most what a chat template adds to a message: everything that stands in it and is no name or operator."""
    template = chat_template(folder, read_json_file(folder / TOKENIZER_SETTINGS).get("chat_template"))
    if not template:
        return SPECIAL_TOKENS
    text = template if isinstance(template, str) else json.dumps(template)
    quoted = [word for tag in TAG.findall(text) for word in QUOTED.findall(tag)]
    return SPECIAL_TOKENS + sum(len(encode(part)) for part in (*TAG.split(text), *quoted))


def encoder_of(folder: Path) -> Encode:
    """What makes ids of a text as the tokenizer of a checkpoint folder does."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def bytes_of(text: str) -> list[int]:
    return list(text.encode())
