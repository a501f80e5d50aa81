"""Masks are trained whole on every process: said, and refused before anything is loaded where it cannot be."""

import json
from pathlib import Path

import pytest

import distill.masks.train
import distill.train
from architectures.checkpoints.manifest import write_manifest
from architectures.errors import UserError
from architectures.pages.terminal import terminal
from architectures.shapes.shape import NAMED_SHAPES
from distill.checking.check import check_recipe
from distill.estimates.mask_memory import refuse_masks_beyond, refuse_sharded_masks
from distill.estimates.memory import held_bytes, memory_parts, together
from distill.estimates.trainings import mask_training
from distill.recipe.recipe import Recipe
from distill.train import train
from widedraft import main

LLAMA = NAMED_SHAPES["llama-7b"].shape
GIB = 2**30


@pytest.fixture
def recipe_of(tmp_path, monkeypatch):
    """recipe_of(**distill) -> a recipe of masks on Llama-2-7b."""
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text("".join(json.dumps({"prompt": f"Count to {n}."}) + "\n" for n in range(8)))

    def make(target="meta-llama/Llama-2-7b-hf", architecture=None, **distill) -> Recipe:
        return Recipe.model_validate(
            {
                "run_name": "r",
                "run_dir": "run",
                "target": {"path": str(target), "dtype": "bfloat16"},
                "architecture": {"method": "learned_masks", **(architecture or {"shape": "wide-1.3b"})},
                "data": {"prompts": [{"path": "p.jsonl"}], "num_eval_prompts": 2},
                "text": {"domains": [{"name": "a", "path": "p.jsonl", "field": "prompt"}], "num_eval_sequences": 1},
                "distill": {"device_train_microbatch_size": 1, **distill},
            }
        )

    return make


def test_check_refuses_shards_of_what_is_trained_whole(recipe_of):
    assert "184.7 GiB" in terminal(*check_recipe(recipe_of()))
    with pytest.raises(UserError) as refused:
        check_recipe(recipe_of(parallelism="fsdp2"))
    assert str(refused.value) == (
        "distill.parallelism is fsdp2, and masks are trained whole on every process: 394.5 GiB on each of 1, "
        "184.7 GiB on each of 8, estimated. Where a device holds that, train them with ddp (`widedraft masks "
        "RECIPE`) and set fsdp2 again; else use a smaller target, or another architecture.method, such as greedy."
    )


def test_the_exit_code_is_2(recipe_of, tmp_path, capfd):
    from distill.recipe.recipe import save_recipe

    save_recipe(recipe_of(parallelism="fsdp2"), tmp_path / "r.yaml")
    assert main(["check", "r.yaml"]) == 2
    assert "184.7 GiB on each of 8" in capfd.readouterr().err


def test_finished_masks_leave_the_draft_to_be_shared(recipe_of):
    recipe = recipe_of(parallelism="fsdp2")
    write_manifest(Path("run/masks"), stage="masks", inputs={})
    refuse_sharded_masks(recipe, LLAMA, on_gpu=True)


@pytest.mark.parametrize("method", ["greedy", "first_last"])
def test_other_methods_share_the_draft_as_ever(recipe_of, method):
    wanted = recipe_of(parallelism="fsdp2").model_dump(mode="json")
    wanted["architecture"] = {"shape": "wide-1.3b", "method": method}
    del wanted["text"]
    assert "by FSDP2" in terminal(*check_recipe(Recipe.model_validate(wanted)))


def test_a_process_holds_weights_gradients_moments_and_teacher(recipe_of):
    training = mask_training(recipe_of(), LLAMA, on_gpu=False)
    assert held_bytes(training, 8) == held_bytes(training, 1) == LLAMA.parameters() * (4 * 4 + 2)


@pytest.mark.parametrize(
    ("free", "refused", "said"),
    [
        (80, True, ""),
        (112, True, ""),
        (114, False, "mask training may need 184.7 GiB on every process"),
        (200, False, ""),
    ],
)
def test_a_device_that_cannot_hold_them_is_refused_and_a_narrow_one_named(recipe_of, capsys, free, refused, said):
    training = mask_training(recipe_of(), LLAMA, on_gpu=False)
    place = {"processes": 8, "free_bytes": free * GIB, "device": "cuda:0"}
    if refused:
        with pytest.raises(UserError, match=rf"holds 113\.0 GiB on .* 184\.7 GiB .* cuda:0 has {free}\.0 GiB free"):
            refuse_masks_beyond(training, **place)
    else:
        refuse_masks_beyond(training, **place)
        assert capsys.readouterr().err.startswith(said)
        assert together(memory_parts(training, 8)) > free * GIB or not said
    refuse_masks_beyond(training, **{**place, "free_bytes": None})


@pytest.mark.parametrize(
    ("distill_keys", "free", "message"),
    [({}, 1_000_000, "cpu has 0.0 GiB free"), ({"parallelism": "fsdp2"}, 10**12, "distill.parallelism is fsdp2")],
)
def test_training_refuses_before_it_loads(recipe_of, tiny_target, monkeypatch, distill_keys, free, message):
    monkeypatch.setattr(distill.masks.train, "free_bytes", lambda _: free)
    monkeypatch.setattr(distill.masks.train, "load_model", lambda *_, **__: pytest.fail("loaded"))
    recipe = recipe_of(tiny_target, {"layers": 2}, **distill_keys)
    monkeypatch.setattr(distill.train, "join_other_processes", lambda _: None)  # or this process would stay joined
    with pytest.raises(UserError, match=message):
        train(recipe)
    assert not Path("run/mask_checkpoints").exists()
