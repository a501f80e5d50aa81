"""Pages that name tests name those there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_docs_name_is_there():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (\w+)\(", sources, re.MULTILINE))
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page)) | set(re.findall(r"\[`(\w+)`\]", page))
    assert len(named) > 40
    assert not named - defined
