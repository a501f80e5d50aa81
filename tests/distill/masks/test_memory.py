"""What masks hold of a process, whole or in shards: said, and refused before anything is loaded if it is too much."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

import distill.masks.train
import distill.train
from architectures.errors import UserError
from architectures.pages.terminal import terminal
from architectures.shapes.shape import NAMED_SHAPES
from distill.checking.check import check_recipe
from distill.estimates.mask_memory import refuse_masks_beyond
from distill.estimates.memory import held_bytes, memory_parts, together
from distill.estimates.trainings import mask_training
from distill.recipe.recipe import Recipe
from distill.train import train

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


MASKS = {"shape": "wide-1.3b", "masks": {"device_train_microbatch_size": 1}}
SHARDS = {"parallelism": "fsdp2", "teacher": {"parallelism": "fsdp2"}}


def test_check_tells_what_shards_take(recipe_of):
    assert "210.4 GiB" in terminal(*check_recipe(recipe_of()))  # four whole sequences at once, on every process
    told = terminal(*check_recipe(recipe_of(architecture=MASKS, **SHARDS)))
    assert "(of 1 | of 8; by FSDP2), mask training" in told
    assert "|   36.6 GiB  together" in told


def test_shards_must_be_told_how_many_sequences_they_take(recipe_of):
    with pytest.raises(ValidationError, match=r"architecture\.masks\.device_train_microbatch_size is auto, got fsdp2"):
        recipe_of(parallelism="fsdp2")


@pytest.mark.parametrize("method", ["greedy", "first_last"])
def test_other_methods_share_the_draft_as_ever(recipe_of, method):
    wanted = recipe_of(architecture=MASKS, parallelism="fsdp2").model_dump(mode="json")
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
        (114, False, "mask training may need 210.4 GiB on every process"),
        (220, False, ""),
    ],
)
def test_a_device_that_cannot_hold_them_is_refused_and_a_narrow_one_named(recipe_of, capsys, free, refused, said):
    training = mask_training(recipe_of(), LLAMA, on_gpu=False)
    place = {"processes": 8, "free_bytes": free * GIB, "device": "cuda:0"}
    if refused:
        with pytest.raises(UserError, match=rf"holds 113\.0 GiB on .* 210\.4 GiB .* cuda:0 has {free}\.0 GiB free"):
            refuse_masks_beyond(training, **place)
    else:
        refuse_masks_beyond(training, **place)
        assert capsys.readouterr().err.startswith(said)
        assert together(memory_parts(training, 8)) > free * GIB or not said
    refuse_masks_beyond(training, **{**place, "free_bytes": None})


def test_training_refuses_before_it_loads(recipe_of, tiny_target, monkeypatch):
    monkeypatch.setattr(distill.masks.train, "free_bytes", lambda _: 1_000_000)
    monkeypatch.setattr(distill.masks.train, "build_mask_model", lambda *_, **__: pytest.fail("loaded"))
    recipe = recipe_of(tiny_target, {"layers": 2})
    monkeypatch.setattr(distill.train, "join_other_processes", lambda _: None)  # or this process would stay joined
    with pytest.raises(UserError, match=r"cpu has 0\.0 GiB free"):
        train(recipe)
    assert not Path("run/mask_checkpoints").exists()


def test_layers_that_are_computed_again_are_told_of_masks_too(recipe_of):
    kept, again = (
        mask_training(recipe_of(activation_checkpointing=asked), LLAMA, on_gpu=True) for asked in (False, True)
    )
    assert together(memory_parts(again, 8)) < together(memory_parts(kept, 8)) - 7 * GIB
