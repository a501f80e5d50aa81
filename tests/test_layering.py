"""The house: imports point one way, light modules stay light, and no module hides a package we import."""

import ast
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("architectures", "eval", "distill")
WORKERS = ROOT / "eval" / "engine_runs" / "workers"
LIGHT_MODULES = (
    "distill.hub.files.early_checks",
    "distill.hub.push.command",
    "distill.hub.push.local_files",
    "distill.hub.push.upload",
    "eval.commands.certify",
    "architectures.shapes.section",
    "architectures.conversion.command",
    "architectures.engines.command",
    "architectures.engines.page",
    "architectures.engines.pair.read_facts",
    "architectures.families",
    "architectures.files.file_hashes",
    "architectures.checkpoints.fingerprint",
    "architectures.gguf.header",
    "architectures.targets.hub_cache",
    "architectures.targets.hub_failures",
    "architectures.checkpoints.manifest",
    "architectures.checkpoints.older_fingerprint",
    "architectures.pruning.plan",
    "architectures.progress.track",
    "architectures.shapes.shape",
    "architectures.targets.target",
    "distill.checking.check",
    "distill.checking.planned_cut",
    "distill.recipe.sections.training",
    "distill.estimates.coverage",
    "distill.expected_time.devices",
    "distill.expected_time.device_figures",
    "distill.commands.recipe_headers",
    "distill.expected_time.page",
    "distill.run.training",
    "distill.run.stage",
    "distill.run.run",
    "distill.formulas.losses",
    "distill.recipe.sections.token_selection",
    "distill.monitoring.flops",
    "distill.run.older_runs",
    "distill.data.packing_rules",
    "distill.commands.preflight",
    "distill.recipe.recipe",
    "distill.stages.scoring_without_recipe",
    "distill.checking.served_shape",
    "distill.stages.running",
    "distill.stages.processes",
    "distill.stages.table",
    "distill.teacher_cache.record",
    "distill.caching.stage",
    "distill.commands.recipe_commands",
    "distill.choose.shapes.settings",
    "distill.choose.shapes.vocabularies",
    "distill.recipe.sections.teacher",
    "distill.recipe.sections.text",
    "distill.estimates.vocabulary_sizes",
    "eval.config",
    "eval.answers.older_answers",
    "eval.profiling.figures",
    "eval.profiling.option",
    "eval.checks.exams",
    "eval.prompts.page",
    "eval.prompts.loading",
    "eval.prompts.rendering",
    "eval.prompts.words",
    "eval.streams.stream",
    "eval.shift.command",
    "eval.commands.report",
    "eval.commands.speed",
    "widedraft",
)
MOST_FILES, MOST_LINES = 12, 1800
HEAVY_PACKAGES = ("torch", "transformers", "composer", "datasets", "scipy", "matplotlib", "jinja2")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported_modules(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append(node.module or "")
    return found


def top_level(module: str) -> str:
    return module.split(".")[0]


def floors() -> list[str]:
    """Every room from the lowest floor up, as docs/house.md lists them."""
    return re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "house.md").read_text(encoding="utf-8"), re.MULTILINE)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in python_files(*LAYERS)}


def room_of(module: str) -> str:
    """The folder that a module lies in, or the module itself where it stands beside folders."""
    is_folder = MODULES[module].name == "__init__.py"
    folder = module if is_folder else module.rpartition(".")[0]
    return folder if folder not in LAYERS else module


def modules_imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, lazily or for types alone too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [part if part in MODULES else str(node.module) for part in parts]
        found |= {name for name in names if name in MODULES}
    return found


def test_every_room_is_on_a_floor():
    rooms = {room_of(name) for name, path in MODULES.items() if path.name != "__init__.py"}
    assert sorted(floors()) == sorted(rooms)


@pytest.mark.parametrize("room", floors())
def test_a_room_imports_from_lower_floors_alone(room):
    order = floors()
    below = {*order[: order.index(room) + 1], *LAYERS[: LAYERS.index(top_level(room)) + 1]}
    for name, path in MODULES.items():
        if room_of(name) == room:
            wrong = {room_of(each) for each in modules_imported(path)} - below
            assert not wrong, f"{path.relative_to(ROOT)} imports from {sorted(wrong)}"


@pytest.mark.parametrize("room", floors())
def test_a_room_is_no_larger_than_can_be_read_at_once(room):
    files = [path for name, path in MODULES.items() if room_of(name) == room]
    assert len([path for path in files if path.name != "__init__.py"]) <= MOST_FILES
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= MOST_LINES


def test_the_list_of_rooms_says_what_they_say_of_themselves():
    page = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
    for room in floors():
        told = ast.get_docstring(ast.parse(MODULES[room].read_text(encoding="utf-8"))) or ""
        assert f"| `{room}` | {told.splitlines()[0]} |\n" in page


def test_no_two_files_import_each_other():
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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & set(LAYERS), f"{path}:{node.lineno}"


def test_no_module_shares_a_name_with_a_package_we_import():
    imported = {top_level(name) for path in python_files(*LAYERS) for name in imported_modules(path)}
    imported -= {path.stem for path in WORKERS.glob("*.py")}  # scripts, which import their neighbour by its name
    names = set(sys.stdlib_module_names) | (imported - set(LAYERS))
    for path in python_files(*LAYERS):
        assert path.stem == "__init__" or path.stem not in names, f"{path.relative_to(ROOT)} hides a package"


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
    """One process for all: where none brings a heavy package, each is light by itself."""
    assert heavy_imports(LIGHT_MODULES, HEAVY_PACKAGES) == {}
    assert heavy_imports(("architectures.errors", "distill.recipe.recipe"), ("pydantic",)) == {
        "distill.recipe.recipe": ["pydantic"]
    }
