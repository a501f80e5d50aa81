"""The longest texts a recipe can come to, held against what the models that read them were made for. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from architectures.errors import UserError
from architectures.shapes.context_length import ContextLength
from distill.recipe.recipe import Recipe

Lengths = Mapping[str, ContextLength | None]  # by the model's folder, as the user names it


@dataclass(frozen=True)
class LongTexts:
    """The longest texts of one kind.

    Attributes:
        tokens: That they come to.
        words: How they come to them, in the recipe's keys.
        key: The one that makes them shorter.
        fixed_tokens: That they have beyond the value of `key`.
        other_key: What makes those fewer; empty where there is nothing.
    """

    tokens: int
    words: str
    key: str
    fixed_tokens: int = 0
    other_key: str = ""


def refuse_long_texts(recipe: Recipe, target: Lengths, drafts: Lengths) -> None:
    """Raise UserError if a text may come to more tokens than a model that reads it was made for.

    Args:
        recipe: Any.
        target: The model that answers.
        drafts: The others, which read its answers.

    Raises:
        UserError: One line for each kind of text and model.
    """
    every_model = [*learned_texts(recipe), scored_texts(recipe)]
    problems = [
        *too_long([*written_texts(recipe), *every_model], target),
        *too_long(every_model, {folder: length for folder, length in drafts.items() if folder not in target}),
    ]
    if problems:
        raise UserError("\n".join(problems))


def written_texts(recipe: Recipe) -> list[LongTexts]:
    """Prompts and the target's answers to them, as `widedraft generate` writes them."""
    prompt, answer = recipe.data.max_seq_len - 1, recipe.data.max_new_tokens
    words = (
        f"data.max_seq_len={prompt + 1} allows prompts of {prompt} tokens, which data.max_new_tokens={answer} makes "
        f"{prompt + answer}"
    )
    return [LongTexts(prompt + answer, words, "data.max_seq_len", answer - 1, "data.max_new_tokens")]


def learned_texts(recipe: Recipe) -> Iterator[LongTexts]:
    """What the draft is trained on, and masks."""
    sections = {"data": recipe.data} if recipe.text is None else {"data": recipe.data, "text": recipe.text}
    for name, section in sections.items():
        key = f"{name}.max_seq_len"
        yield LongTexts(section.max_seq_len, f"{key} is {section.max_seq_len}", key)


def scored_texts(recipe: Recipe) -> LongTexts:
    """Prompts and answers of the scorecard; without tasks the prompts are held-out ones of the data."""
    prompt, answer = recipe.eval.max_prompt_len, recipe.eval.max_new_tokens
    if not recipe.eval.tasks:
        prompt = min(prompt, recipe.data.max_seq_len - 1)
    words = f"eval allows prompts of {prompt} tokens, which eval.max_new_tokens={answer} makes {prompt + answer}"
    return LongTexts(prompt + answer, words, "eval.max_prompt_len", answer, "eval.max_new_tokens")


def too_long(texts: list[LongTexts], models: Lengths) -> Iterator[str]:
    """What is wrong, and what to set; of texts that the same key makes shorter the longest alone."""
    for folder, length in models.items():
        told: set[str] = set()
        for each in texts:
            if length is not None and each.tokens > length.tokens and each.key not in told:
                told.add(each.key)
                yield (
                    f"{each.words}, but {folder} was made for texts of {length.tokens} tokens ({length.origin}). "
                    f"{remedy(each, length.tokens)}"
                )


def remedy(texts: LongTexts, most: int) -> str:
    """What to set so that no text has more than most tokens."""
    value = most - texts.fixed_tokens
    if value < 2:  # the least a sequence may have
        return f"Lower {texts.other_key}." if texts.other_key else "Use another target."
    return f"Set {texts.key} to at most {value}{f', or lower {texts.other_key}' if texts.other_key else ''}."
