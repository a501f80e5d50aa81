"""Pages name tests there are, and show what commands print."""

import re
from pathlib import Path

from architectures.pages.terminal import terminal
from eval.prompts.page import tasks_page

ROOT = Path(__file__).parents[1]


def test_every_test_that_docs_name_is_there():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (\w+)\(", sources, re.MULTILINE))
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page)) | set(re.findall(r"\[`(\w+)`\]", page))
    assert len(named) > 40
    assert not named - defined


def test_the_table_of_tasks_is_the_one_that_is_printed():
    assert f"```\n{terminal(*tasks_page())}\n```" in (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
