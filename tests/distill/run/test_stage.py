"""One place decides whether a stage is skipped, refused, made or made anew, and no other names the folders of a run."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from architectures.errors import UserError
from architectures.manifest import read_manifest
from distill.pipeline import carry_out
from distill.run import ARTIFACTS, Run, recipe_hash
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(make_run) -> Run:
    return Run.of(make_run())


@pytest.fixture
def made(run) -> list[str]:
    """What stages did, in their order."""
    return []


@pytest.fixture
def stage(run, made) -> Callable[..., None]:
    """stage(input, **attributes) carries out a stage that makes a scorecard of one input."""

    def make(fingerprint: str, **attributes) -> None:
        def write(run: Run, finish) -> str:
            made.append(fingerprint)
            run.eval.path.mkdir(exist_ok=True)
            (run.eval.path / fingerprint).touch()
            finish(figures=3)
            return "made"

        carry_out(run, run.eval, lambda _: {"prompts": fingerprint}, write, **attributes)

    return make


def test_what_is_current_is_left_and_what_changed_is_made_again(run, stage, made, capsys):
    for fingerprint in ("a", "a", "b"):
        stage(fingerprint)
    assert made == ["a", "b"]
    printed = capsys.readouterr().out
    assert (printed.count("up to date"), printed.count("eval: changed")) == (1, 1)
    assert {path.name for path in run.eval.path.iterdir()} == {"a", "b", "manifest.json"}


def test_what_is_replaced_leaves_nothing_behind(run, stage):
    for fingerprint in ("a", "b"):
        stage(fingerprint, changed="replace")
    assert {path.name for path in run.eval.path.iterdir()} == {"b", "manifest.json"}


def test_what_may_not_be_made_again_is_refused_by_the_input_that_changed(run, stage, made):
    stage("a", changed="refuse")
    stage("a", changed="refuse")
    with rejects("eval", "prompts"):
        stage("b", changed="refuse")
    assert made == ["a"]


def test_what_is_incomplete_is_made_though_its_inputs_are_the_same_but_not_from_others(run, stage, made):
    stage("a")
    stage("a", is_incomplete=lambda: True)
    with pytest.raises(UserError):
        stage("b", is_incomplete=lambda: True, changed="refuse")
    assert made == ["a", "a"]


def test_what_a_stage_requires_comes_before(run, stage, made):
    with rejects("draft"):
        stage("a", require=run.draft.require_finished)
    assert made == []


def test_a_manifest_says_what_its_kind_carries_behind_what_its_stage_says(run, stage):
    stage("a")
    manifest = read_manifest(run.eval.path)
    assert manifest is not None
    assert list(manifest) == ["stage", "inputs", "figures", "recipe", "file_sizes", "provenance"]
    assert (manifest["figures"], manifest["recipe"]) == (3, recipe_hash(run.recipe))
    run.record(run.draft, {}, finished=True)
    assert list(read_manifest(run.draft.path) or {})[2:-1] == ["finished", "target", "recipe", "seed", "file_sizes"]


def test_a_run_may_lie_elsewhere_than_its_recipe_says_and_share_its_scores(run, tmp_path):
    moved = Run(run.recipe, tmp_path / "moved")
    assert moved.draft.path == tmp_path / "moved" / "draft"
    architecture = run.recipe.architecture.model_copy(update={"scores": str(tmp_path / "shared")})
    assert Run.of(run.recipe.model_copy(update={"architecture": architecture})).scores.path == tmp_path / "shared"


def folders_named(source: str) -> set[str]:
    """The folders of a run that a source joins to a path by their literal names."""
    joined = [node.right for node in ast.walk(ast.parse(source)) if isinstance(node, ast.BinOp)]
    names = {node.value for node in joined if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return names & {*ARTIFACTS, "target"}


def test_no_other_place_names_the_folders_of_a_run():
    assert folders_named("run / 'draft' / 'config.json'; x = folder / f'{name}'; 3 / 4") == {"draft"}
    sources = [path for path in (ROOT / "distill").rglob("*.py") if path != ROOT / "distill" / "run.py"]
    assert len(sources) > 50
    named = {str(path.relative_to(ROOT)): folders_named(path.read_text()) for path in sources}
    assert {path: names for path, names in named.items() if names} == {
        "distill/choose/search.py": {"eval"}  # of the trials together, which are no run
    }


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("edited")])
def test_what_lost_a_file_is_made_again_and_not_used(run, stage, made, capsys, damage):
    stage("a")
    damage(run.eval.path / "a")
    with rejects(f"{run.eval.path}: a "):
        run.eval.require({"prompts": "a"})
    stage("a")
    assert made == ["a", "a"]
    assert f"{run.eval.path}: a " in capsys.readouterr().out
    run.eval.require({"prompts": "a"})
