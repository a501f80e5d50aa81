"""A whole run on a tiny target: every stage real, skipped when current, refused when it would orphan later work."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import widedraft
from architectures.manifest import read_manifest
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.run import Run
from eval.responses import read_traces
from eval.scorecard_schema import CARD_NAME
from tests.conftest import train_here
from tests.distill.recipe_files import write_recipe
from tests.eval.engines.fake_server import FakeServer, served

pytestmark = pytest.mark.slow

TINY = (
    "seed=5",
    "data.max_new_tokens=12",
    "data.num_eval_prompts=4",
    "data.batch_size=4",
    "data.max_seq_len=128",
    "distill.precision=fp32",
    "distill.scheduler.t_warmup=1ba",
    "distill.loss=forward_kl",  # by which so short a training gets better from checkpoint to checkpoint
    "distill.global_train_batch_size=4",
    "eval.max_new_tokens=12",
    "eval.num_speculative_tokens=[1,2]",
    "eval.latency_repeats=2",
    "eval.latency_batch_sizes=[1,2]",
    "eval.wall_clock_prompts=2",
    "eval.batch_size=4",
)


@pytest.fixture(scope="module")
def run(tiny_target, tmp_path_factory, trainings_begin_at_once):
    """The arguments of a finished tiny run, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    settings = "data: {{prompts: [{{path: {prompts}}}]}}\ndistill: {{}}\n"
    cut = "{layers: 2, method: first_last}"
    recipe = write_recipe(folder, tiny_target, cut, settings, num_prompts=20, run="out")
    arguments = [str(recipe), *TINY]
    with pytest.MonkeyPatch.context() as patch:
        train_here(patch)
        assert widedraft.main(["run", *arguments]) == 0
    return arguments, folder / "out"


def mtimes(out: Path) -> dict[str, int]:
    return {name: (out / name / "manifest.json").stat().st_mtime_ns for name in ("init", "data", "draft", "eval")}


def test_every_stage_leaves_a_manifest_with_its_inputs(run):
    _, out = run
    for name, stage in {"init": "prune", "data": "generate", "draft": "export", "eval": "eval"}.items():
        manifest = read_manifest(out / name)
        assert manifest is not None
        assert manifest["stage"] == stage
        assert manifest["recipe"]
        assert all(manifest["inputs"].values())


def test_responses_and_scorecard_are_drawn_with_the_recipes_seed(run):
    settings = json.loads((run[1] / "data" / "settings.json").read_text())
    assert {settings[name]["settings"]["seed"] for name in ("train", "eval")} == {5}
    assert json.loads((run[1] / "eval" / "scorecard.json").read_text())["settings"]["seed"] == 5


def test_every_checkpoint_is_scored_on_the_responses_of_the_scorecard(run, capsys):
    arguments, out = run
    assert widedraft.main(["eval", *arguments, "--checkpoints"]) == 0
    found = json.loads((out / "eval" / "checkpoints.json").read_text())
    scorecard = json.loads((out / "eval" / "scorecard.json").read_text())
    assert [curve["temperature"] for curve in found["curves"]] == [0.0, 1.0]
    responses = read_traces(out / "data", "train")
    for curve in found["curves"]:
        names = [point["checkpoint"] for point in curve["points"]]
        assert names == [
            "undistilled",
            *(path.name.removesuffix("-rank0.pt") for path in find_checkpoints(out / "checkpoints")),
        ]
        assert [point["batches"] for point in curve["points"]] == [0, 3, 4]
        tokens = [point["tokens"] for point in curve["points"]]
        assert tokens == sorted(set(tokens))
        assert (tokens[0], tokens[-1]) == (0, sum(len(one.prompt_ids) + len(one.response_ids) - 1 for one in responses))
        rows = {row["draft"]: row for row in scorecard["acceptance"] if row["temperature"] == curve["temperature"]}
        for name, point in (("undistilled", curve["points"][0]), ("draft", curve["points"][-1])):
            assert point["alpha"]["value"] == rows[name]["alpha"]["value"]
            [entry] = [
                entry
                for entry in rows[name]["by_k"]
                if entry["num_speculative_tokens"] == curve["num_speculative_tokens"]
            ]
            assert point["tau"] == entry["tau"]
    assert "(best)" in capsys.readouterr().out
    assert "ep0-ba3" in (out / "eval" / "report.html").read_text()


