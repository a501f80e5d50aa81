"""Commands as error messages name them. No torch."""

import shlex


def command_of(stage: str, *flags: str) -> str:
    """A command on a recipe, in backticks."""
    return f"`{shlex.join(['widedraft', stage, 'RECIPE', *flags])}`"
