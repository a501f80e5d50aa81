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
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder holding only the wheel's own files, as `pip install --target` lays them out."""
    out = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", out, wheel]
    subprocess.run(command, check=True)
    return out


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
    templates = ("eval/report.html.jinja", "distill/hub/card.md.jinja")
    for part in (
        "architectures/shapes.py",
        "eval/replay.py",
        "distill/train.py",
        "widedraft.py",
        *templates,
    ):
        assert part in names
    assert any(name.endswith("share/widedraft/recipes/quickstart.yaml") for name in names)
    assert any(name.endswith("recipes/recipe.schema.json") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]


def check_quickstart(installed: Path, target: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`widedraft check` of the wheel's own quickstart, as installed."""
    recipe = installed / "share" / "widedraft" / "recipes" / "quickstart.yaml"
    own_prompts = ("data.prompts=[]", "data.self_written_prompts=96")  # the recipe's prompt file is a checkout's
    whole_head = (
        "architecture.vocabulary=null",
        "distill.freeze_input_embeddings=false",
    )  # of 264 ids
    shape = ("architecture.layers=2", "architecture.method=first_last", *whole_head)
    overrides = [f"target.path={target}", *shape, *own_prompts]
    return subprocess.run(
        [sys.executable, installed / "bin" / "widedraft", "check", recipe, *overrides, *words],
        cwd=cwd,
        env={"PYTHONPATH": str(installed), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_installed_widedraft_survives_a_stray_eval_module(installed, tiny_target, tmp_path):
    (tmp_path / "eval.py").write_text("raise RuntimeError('the stray eval.py was imported')\n")
    completed = check_quickstart(installed, tiny_target, tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert "layers" in completed.stdout


def test_training_entry_point_names_the_stray_module(installed, tmp_path):
    (tmp_path / "eval.py").write_text("")
    completed = subprocess.run(
        [sys.executable, "-m", "distill.train", "recipe.yaml"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 2, completed.stderr
    assert str(tmp_path / "eval.py") in completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.slow
def test_who_has_the_wheel_alone_begins_in_an_empty_folder(environment, tmp_path):
    """Ends with a whole run: a recipe that lacked a file of its own would not."""

    def widedraft(*words: str) -> str:
        command = [environment / "bin" / "widedraft", *words]
        env = {"PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "\nquickstart\n  target    models/SmolLM2-135M-Instruct\n" in widedraft("recipes")
    told = widedraft("recipes", "quickstart")
    lines = [line.partition("#")[0].split() for line in told.splitlines() if line.startswith("  widedraft ")]
    assert lines[0] == ["widedraft", "recipes", "quickstart", "--with-target"]
    assert ["widedraft", "check", "recipes/quickstart.yaml"] in lines
    assert "570, 48 held out" in widedraft("check", "recipes/quickstart.yaml")
    debug = next(line for line in lines if "--debug" in line)
    assert "scorecard: runs/quickstart-debug/eval/scorecard.md" in widedraft(*debug[1:])
