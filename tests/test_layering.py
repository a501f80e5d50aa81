"""The house: imports point one way, light modules stay light, and no module hides a package we import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("architectures", "eval", "distill")
LIGHT_MODULES = (
    "distill.hub.asked",
    "distill.hub.command",
    "distill.hub.local_files",
    "distill.hub.upload",
    "eval.certificate.command",
    "architectures.config",
    "architectures.conversion.command",
    "architectures.engines.command",
    "architectures.engines.page",
    "architectures.engines.read_facts",
    "architectures.families",
    "architectures.file_hashes",
    "architectures.fingerprint",
    "architectures.gguf_header",
    "architectures.hub_cache",
    "architectures.hub_failures",
    "architectures.manifest",
    "architectures.older_fingerprint",
    "architectures.plan",
    "architectures.progress",
    "architectures.shapes",
    "architectures.target",
    "distill.check",
    "distill.config",
    "distill.coverage",
    "distill.expected_time.devices",
    "distill.expected_time.figures",
    "distill.expected_time.headers",
    "distill.expected_time.page",
    "distill.lineage",
    "distill.losses.config",
    "distill.monitoring.flops",
    "distill.older_runs",
    "distill.data.packing_rules",
    "distill.preflight",
    "distill.recipe",
    "distill.scoring",
    "distill.served_shape",
    "distill.stages",
    "distill.teacher_cache.record",
    "distill.teacher_cache.stage",
    "distill.recipe_commands",
    "distill.choose.command",
    "distill.choose.vocabularies",
    "distill.teacher.config",
    "distill.text.config",
    "distill.vocabulary_sizes",
    "eval.config",
    "eval.older_answers",
    "eval.profiling.figures",
    "eval.profiling.option",
    "eval.quality.exams",
    "eval.tasks.page",
    "eval.tasks.prompts",
    "eval.tasks.rendering",
    "eval.tasks.words",
    "eval.report.command",
    "eval.speed.command",
    "widedraft",
)
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


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer):
    forbidden = {*LAYERS[LAYERS.index(layer) + 1 :], "widedraft"}
    for path in python_files(layer):
        wrong = forbidden & {top_level(name) for name in imported_modules(path)}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


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
    names = set(sys.stdlib_module_names) | (imported - set(LAYERS))
    for path in python_files(*LAYERS):
        assert path.stem == "__init__" or path.stem not in names, f"{path.relative_to(ROOT)} hides a package"


def test_recipes_is_no_package():
    assert not list((ROOT / "recipes").rglob("*.py"))
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_modules_import_nothing_heavy(module):
    code = f"import {module}, sys; print([name for name in {HEAVY_PACKAGES} if name in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert completed.stdout.strip() == "[]"
