"""Checkpoint files: found, verified, written whole, kept in number, and resumed from."""

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
from distill.checkpoints.folders import (
    METADATA_NAME,
    CheckedReader,
    chosen_checkpoint,
    damage,
    newest_intact_checkpoint,
    read_metadata,
)
from distill.checkpoints.saving import read_model
from distill.export import export_any, saved_models
from distill.run import Run
from distill.train import train
from eval.models import load_model
from tests.distill.after_training import (
    Touch,
    assert_equal,
    assert_same_end,
    changed,
    file_size_limit,
    in_a_pickle,
    last_state,
    metrics,
    plant,
)
from tests.rejections import rejects


def write(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name in names:
        torch.save({"weight": torch.arange(1000.0)}, folder / name)
    return [folder / name for name in names]


def folder_of(recipe) -> Path:
    return Path(recipe.run_dir) / "checkpoints"


def names(recipe) -> list[str]:
    return [path.name for path in find_checkpoints(folder_of(recipe))]


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_oldest_first_by_batch_then_epoch_and_nothing_else(tmp_path):
    newest_first = ["ep1-ba10-rank0.pt", "ep0-ba10-rank0.pt", "ep0-ba9-rank0.pt", "ep0-ba2-rank0.pt"]
    write(tmp_path, *newest_first, "other.pt", "ep0-ba11-rank0.pt.partial")
    (tmp_path / "latest-rank0.pt").symlink_to("ep1-ba10-rank0.pt")
    assert [path.name for path in find_checkpoints(tmp_path)] == newest_first[::-1]
    assert find_checkpoints(tmp_path / "absent") == []


@pytest.mark.parametrize("kept_bytes", [0, 100, 3000, -1])
def test_a_file_cut_short_is_damaged(tmp_path, kept_bytes):
    (path,) = write(tmp_path, "ep0-ba1-rank0.pt")
    os.truncate(path, kept_bytes % path.stat().st_size)
    assert damage(path) is not None


def test_one_wrong_byte_among_the_weights_is_damage(tmp_path):
    (path,) = write(tmp_path, "ep0-ba1-rank0.pt")
    contents = bytearray(path.read_bytes())
    contents[contents.find(torch.arange(1000.0).numpy().tobytes()) + 40] ^= 1
    path.write_bytes(contents)
    assert "wrong checksum of" in (damage(path) or "")


def test_the_newest_intact_one_is_chosen_and_the_others_named(tmp_path, capsys):
    oldest, middle, newest = write(tmp_path, "ep0-ba1-rank0.pt", "ep0-ba2-rank0.pt", "ep0-ba3-rank0.pt")
    assert newest_intact_checkpoint(tmp_path) == newest
    assert capsys.readouterr().err == ""
    cut_short(newest)
    cut_short(middle)
    assert newest_intact_checkpoint(tmp_path) == oldest
    assert [line.split(": ")[0] for line in capsys.readouterr().err.splitlines()] == [str(newest), str(middle)]
    cut_short(oldest)
    assert newest_intact_checkpoint(tmp_path) is None


def test_so_many_are_kept_and_latest_points_to_the_newest(make_run):
    recipe = make_run(save_num_checkpoints_to_keep=3)
    train(recipe)
    assert names(recipe) == ["ep1-ba4-rank0.pt", "ep1-ba5-rank0.pt", "ep1-ba6-rank0.pt"]
    assert (folder_of(recipe) / "latest-rank0.pt").readlink() == Path("ep1-ba6-rank0.pt")


def best(recipe) -> str:
    return (folder_of(recipe) / BEST_NAME).readlink().name


def exported(recipe) -> str:
    return json.loads((Path(recipe.run_dir) / "draft" / "manifest.json").read_text())["checkpoint"]


def test_the_best_is_saved_when_it_happens_stays_and_is_exported(make_run, evaluations):
    recipe = make_run(save_num_checkpoints_to_keep=1, save_interval="3ba", eval_interval="1ba")
    evaluations(9.0, 1.1, 1.5, 1.2, 1.4, 1.0, 1.3)  # what is not trained yet does not count
    train(recipe)
    assert names(recipe) == ["ep0-ba2-rank0.pt", "ep1-ba6-rank0.pt"]
    assert best(recipe) == exported(recipe) == "ep0-ba2-rank0.pt"


@pytest.mark.parametrize(
    ("intervals", "values", "expected"),
    [
        ({"eval_interval": "2ba"}, (1.0, 1.2, 1.2, 1.1), "ep1-ba4-rank0.pt"),  # of equal ones the later
        ({"eval_interval": "4ba"}, (1.0, 1.2, 1.3), "ep1-ba6-rank0.pt"),  # behind the last checkpoint
        ({"eval_interval": "1ep", "save_interval": "4ba"}, (1.0, 1.5, 1.2), "ep1-ba3-rank0.pt"),  # though none was due
    ],
)
def test_the_best_of_every_evaluation_is_exported(make_run, evaluations, intervals, values, expected):
    recipe = make_run(**intervals)
    evaluations(*values)
    train(recipe)
    assert best(recipe) == exported(recipe) == expected


def test_a_later_session_knows_the_best(make_run, evaluations):
    recipe = make_run(max_duration="3ba", eval_interval="1ba")
    evaluations(9.0, 1.4, 1.5, 1.3, 1.2, 1.1)
    train(recipe)
    train(changed(recipe, max_duration="5ba"))
    assert best(recipe) == exported(recipe) == "ep0-ba2-rank0.pt"
    assert names(recipe) == ["ep0-ba2-rank0.pt", "ep1-ba4-rank0.pt", "ep1-ba5-rank0.pt"]


def test_the_last_is_exported_where_the_recipe_says_so(make_run, evaluations):
    recipe = make_run(eval_interval="1ba")
    evaluations(9.0, 1.4, 1.5, 1.3, 1.2, 1.1, 1.0)
    train(recipe.model_copy(update={"export": recipe.export.model_copy(update={"checkpoint": "latest"})}))
    assert exported(recipe) == "ep1-ba6-rank0.pt"


def test_a_best_that_is_damaged_or_gone_is_said_and_the_newest_taken(tmp_path, capsys):
    newest, lost = tmp_path / "ep1-ba9-rank0.pt", tmp_path / "ep0-ba2-rank0.pt"
    torch.save({"a": torch.zeros(100)}, newest)
    (tmp_path / BEST_NAME).symlink_to(lost.name)
    assert chosen_checkpoint(tmp_path, "best") == newest
    assert str(lost) in capsys.readouterr().err
    lost.write_bytes(newest.read_bytes()[:300])
    assert chosen_checkpoint(tmp_path, "best") == newest
    assert f"{lost}:" in capsys.readouterr().err
    lost.write_bytes(newest.read_bytes())
    assert chosen_checkpoint(tmp_path, "best") == lost
    assert chosen_checkpoint(tmp_path, "latest") == newest


def test_resumes_from_the_one_before_a_damaged_one(make_run, capsys):
    recipe = make_run(max_duration="4ba")
    train(recipe)
    newest = folder_of(recipe) / "ep1-ba4-rank0.pt"
    before = torch.load(newest, weights_only=False)["state"]["model"]
    cut_short(newest)
    capsys.readouterr()
    train(recipe)
    error = capsys.readouterr().err
    assert error.count(f"{newest}:") == 1
    assert "batch 0" not in error
    after = torch.load(newest, weights_only=False)["state"]["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert names(recipe) == ["ep0-ba3-rank0.pt", "ep1-ba4-rank0.pt"]


def test_a_damaged_one_is_the_first_to_go(make_run):
    recipe = make_run(max_duration="4ba", save_interval="2ba", eval_interval="4ba")
    train(recipe)
    cut_short(folder_of(recipe) / "ep1-ba4-rank0.pt")
    train(changed(recipe, save_interval="1ba", max_duration="3ba"))
    assert names(recipe) == ["ep0-ba2-rank0.pt", "ep0-ba3-rank0.pt"]


def test_starts_over_when_every_checkpoint_is_damaged(make_run, capsys):
    recipe = make_run(max_duration="2ba")
    train(recipe)
    for path in find_checkpoints(folder_of(recipe)):
        cut_short(path)
    train(recipe)
    assert capsys.readouterr().err.count("batch 0: held-out") == 2
    assert names(recipe) == ["ep0-ba1-rank0.pt", "ep0-ba2-rank0.pt"]


def test_a_finished_training_is_exported_and_left_alone(make_run, capsys):
    recipe = make_run(max_duration="1ep")
    train(recipe)
    before = [path.stat() for path in find_checkpoints(folder_of(recipe))]
    (Path(recipe.run_dir) / "draft" / "model.safetensors").unlink()
    capsys.readouterr()
    train(recipe)
    assert "distill.max_duration=1ep" in capsys.readouterr().err
    assert [path.stat() for path in find_checkpoints(folder_of(recipe))] == before
    assert (Path(recipe.run_dir) / "draft" / "model.safetensors").is_file()


@pytest.mark.parametrize(("kind", "end"), [("whole", "-rank0.pt"), ("sharded", "")])
def test_a_full_disk_costs_no_checkpoint(make_run, kind, end):
    recipe = make_run(max_duration="2ba", checkpoints=kind)
    train(recipe)
    folder = folder_of(recipe)
    one, two, three = (folder / f"ep0-ba{batch}{end}" for batch in (1, 2, 3))
    large = two / "__0_0.distcp" if kind == "sharded" else two
    with file_size_limit(large.stat().st_size // 2), rejects(f"{three}: ", two, *["GiB"] * (kind == "whole")):
        train(changed(recipe, max_duration="3ba"))
    assert find_checkpoints(folder) == [one, two]
    assert not list(folder.glob("*.partial"))
    assert newest_intact_checkpoint(folder) == two
    train(changed(recipe, max_duration="3ba"))
    assert find_checkpoints(folder) == [two, three]


def test_a_full_disk_at_the_first_checkpoint(make_run):
    recipe = make_run(max_duration="1ba")
    with file_size_limit(100_000), rejects("ep0-ba1-rank0.pt", "GiB"):
        train(recipe)
    assert names(recipe) == []


def test_only_the_disk_is_blamed_for_what_the_disk_did(make_run, monkeypatch):
    def fail(contents, file):
        raise RuntimeError("something else")

    recipe = make_run(max_duration="1ba")
    monkeypatch.setattr(torch, "save", fail)
    with rejects("something else", error=RuntimeError):
        train(recipe)


def test_the_start_comes_first_and_every_checkpoint_with_what_it_had_read(make_run, capsys):
    recipe = make_run(max_duration="2ba")
    train(recipe)
    run = Run.of(recipe)
    first, *saved = saved_models(run)
    assert (first.name, first.batches, first.tokens) == ("undistilled", 0, 0)
    assert [each.batches for each in saved] == [1, 2]
    assert 0 < saved[0].tokens < saved[1].tokens
    begun, ended = first.open(), saved[-1].open()
    init = load_model(run.init.path, dtype=recipe.eval.dtype)
    assert torch.equal(begun.lm_head.weight, init.lm_head.weight)
    draft = load_model(run.draft.path, dtype=recipe.eval.dtype)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(ended.parameters(), draft.parameters(), strict=True))

    find_checkpoints(run.checkpoints.path)[0].write_bytes(b"cut short")
    assert [each.name for each in saved_models(run)] == ["undistilled", saved[-1].name]
    assert saved[0].name in capsys.readouterr().err


# Sharded: continued to the last bit, whole or not taken, and no code of theirs runs


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
    assert best(recipe) == exported(recipe) == "ep0-ba2"
    assert (folder_of(recipe) / "latest-rank0.pt").readlink().name == "ep1-ba6"
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