def test_the_draft_is_scored_on_the_responses_of_a_server(run, tiny_target):
    arguments, out = run
    with served(FakeServer(tiny_target)) as server:
        assert widedraft.main(["eval", *arguments, "--endpoint", server.url]) == 0
        assert widedraft.main(["eval", *arguments, "--endpoint", server.url, "eval.temperatures=[0.5]"]) == 2
        assert len(server.requests) == 4
    served_card = json.loads((out / "eval-endpoint" / "scorecard.json").read_text())
    card = json.loads((out / "eval" / "scorecard.json").read_text())
    [row] = [row for row in card["acceptance"] if row["draft"] == "draft" and row["temperature"] == 0]
    assert served_card["acceptance"][0]["by_k"] == row["by_k"]
    assert served_card["recording"]["served"]["url"] == server.url


def test_a_checkpoint_of_another_model_is_refused(run, tmp_path, capsys):
    arguments, out = run
    copy = Path(shutil.copytree(out, tmp_path / "out"))
    path = find_checkpoints(copy / "checkpoints")[-1]
    saved = torch.load(path, weights_only=False)
    saved["state"]["model"].popitem()
    torch.save(saved, path)
    assert widedraft.main(["eval", *arguments, f"run_dir={copy}", "--checkpoints"]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert str(copy / "init") in said


def test_a_second_run_skips_everything_and_says_so(run, capfd):
    arguments, out = run
    before = mtimes(out)
    assert widedraft.main(["run", *arguments]) == 0
    assert mtimes(out) == before
    printed = capfd.readouterr().out
    assert printed.count("up to date") == 4
    assert str(out / "draft") in printed
    assert str(out / "eval" / "report.html") in printed


def test_held_out_prompts_keep_their_categories_and_tasks(tmp_path):
    from types import SimpleNamespace

    from distill.pipeline import eval_prompts
    from eval.responses import claim_shards, write_shard

    labels = ({"category": "math", "task": "gsm8k/1"}, {})  # the second as written before there were any
    row = {"messages": [{"role": "user", "content": "a"}], "prompt_ids": [1], "response_ids": [2], "response": "b"}
    rows = [
        {"id": number, "source": f"p:{number}", **row, "finish_reason": "stop", **label}
        for number, label in enumerate(labels)
    ]
    [path] = claim_shards(tmp_path / "data", "eval", {}, num_shards=1)
    write_shard(path, rows)
    recipe = SimpleNamespace(eval=SimpleNamespace(tasks=()), run_dir=str(tmp_path))
    assert [prompt.category for prompt in eval_prompts(Run.of(recipe))] == ["math", None]
    assert [prompt.task for prompt in eval_prompts(Run.of(recipe))] == ["gsm8k/1", None]


SETTINGS = """
data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 4, max_new_tokens: 8, max_seq_len: 128}}
distill: {{max_duration: 1ep, global_train_batch_size: 4, precision: fp32, scheduler: {{t_warmup: 1ba}}}}
eval:
  {{num_prompts: 2, max_new_tokens: 8, num_speculative_tokens: [1, 2], latency_repeats: 2, wall_clock_prompts: 2,
    latency_batch_sizes: [1], dtype: float32}}
"""


@pytest.fixture
def recipe(make_translator, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words that are read. " * 40)
    cut = f"layers: 1, encoder_layers: 2, method: block_influence, calibration: {{text: {text}, tokens: 64}}"
    return write_recipe(tmp_path, make_translator(tied=False, gated=True), f"{{{cut}}}", SETTINGS)


def test_a_run_ends_in_a_scorecard(recipe, training_here, tmp_path):
    assert widedraft.main(["run", str(recipe)]) == 0
    card = json.loads((tmp_path / "run" / "eval" / CARD_NAME).read_text())
    assert [card["target"]["layers"], card["target"]["model_type"]] == [4, "t5"]
    assert {draft["layers"] for draft in card["drafts"]} == {1}


def test_a_debug_run_is_one_of_its_family(recipe, tmp_path):
    assert widedraft.main(["prune", str(recipe), "--debug"]) == 0
    config = json.loads((tmp_path / "run-debug" / "tiny-target" / "config.json").read_text())
    assert config["model_type"] == "t5"
    assert json.loads((tmp_path / "run-debug" / "init" / "config.json").read_text())["model_type"] == "t5"
