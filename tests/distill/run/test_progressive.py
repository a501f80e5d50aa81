"""Progressive cuts: each stage a run of its own, cut from the one before, on one set of responses."""

import json

import pytest

import widedraft
from architectures.manifest import fingerprint_checkpoint, read_manifest
from distill.recipe.recipe import Recipe, load_recipe, save_recipe
from distill.run import Run, earlier_stages, share_responses
from tests.distill.recipe_files import write_recipe

TINY = (
    "data.max_new_tokens=8",
    "data.num_eval_prompts=2",
    "data.max_seq_len=128",
    "distill.precision=fp32",
    "distill.global_train_batch_size=4",
    "distill.scheduler.t_warmup=0ba",
    "eval.max_new_tokens=8",
    "eval.num_speculative_tokens=[1]",
    "eval.temperatures=[0.0]",
    "eval.latency_repeats=2",
    "eval.latency_batch_sizes=[]",
    "eval.wall_clock_prompts=1",
)


@pytest.fixture
def recipe_file(tiny_target, tmp_path):
    cut = "{method: first_last, stages: [3, 2, 1], intermediate: 96, width_method: random}"
    data = "data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 2}}\n"
    return write_recipe(tmp_path, tiny_target, cut, data, num_prompts=6, run="out")


@pytest.fixture
def recipe(recipe_file) -> Recipe:
    return load_recipe(recipe_file)


def test_every_earlier_stage_is_a_complete_recipe_of_depth_alone(recipe, tmp_path):
    stages = list(earlier_stages(Run.of(recipe)))

    assert [stage.recipe.architecture.layers for stage in stages] == [3, 2]
    assert [stage.recipe.architecture.source for stage in stages] == [None, str(tmp_path / "out" / "stage-3" / "draft")]
    for stage in [each.recipe for each in stages]:
        assert stage.run_dir == str(tmp_path / "out" / f"stage-{stage.architecture.layers}")
        assert (stage.architecture.intermediate, stage.architecture.stages) == (None, None)
        assert (stage.data, stage.distill, stage.target, stage.seed) == (
            (recipe.data, recipe.distill, recipe.target, recipe.seed)
        )
        save_recipe(stage, tmp_path / "stage.yaml")
        assert load_recipe(tmp_path / "stage.yaml") == stage


def test_the_first_stage_starts_from_the_recipes_own_source(recipe):
    architecture = recipe.architecture.model_copy(update={"source": "an/earlier-draft"})
    stages = list(earlier_stages(Run.of(recipe.model_copy(update={"architecture": architecture}))))
    assert stages[0].recipe.architecture.source == "an/earlier-draft"


def test_a_gguf_target_is_imported_once(recipe, tmp_path):
    target = recipe.target.model_copy(update={"path": "model.gguf"})
    stages = earlier_stages(Run.of(recipe.model_copy(update={"target": target})))
    assert {stage.recipe.target.path for stage in stages} == {str(tmp_path / "out" / "target")}


def test_the_responses_are_shared_by_a_link_that_moves_with_the_run(recipe, tmp_path):
    (tmp_path / "out" / "data").mkdir(parents=True)
    stage = next(iter(earlier_stages(Run.of(recipe))))
    share_responses(Run.of(recipe), stage)
    share_responses(Run.of(recipe), stage)
    (tmp_path / "out").rename(tmp_path / "moved")
    link = tmp_path / "moved" / "stage-3" / "data"
    assert link.is_symlink()
    assert link.resolve() == tmp_path / "moved" / "data"


@pytest.mark.slow
@pytest.mark.usefixtures("training_here", "pictures_left_out")
def test_a_run_in_stages(recipe_file, tmp_path, capfd):
    assert widedraft.main(["run", str(recipe_file), *TINY]) == 0
    out = tmp_path / "out"

    for folder, source, layers in (("stage-2", "stage-3", 2), (".", "stage-2", 1)):
        manifest = read_manifest(out / folder / "init")
        assert manifest is not None
        assert manifest["inputs"]["architecture.source"] == fingerprint_checkpoint(out / source / "draft")
        plan = json.loads((out / folder / "init" / "plan.json").read_text())
        assert (plan["source"]["layers"], plan["draft"]["layers"]) == (layers + 1, layers)
        assert plan["draft"]["intermediate"] == (96 if folder == "." else 128)
    assert (out / "eval" / "scorecard.json").is_file()

    capfd.readouterr()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("manifest.json")}
    assert widedraft.main(["run", str(recipe_file), *TINY]) == 0
    assert capfd.readouterr().out.count("up to date") == 2 * 3 + 2 + 1  # prune and distil thrice, responses twice, eval
    assert {path: path.stat().st_mtime_ns for path in out.rglob("manifest.json")} == before
