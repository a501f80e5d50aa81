"""The recipes that `widedraft recipes` lists: what each makes of which target, and what it costs, from its header."""

from pathlib import Path

import yaml

from architectures.shipped import shipped_recipes
from architectures.tables import Block, Section, facts
from distill.shipped_recipes.header import NO_LABEL, first_sentence, paragraph

HINT = (
    "`widedraft recipes NAME` writes one of them, with its prompts, into recipes/ of the working folder. "
    "Begin with quickstart."
)


def recipes_page() -> list[Block]:
    """Every recipe that came with this installation."""
    return [*(recipe_section(name, file) for name, file in shipped_recipes().items()), HINT]


def recipe_section(name: str, file: Path) -> Section:
    """What a recipe's header says of it."""
    text = file.read_text(encoding="utf-8")
    pairs = [
        ("target", str(yaml.safe_load(text)["target"]["path"])),
        ("draft", first_sentence(paragraph(text, NO_LABEL))),
        ("hardware", paragraph(text, "Hardware")),
        ("hours", paragraph(text, "Hours")),
    ]
    return Section(name, [facts(pairs)])
