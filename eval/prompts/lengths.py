"""Prompts that are too long for what is left of a target's context: left out, and told where they are."""

import sys
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from architectures.errors import UserError
from eval.prompts.forms import Prompt
from eval.prompts.rendering import render_prompt
from eval.prompts.rows import source_words


def drop_too_long(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, max_prompt_len: int) -> list[Prompt]:
    """The prompts of at most max_prompt_len tokens; says on stderr how many are longer, and where the first ones are.

    Raises:
        UserError: If all of them are longer.
    """
    fitting: list[Prompt] = []
    too_long: list[str] = []
    for prompt in prompts:
        if len(render_prompt(tokenizer, prompt.messages)) <= max_prompt_len:
            fitting.append(prompt)
        else:
            too_long.append(prompt.source)
    if too_long and not fitting:
        raise UserError(
            f"All {len(prompts)} prompts are longer than {max_prompt_len} tokens ({source_words(too_long)}). "
            "Allow longer ones, or shorten them."
        )
    if too_long:
        print(
            f"{len(too_long)} of {len(prompts)} prompts are longer than {max_prompt_len} tokens and are left out: "
            f"{source_words(too_long)}",
            file=sys.stderr,
        )
    return fitting
