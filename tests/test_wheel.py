"""The wheel a user installs: complete, and immune to a stray eval.py in the working folder."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out, ROOT]
    subprocess.run(command, check=True)
    return next(out.glob("widedraft-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel as pip installs it; what it requires it sees in this one, but no checkout."""
    out = tmp_path_factory.mktemp("environment")
    venv.create(out, with_pip=False)
    python = out / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(command, check=True)
    [packages] = out.glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return out


def test_wheel_holds_the_packages_the_module_and_the_recipes(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    templates = ("eval/report.html.jinja", "eval/serving.html", "distill/hub/card.md.jinja")
    for part in ("architectures/shapes.py", "eval/replay.py", "distill/train.py", "widedraft.py", *templates):
        assert part in names
    assert any(name.endswith("share/widedraft/recipes/quickstart.yaml") for name in names)
    assert any(name.endswith("recipes/recipe.schema.json") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]


def run_in(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_training_entry_point_names_the_stray_module(environment, tmp_path):
    (tmp_path / "eval.py").write_text("")
    completed = run_in(tmp_path, environment / "bin" / "python", "-m", "distill.train", "recipe.yaml")
    assert completed.returncode == 2, completed.stderr
    assert str(tmp_path / "eval.py") in completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.slow
def test_who_has_the_wheel_alone_begins_in_an_empty_folder(environment, tmp_path):
    """Ends with a whole run: a recipe that lacked a file of its own would not."""

    def widedraft(*words: str) -> str:
        done = run_in(tmp_path, environment / "bin" / "widedraft", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "eval.py").write_text("raise RuntimeError('the stray eval.py was imported')\n")
    assert "\nquickstart\n  target    models/SmolLM2-135M-Instruct\n" in widedraft("recipes")
    told = widedraft("recipes", "quickstart")
    lines = [line.partition("#")[0].split() for line in told.splitlines() if line.startswith("  widedraft ")]
    assert lines[0] == ["widedraft", "recipes", "quickstart", "--with-target"]
    assert ["widedraft", "check", "recipes/quickstart.yaml"] in lines
    assert "570, 48 held out" in widedraft("check", "recipes/quickstart.yaml")
    (tmp_path / "eval.py").unlink()
    debug = next(line for line in lines if "--debug" in line)
    assert "report: runs/quickstart-debug/eval/report.html" in widedraft(*debug[1:])
