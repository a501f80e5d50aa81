"""Sharded checkpoints: continued to the last bit, whole or not taken, and no code of theirs runs."""

import json
import os
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

import distill.trainer
from distill.checkpoints.checkpoint_files import BEST_NAME, TRUST, VALIDATION_VARIABLE, find_checkpoints
from distill.checkpoints.folders import METADATA_NAME, CheckedReader, damage, newest_intact_checkpoint, read_metadata
from distill.checkpoints.saving import read_model
from distill.export import export_any, saved_models
from distill.run import Run
from distill.train import train
from tests.distill.after_training import (
    Touch,
    assert_equal,
    assert_same_end,
    changed,
    in_a_pickle,
    last_state,
    metrics,
    plant,
)
from tests.rejections import rejects


def folder_of(recipe) -> Path:
    return Path(recipe.run_dir) / "checkpoints"


def names(recipe) -> list[str]:
    return [path.name for path in find_checkpoints(folder_of(recipe))]


def test_resumed_equals_uninterrupted_bit_for_bit(make_run, make_checkpoint, stopped):
    """Dropout, order, schedule and moments included; whichever way each session saves, and never in shards."""
    init = make_checkpoint(num_hidden_layers=2, attention_dropout=0.5)
    straight = make_run("straight", init=init)
    train(straight)
    for first, then in (("sharded", "sharded"), ("whole", "sharded"), ("sharded", "whole")):
        resumed = make_run(f"{first}-{then}", init=init, checkpoints=first)
        with stopped(distill.trainer, "build_loggers", 5):
            train(resumed)
        assert names(resumed)[-1].startswith("ep1-ba4")
        train(changed(resumed, checkpoints=then))
        assert then == "whole" or names(resumed) == ["ep1-ba5", "ep1-ba6"]
        assert_same_end(straight, resumed)
        losses = [[line.get("loss/train/total") for line in metrics(recipe).values()] for recipe in (straight, resumed)]
        assert losses[0] == losses[1]


