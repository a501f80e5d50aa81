"""Pages name tests there are, and show what commands print."""

import re
from pathlib import Path

import pytest

from architectures.pages.terminal import terminal
from eval.prompts.page import tasks_page

ROOT = Path(__file__).parents[1]
PAGES = [Path("README.md"), *sorted(page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md"))]

GENERATED = re.compile(
    r"^<!-- [^\n]*(?:begin -->|written by)[^\n]*$.*?^<!-- [^\n]*end[^\n]*-->$", re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def test_every_test_that_docs_name_is_there():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (\w+)\(", sources, re.MULTILINE))
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page)) | set(re.findall(r"\[`(\w+)`\]", page))
    assert len(named) > 40
    assert not named - defined


def test_the_table_of_tasks_is_the_one_that_is_printed():
    assert f"```\n{terminal(*tasks_page())}\n```" in (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_prose_is_narrower_than_120_characters(page):
    """Tables, code and what commands write into a page are as wide as they are."""
    long = [line for line in prose(page) if len(line) >= 120]
    assert not long


def prose(page):
    """The lines of a page that people write as text: no code, no table, nothing between the marks of a generator."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for outside in (GENERATED, FENCED):
        text = outside.sub("", text)
    return [line for line in text.split("\n") if not line.lstrip().startswith("|") and not line.startswith("    ")]
