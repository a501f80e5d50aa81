"""README and docs name commands, flags and recipe keys that there are."""

import argparse
import re
from pathlib import Path
from textwrap import indent

import pytest

from architectures.settings import add_flags, known_keys, schema_of
from distill.recipe.recipe import Recipe
from widedraft import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = [path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]]
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^ {4,}widedraft .*$|`widedraft [^`]+`", re.MULTILINE)
COMMAND = re.compile(r"widedraft ([a-z][a-z-]*)((?: +[^\s#|;`&]+)*)")
KEY = re.compile(r"`((?:target|architecture|data|distill|text|eval|export)(?:\.\w+(?:\[\d*\])?)+)[`=]")


@pytest.mark.parametrize("page", sorted(PAGES), ids=str)
def test_every_command_has_the_flags_that_a_page_gives_it(page):
    assert not unknown_flags(text_of(page))


@pytest.mark.parametrize("page", sorted(PAGES), ids=str)
def test_every_key_of_a_page_is_one_of_recipes(page):
    assert not unknown_keys(text_of(page))


def test_what_is_no_command_flag_or_key_is_seen():
    text = "    widedraft sped --target A\n    widedraft benchmark --drafts B\n\n`widedraft report --plots`"
    text += " `eval.lookahed=4`"
    assert unknown_flags(text) == ["sped", "benchmark --drafts", "report --plots"]
    assert unknown_keys(text) == ["eval.lookahed"]


def text_of(page):
    """A page with joined lines; fenced code is indented, so that its lines differ from those of prose."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    return FENCED.sub(lambda block: indent(block[0], " " * 4), text)


def unknown_flags(text):
    """Words after `widedraft` that are no stage of it, and flags that their stage does not have."""
    unknown = []
    for name, words in (each for code in CODE.findall(text) for each in COMMAND.findall(" ".join(code.split()))):
        flags = flags_of(name) if name in COMMANDS else None
        unknown += [name] if flags is None else [f"{name} {flag}" for flag in flags_in(words) if flag not in flags]
    return unknown


def flags_in(words):
    return re.findall(r"(?<!\S)--[a-z-]+", words)


def flags_of(stage):
    parser = argparse.ArgumentParser()
    add_flags(parser, COMMANDS[stage].settings)
    return set(re.findall(r"(?<![\w-])--[a-z-]+", parser.format_help()))


def unknown_keys(text):
    """Dotted names below a section of recipes that are neither its keys nor rooms of the code."""
    keys = {re.sub(r"\[\d*\]", "", key) for key in known_keys(schema_of(Recipe))}
    named = [re.sub(r"\[\d*\]", "", key) for key in KEY.findall(text)]
    return [key for key in named if key not in keys and not is_code(key)]


def is_code(name):
    """Whether a dotted name is that of a room, a file or what a file holds."""
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists() or path.parent.with_suffix(".py").exists()
