"""docs/contributing.md lists every file that an addition touches: found by the names of an example of each kind."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
CODE = ("architectures", "eval", "distill")
KINDS = dict(re.findall(r"^## (A \w.*?: .*?)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))


def names_of(heading: str) -> list[str]:
    return re.findall("`(.+?)`", heading)


def listed(body: str) -> set[str]:
    """The files in a kind's table; links to pages are relative to docs."""
    links = re.findall(r"^\| \[.+?\]\((?:\.\./)?(.+?)\) \|", body, re.MULTILINE)
    return {link if (ROOT / link).is_file() else f"docs/{link}" for link in links}


def mentions(file: str, names: list[str]) -> bool:
    text = (ROOT / file).read_text(encoding="utf-8")
    return any(re.search(rf"\b{name}\b", text) for name in names)


def code_files() -> list[str]:
    files = [ROOT / "widedraft.py", *(path for layer in CODE for path in (ROOT / layer).rglob("*.py"))]
    return [path.relative_to(ROOT).as_posix() for path in files]


def amiss(heading: str, body: str) -> set[str]:
    """Code that names an example and is not in its table, and whatever is there and does not name it."""
    names, files = names_of(heading), listed(body)
    unlisted = {file for file in code_files() if mentions(file, names)} - files
    return unlisted | {file for file in files if not mentions(file, names)}


def test_each_kind_of_addition_has_an_example():
    kinds = [heading.split(":")[0] for heading in KINDS]
    assert kinds == ["A loss", "A family", "A task", "A report section", "A command"]


@pytest.mark.parametrize("heading", KINDS)
def test_a_table_lists_the_code_that_names_its_example_and_nothing_else(heading):
    assert not amiss(heading, KINDS[heading])


@pytest.mark.parametrize("heading", KINDS)
def test_a_table_that_lacks_a_file_or_has_one_too_many_is_seen(heading):
    rows = [row for row in KINDS[heading].splitlines() if row.startswith("| [") and ".py)" in row]
    of_code = [row for row in rows if "tests/" not in row]
    assert of_code
    for row in of_code:
        assert amiss(heading, KINDS[heading].replace(row, "")) == listed(row)
    other = "distill/recipe/sections/teacher.py"
    assert amiss(heading, f"{KINDS[heading]}\n| [{other}](../{other}) | nothing |\n") == {other}


@pytest.mark.parametrize("heading", KINDS)
def test_code_that_is_quoted_stands_in_a_file_of_the_table(heading):
    sources = [(ROOT / file).read_text(encoding="utf-8") for file in listed(KINDS[heading])]
    quoted = re.findall(r"```python\n(.*?)```", KINDS[heading], re.DOTALL)
    assert quoted
    assert not [code for code in quoted if not any(code in source for source in sources)]