def test_the_best_and_the_newest_are_kept_and_exported(make_run, evaluations):
    recipe = make_run(checkpoints="sharded", save_num_checkpoints_to_keep=1, save_interval="3ba", eval_interval="1ba")
    evaluations(9.0, 1.1, 1.5, 1.2, 1.4, 1.0, 1.3)  # the first is of what is not trained yet
    train(recipe)
    assert names(recipe) == ["ep0-ba2", "ep1-ba6"]
    assert (folder_of(recipe) / BEST_NAME).readlink().name == "ep0-ba2"
    assert (folder_of(recipe) / "latest-rank0.pt").readlink().name == "ep1-ba6"
    manifest = json.loads((Path(recipe.run_dir) / "draft" / "manifest.json").read_text())
    assert manifest["checkpoint"] == "ep0-ba2"
    scored = saved_models(Run.of(recipe))
    assert [(each.name, each.batches) for each in scored[1:]] == [("ep0-ba2", 2), ("ep1-ba6", 6)]
    weights = scored[2].open().state_dict()
    wanted = {name.removeprefix("student.lm."): tensor for name, tensor in last_state(recipe)["model"].items()}
    assert all(torch.equal(weights[name].bfloat16(), wanted[name].bfloat16()) for name in wanted)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with one sharded checkpoint, of one process; copy it before you break it."""
    folder = tmp_path_factory.mktemp("trained") / "ep0-ba1"
    weights = torch.nn.Linear(8, 8)
    tensors = {"model": dict(weights.state_dict()), "optimizers": {"weight": {"exp_avg": torch.arange(1000.0)}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(tensors, storage_writer=FileSystemWriter(folder), no_dist=True)
    torch.save({"state": {"timestamp": {}}, "rng": []}, folder / "state.pt")
    return folder


@pytest.fixture
def saved(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / trained.name))


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "state.pt"])
def test_what_is_missing_is_named_and_the_checkpoint_before_is_taken(saved, capsys, name):
    older = Path(shutil.copytree(saved, saved.with_name("ep0-ba0")))
    assert damage(saved) is None
    assert newest_intact_checkpoint(saved.parent) == saved
    (saved / name).unlink()
    assert newest_intact_checkpoint(saved.parent) == older
    said = capsys.readouterr().err
    assert said.startswith(f"{saved}: ")
    assert name in said


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "state.pt"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_what_is_cut_short_is_named(saved, name, share):
    os.truncate(saved / name, int(share * (saved / name).stat().st_size))
    assert name in (damage(saved) or "")


@pytest.mark.parametrize("name", ["__0_0.distcp", "state.pt"])
def test_one_wrong_byte_is_damage(saved, name):
    contents = bytearray((saved / name).read_bytes())
    place = contents.find(torch.arange(1000.0).numpy().tobytes()) if name != "state.pt" else contents.find(b"timestamp")
    contents[place + 5] ^= 1
    (saved / name).write_bytes(contents)
    assert name in (damage(saved) or "")


def test_export_names_the_missing_shard(saved, tmp_path):
    (saved / "__0_0.distcp").unlink()
    with rejects("ep0-ba1", "__0_0.distcp"):
        export_any(saved, tmp_path, tmp_path / "out", target=tmp_path, dtype="float32")
    with rejects(tmp_path):
        export_any(tmp_path, tmp_path, tmp_path / "out", target=tmp_path, dtype="float32")


def planted(folder: Path, **changes: object) -> None:
    metadata = read_metadata(folder)
    for name, value in changes.items():
        setattr(metadata, name, value)
    (folder / METADATA_NAME).write_bytes(pickle.dumps(metadata))


def test_a_planted_function_is_never_called(saved, tmp_path):
    """Nowhere: when the newest is looked for, when tensors are read, and when torch would read it."""
    planted(saved, planner_data=Touch(tmp_path / "mark"))
    for read in (damage, read_model, lambda folder: CheckedReader(folder).read_metadata()):
        with rejects(".metadata", "posix.system"):
            read(saved)
    assert not (tmp_path / "mark").exists()


def test_of_torch_number_types_alone_are_taken(saved):
    """torch.load is an attribute of torch, too."""
    (saved / METADATA_NAME).write_bytes(b"ctorch\nload\n.")
    with rejects(".metadata", "torch.load"):
        damage(saved)


def test_what_torch_would_unpickle_is_refused(saved, tmp_path):
    """A tensor's name that holds a pickle; and a file elsewhere."""
    described = dict(read_metadata(saved).state_dict_metadata)
    planted(saved, state_dict_metadata={**described, "model.weight": BytesStorageMetadata()})
    with rejects("model.weight"):
        read_model(saved)


def test_a_file_elsewhere_is_refused(saved):
    places = dict(read_metadata(saved).storage_data)
    for place in places.values():
        place.relative_path = "../elsewhere.distcp"
    planted(saved, storage_data=places)
    with rejects("../elsewhere.distcp"):
        damage(saved)


def test_a_planted_state_is_refused(make_run, tmp_path):
    recipe = make_run(checkpoints="sharded", max_duration="1ba")
    train(recipe)
    state = folder_of(recipe) / "ep0-ba1" / "state.pt"
    plant(state, in_a_pickle, tmp_path / "mark")
    with rejects("state.pt", "posix.system"):
        train(changed(recipe, max_duration="2ba"))
    assert not (tmp_path / "mark").exists()


def test_metadata_of_who_is_trusted_is_read(saved, monkeypatch, tmp_path):
    planted(saved, planner_data=Touch(tmp_path / "mark"))
    monkeypatch.setenv(VALIDATION_VARIABLE, TRUST)
    assert set(read_model(saved)) == {"weight", "bias"}
    assert (tmp_path / "mark").exists()


def test_resumes_before_a_missing_shard_and_leaves_no_half(make_run, capsys):
    recipe = make_run(checkpoints="sharded", max_duration="3ba")
    train(recipe)
    newest = folder_of(recipe) / "ep0-ba3"
    before = last_state(recipe)["model"]
    (newest / "__0_0.distcp").unlink()
    half = folder_of(recipe) / "ep1-ba4.0123456789abcdef.partial"
    half.mkdir()
    capsys.readouterr()
    train(recipe)
    said = capsys.readouterr().err
    assert str(newest) in said
    assert "__0_0.distcp" in said
    assert_equal(before, last_state(recipe)["model"])
    assert names(recipe) == ["ep0-ba2", "ep0-ba3"]
    assert not half.exists()
