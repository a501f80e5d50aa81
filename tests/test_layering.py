"""Imports point one way and in no circle, entry points import nothing heavy, and no module hides a package."""

import ast
import json
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("architectures", "eval", "distill")
LIGHT_MODULES = (
    "widedraft",
    "architectures.families",
    "distill.check",
    "distill.recipe.recipe",
    "eval.config",
)
HEAVY_PACKAGES = ("torch", "transformers", "composer", "datasets", "scipy", "matplotlib", "jinja2")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def imports(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imported_modules(path: Path) -> list[str]:
    found = []
    for node in imports(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append(node.module or "")
    return found


def top_level(module: str) -> str:
    return module.split(".")[0]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in python_files(*LAYERS)}


def modules_imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, lazily or for types alone too."""
    found = set()
    for node in imports(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [part if part in MODULES else str(node.module) for part in parts]
        found |= {name for name in names if name in MODULES}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_packages_import_from_lower_ones_alone(layer):
    below = LAYERS[: LAYERS.index(layer) + 1]
    for name, path in MODULES.items():
        if top_level(name) == layer:
            wrong = {each for each in modules_imported(path) if top_level(each) not in below}
            assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: sorted(modules_imported(path) - {name}) for name, path in MODULES.items()}
    tuple(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("layer", LAYERS)
def test_no_package_imports_the_command_line(layer):
    for path in python_files(layer):
        assert "widedraft" not in {top_level(name) for name in imported_modules(path)}, path


@pytest.mark.parametrize("layer", ["architectures", "eval"])
def test_only_distill_knows_composer(layer):
    for path in python_files(layer):
        assert "composer" not in {top_level(name) for name in imported_modules(path)}, path


def test_our_packages_are_imported_by_their_parts():
    for path in [*python_files(*LAYERS, "tests"), ROOT / "widedraft.py"]:
        for node in imports(path):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & set(LAYERS), f"{path}:{node.lineno}"


def test_no_module_shares_a_name_with_a_package_we_import():
    imported = {top_level(name) for path in python_files(*LAYERS) for name in imported_modules(path)}
    names = set(sys.stdlib_module_names) | (imported - set(LAYERS))
    for path in python_files(*LAYERS):
        assert path.stem == "__init__" or path.stem not in names, f"{path.relative_to(ROOT)} hides a package"


def test_no_module_name_is_used_twice():
    names = sorted(path.stem for path in MODULES.values() if path.stem != "__init__")
    assert names == sorted(set(names))


def test_no_class_name_is_used_twice():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in MODULES.values()]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_recipes_is_no_package():
    assert not list((ROOT / "recipes").rglob("*.py"))
    assert not list((ROOT / "tests").rglob("__init__.py"))


def heavy_imports(modules: tuple[str, ...], heavy: tuple[str, ...]) -> dict[str, list[str]]:
    """Which modules, imported one after the other by one process, bring heavy packages, and which."""
    code = f"""
import importlib, json, sys
found, loaded = {{}}, set()
for module in {modules}:
    importlib.import_module(module)
    brought = {{name for name in {heavy} if name in sys.modules}} - loaded
    loaded |= brought
    found |= {{module: sorted(brought)}} if brought else {{}}
print(json.dumps(found))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(completed.stdout)


def test_light_modules_import_nothing_heavy():
    """One process for all: where none imports a heavy package, each is light by itself."""
    assert heavy_imports(LIGHT_MODULES, HEAVY_PACKAGES) == {}
    assert heavy_imports(("architectures.errors", "distill.recipe.recipe"), ("pydantic",)) == {
        "distill.recipe.recipe": ["pydantic"]
    }
