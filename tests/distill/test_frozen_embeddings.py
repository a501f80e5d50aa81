"""Input embeddings that are not trained: they stay, all else learns as before, and what cannot be is refused."""

from pathlib import Path

import pytest
import torch

import distill.trainer
from architectures.hub import read_config
from architectures.shapes import Shape
from distill.check import check_recipe
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.recipe.recipe import save_recipe
from distill.train import main, train
from distill.trainer import freeze_input_embeddings
from eval.models import load_model
from tests.architectures.conftest import FAMILY_SETTINGS
from tests.distill.after_training import assert_resumes, mean_gradients, relative_difference, weights
from tests.rejections import rejects

EMBEDDING = "student.lm.model.embed_tokens.weight"
UPDATE_RTOL = 1e-5  # of the norm: float32 sums in another order
SHORT = {"max_duration": "1ba", "scheduler": {"t_warmup": "0ba"}, "gradient_clipping": None}


@pytest.fixture
def frozen_run(make_run, small_init):
    """frozen_run(name, **keys of distill) -> Recipe of a draft with a small head, its embeddings frozen."""
    return lambda name="frozen", **distill: make_run(
        name, init=small_init, **{"freeze_input_embeddings": True, **distill}
    )


def test_they_stay_and_all_else_moves(frozen_run, small_init):
    recipe = frozen_run(precision="amp_bf16", optimizer={"weight_decay": 0.1}, max_duration="3ba")
    train(recipe)
    began = load_model(small_init, dtype="float32", device="cpu").state_dict()
    ended = weights(recipe)
    moved = {name for name, weight in ended.items() if not torch.equal(weight, began[name.removeprefix("student.lm.")])}
    assert moved == ended.keys() - {EMBEDDING}
    assert mean_gradients(recipe).keys() == moved  # and no moments are kept for what is not trained
    shape = Shape.from_config(read_config(small_init))
    [kept] = find_checkpoints(Path(recipe.run_dir) / "checkpoints")[-1:]
    numbers = 3 * shape.parameters() - 2 * shape.vocab * shape.hidden  # as `check` computes disk
    assert kept.stat().st_size == pytest.approx(4 * numbers, abs=60_000)  # and the state of the training
    draft = load_model(Path(recipe.run_dir) / "draft", dtype="float32", device="cpu")
    assert torch.equal(draft.get_input_embeddings().weight, began["model.embed_tokens.weight"].bfloat16().float())


def test_the_gradients_of_all_else_are_those_beside_trained_ones(frozen_run):
    runs = [frozen_run(str(frozen), freeze_input_embeddings=frozen, **SHORT) for frozen in (True, False)]
    for recipe in runs:
        train(recipe)
    frozen, trained = map(mean_gradients, runs)
    assert trained.pop(EMBEDDING).any()
    assert relative_difference(frozen, trained) < UPDATE_RTOL


def test_resumed_equals_uninterrupted(frozen_run, stopped):
    straight, resumed = (frozen_run(name, max_duration="4ba") for name in ("straight", "resumed"))
    assert_resumes(straight, resumed, stopped(distill.trainer, "build_loggers", 3))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_every_family_freezes_its_token_rows_alone_or_says_why_not(make_checkpoint, family, tied):
    settings = {**FAMILY_SETTINGS[family], "tie_word_embeddings": tied}
    folder = make_checkpoint(seed=1, model_type=family, **settings)
    model = load_model(folder, dtype="float32", device="cpu")
    if Shape.from_config(read_config(folder)).tied:
        with rejects("distill.freeze_input_embeddings"):
            freeze_input_embeddings(model)
        return
    freeze_input_embeddings(model)
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert len(frozen) == 1
    assert model.get_parameter(frozen[0]) is model.get_input_embeddings().weight


def test_a_tied_draft_is_refused_by_check_and_by_training(make_run, make_checkpoint, capsys):
    tied = make_checkpoint(seed=3, num_hidden_layers=2, tie_word_embeddings=True)
    recipe = make_run(init=tied, freeze_input_embeddings=True)
    with rejects("distill.freeze_input_embeddings"):
        train(recipe)
    path = Path(recipe.run_dir) / "recipe.yaml"
    save_recipe(recipe, path)
    assert main([str(path)]) == 2
    assert "architecture.vocabulary" in capsys.readouterr().err
    of_tied = recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(tied)})})
    with rejects("distill.freeze_input_embeddings"):
        check_recipe(of_tied)
