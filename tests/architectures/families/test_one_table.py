"""A family is one entry: no file outside architectures/families names one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from architectures.families import FAMILIES
from architectures.families.family import Gguf

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "architectures" / "families"
NAMES = {name for family in FAMILIES.values() for name in (family.model_type, family.architecture)}
TOKENIZER = "llama.cpp's name of a kind of tokenizer, which models of any family have"
CONFIG = "an entry of a published target's config.json, as it stands there"
ALLOWED = {
    ("architectures/gguf_import.py", "gpt2"): TOKENIZER,
    ("architectures/gguf_import.py", "llama"): TOKENIZER,
    ("architectures/gguf_export.py", "gpt2"): TOKENIZER,
    ("architectures/gguf_export.py", "llama"): TOKENIZER,
    ("architectures/gguf_export.py", "qwen2"): TOKENIZER,
    ("architectures/hub.py", "llama"): CONFIG,
    ("architectures/hub.py", "mistral"): CONFIG,
    ("architectures/hub.py", "qwen2"): CONFIG,
    ("distill/hub/card.py", "llama"): "how the hub begins the name of a licence",
}


def names_in(source: str) -> set[str]:
    """Families and their classes that a source text names: strings, parts of f-strings, and keywords as of dict()."""
    nodes = list(ast.walk(ast.parse(source)))
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return (words | {str(node.arg) for node in nodes if isinstance(node, ast.keyword)}) & NAMES


def outside_the_table() -> Iterator[tuple[str, str]]:
    """(file, name) wherever a file outside the table names a family."""
    files = (path for layer in ("architectures", "eval", "distill") for path in (ROOT / layer).rglob("*.py"))
    for path in files:
        if TABLE not in path.parents:
            where = path.relative_to(ROOT).as_posix()
            yield from ((where, name) for name in names_in(path.read_text(encoding="utf-8")))


def test_no_other_file_names_a_family():
    """Make what it says of the family a field of Family, and give that field in the family's entry."""
    assert sorted({*outside_the_table()} - {*ALLOWED}) == []


def test_every_exception_is_still_there():
    assert sorted({*ALLOWED} - {*outside_the_table()}) == []


def test_the_table_itself_is_where_families_are_named():
    named = {name for path in TABLE.glob("*.py") for name in names_in(path.read_text(encoding="utf-8"))}
    assert named == NAMES


def test_the_page_says_of_every_family_what_can_be_cut():
    page = (ROOT / "docs" / "prune.md").read_text(encoding="utf-8")
    table = page.split("| `model_type` | ")[1].split("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.strip().splitlines()[2:]]
    only_layers = {name: "layers only" in cut for names, cut in rows for name in re.findall("`(.+?)`", names)}
    assert only_layers == {name: bool(family.no_width) for name, family in FAMILIES.items()}


def test_engines_without_a_head_are_engines_that_load_the_family():
    for family in FAMILIES.values():
        assert {*family.head_is_embedding} <= {*family.engines}


def test_a_family_becomes_a_gguf_file_or_says_why_not():
    for family in FAMILIES.values():
        if family.gguf is not None:
            assert "llama.cpp" in family.engines


def test_files_of_one_architecture_have_one_row_order():
    """An import undoes the order of the family it becomes, whichever family was exported."""
    orders: dict[str, set[bool]] = {}
    for gguf in (family.gguf for family in FAMILIES.values()):
        if isinstance(gguf, Gguf):
            orders.setdefault(gguf.name, set()).add(gguf.own_row_order)
    assert all(len(order) == 1 for order in orders.values())
    assert {name for name, order in orders.items() if True in order} == {"llama", "smollm3", "granite"}
