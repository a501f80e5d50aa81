"""The longest texts a recipe can come to, held against what the models that read them were made for. No torch."""

from collections.abc import Mapping

from architectures.errors import UserError
from architectures.shapes.context_length import ContextLength
from distill.recipe.recipe import Recipe

Lengths = Mapping[str, ContextLength | None]  # by the model's folder, as the user names it


def refuse_long_texts(recipe: Recipe, target: Lengths, drafts: Lengths) -> None:
    """Raise UserError if a text may come to more tokens than a model that reads it was made for.

    Args:
        recipe: Any.
        target: The model that answers.
        drafts: The others, which read its answers.

    Raises:
        UserError: One line for each kind of text and model.
    """
    data, scoring = recipe.data, recipe.eval

    # What every model reads: training sequences, and texts of the scorecard, whose prompts are by default of the data.
    prompt = scoring.max_prompt_len if scoring.tasks else min(scoring.max_prompt_len, data.max_seq_len - 1)
    read = {"data.max_seq_len": data.max_seq_len}
    if recipe.text is not None:
        read["text.max_seq_len"] = recipe.text.max_seq_len
    read["eval.max_prompt_len + eval.max_new_tokens"] = prompt + scoring.max_new_tokens

    # What only the target reads: the longest prompts of the data with their answers.
    generated = {"data.max_seq_len - 1 + data.max_new_tokens": data.max_seq_len - 1 + data.max_new_tokens}

    models = [(folder, length, {**generated, **read}) for folder, length in target.items()]
    models += [(folder, length, read) for folder, length in drafts.items() if folder not in target]
    problems = [
        f"{keys} is {tokens}, but {folder} was made for texts of {length.tokens} tokens ({length.origin}). Lower it."
        for folder, length, texts in models
        if length is not None
        for keys, tokens in texts.items()
        if tokens > length.tokens
    ]
    if problems:
        raise UserError("\n".join(problems))
