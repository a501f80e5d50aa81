"""Pages name tests, commands, flags and keys there are, and show what commands print."""

import argparse
import re
import runpy
from functools import cache
from pathlib import Path
from textwrap import indent

import pytest
from markdown_it import MarkdownIt

from architectures.settings import add_flags, known_keys, schema_of
from distill.recipe.recipe import Recipe
from widedraft import COMMANDS

ROOT = Path(__file__).parents[1]
SITE_PAGES = sorted(page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(page.relative_to(ROOT) for page in ROOT.glob("*.md")), *SITE_PAGES]

GENERATED = re.compile(
    r"^<!-- [^\n]*(?:begin -->|written by)[^\n]*$.*?^<!-- [^\n]*end[^\n]*-->$", re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def test_every_test_that_docs_name_is_there():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (\w+)\(", sources, re.MULTILINE))
    page = (ROOT / "docs" / "library_bugs.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page)) | set(re.findall(r"\[`(\w+)`\]", page))
    assert len(named) > 40
    assert not named - defined


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_prose_is_narrower_than_120_characters(page):
    """Tables, code and what commands write into a page are as wide as they are."""
    long = [line for line in prose(page) if len(line) >= 120]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_to_a_file_and_a_heading_in_it(page):
    assert not [link for link in links(page) if not is_there(page, link)]


def test_every_page_stands_once_in_the_sidebar_of_the_site():
    groups = runpy.run_path(str(ROOT / "docs" / "conf.py"))["NAVIGATION"].values()
    listed = sorted(f"docs/{page}.md" for pages in groups for page in pages.values())
    assert listed == sorted(map(str, SITE_PAGES))


@pytest.mark.parametrize("link", ["evaluate.md", "nowhere.md", "evaluate.md#nowhere", "../eval/nowhere.py"])
def test_a_link_that_leads_nowhere_is_seen(link):
    assert is_there(Path("docs/concepts.md"), link) == (link == "evaluate.md")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_table_has_as_many_heads_as_columns(page):
    """Else it is shown as lines of text."""
    assert not [block.content for block in parsed(page) if block.type == "inline" and block.content.startswith("|")]


@pytest.mark.parametrize(
    "file", [path for path in (ROOT / "docs").rglob("*") if path.suffix not in {".md", ""}], ids=lambda path: path.name
)
def test_what_is_no_page_is_small(file):
    """A report of megabytes is made by the command that a page names."""
    assert file.stat().st_size < 100_000


def links(page):
    """What a page links to or shows, but for other sites."""
    spans = [span for block in parsed(page) for span in block.children or [] if span.type in {"link_open", "image"}]
    targets = [str(span.attrs.get("href") or span.attrs.get("src")) for span in spans]
    return [target for target in targets if not target.startswith("https://")]


def is_there(page, link):
    name, _, heading = link.partition("#")
    target = (ROOT / page).parent / name if name else ROOT / page
    return target.exists() and (not heading or heading in anchors(target.resolve().relative_to(ROOT)))


@cache
def anchors(page):
    """Headings of a page as links name them: small letters, hyphens for spaces, a number behind a repeated one."""
    blocks = parsed(page)
    heads = [blocks[place + 1] for place, block in enumerate(blocks) if block.type == "heading_open"]
    slugs = ["".join(span.content for span in head.children or []).lower() for head in heads]
    slugs = [re.sub(r"[^\w\- ]", "", slug).replace(" ", "-") for slug in slugs]
    return {slug + (f"-{before}" if (before := slugs[:place].count(slug)) else "") for place, slug in enumerate(slugs)}


@cache
def parsed(page):
    return MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text(encoding="utf-8"))


def prose(page):
    """The lines of a page that people write as text: no code, no table, nothing between the marks of a generator."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for outside in (GENERATED, FENCED):
        text = outside.sub("", text)
    return [line for line in text.split("\n") if not line.lstrip().startswith("|") and not line.startswith("    ")]


CODE = re.compile(r"^ {4,}widedraft .*$|`widedraft [^`]+`", re.MULTILINE)
COMMAND = re.compile(r"widedraft ([a-z][a-z-]*)((?: +[^\s#|;`&]+)*)")
KEY = re.compile(r"`((?:target|architecture|data|distill|text|eval|export)(?:\.\w+(?:\[\d*\])?)+)[`=]")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_command_has_the_flags_that_a_page_gives_it(page):
    assert not unknown_flags(text_of(page))


@pytest.mark.parametrize("page", PAGES, ids=str)
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
