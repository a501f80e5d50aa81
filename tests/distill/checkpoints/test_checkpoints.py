"""Checkpoint files: found, verified, written whole, kept in number, and resumed from."""

import json
import os
from pathlib import Path

import pytest
import torch

from distill.checkpoints.checkpoint_files import BEST_NAME, find_checkpoints
from distill.checkpoints.folders import chosen_checkpoint, damage, newest_intact_checkpoint
from distill.export import saved_models
from distill.run import Run
from distill.train import train
from eval.models import load_model
from tests.distill.after_training import changed, file_size_limit
from tests.rejections import rejects


def write(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name in names:
        torch.save({"weight": torch.arange(1000.0)}, folder / name)
    return [folder / name for name in names]


def checkpoints(recipe) -> list[str]:
    return [path.name for path in find_checkpoints(Path(recipe.run_dir) / "checkpoints")]


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
    assert checkpoints(recipe) == ["ep1-ba4-rank0.pt", "ep1-ba5-rank0.pt", "ep1-ba6-rank0.pt"]
    assert (Path(recipe.run_dir) / "checkpoints" / "latest-rank0.pt").readlink() == Path("ep1-ba6-rank0.pt")


def best(recipe) -> str:
    return (Path(recipe.run_dir) / "checkpoints" / BEST_NAME).readlink().name


def exported(recipe) -> str:
    return json.loads((Path(recipe.run_dir) / "draft" / "manifest.json").read_text())["checkpoint"]


def test_the_best_is_saved_when_it_happens_stays_and_is_exported(make_run, evaluations):
    recipe = make_run(save_num_checkpoints_to_keep=1, save_interval="3ba", eval_interval="1ba")
    evaluations(9.0, 1.1, 1.5, 1.2, 1.4, 1.0, 1.3)  # what is not trained yet does not count
    train(recipe)
    assert checkpoints(recipe) == ["ep0-ba2-rank0.pt", "ep1-ba6-rank0.pt"]
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
    assert checkpoints(recipe) == ["ep0-ba2-rank0.pt", "ep1-ba4-rank0.pt", "ep1-ba5-rank0.pt"]


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
    newest = Path(recipe.run_dir) / "checkpoints" / "ep1-ba4-rank0.pt"
    before = torch.load(newest, weights_only=False)["state"]["model"]
    cut_short(newest)
    capsys.readouterr()
    train(recipe)
    error = capsys.readouterr().err
    assert error.count(f"{newest}:") == 1
    assert "batch 0" not in error
    after = torch.load(newest, weights_only=False)["state"]["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert checkpoints(recipe) == ["ep0-ba3-rank0.pt", "ep1-ba4-rank0.pt"]


def test_a_damaged_one_is_the_first_to_go(make_run):
    recipe = make_run(max_duration="4ba", save_interval="2ba", eval_interval="4ba")
    train(recipe)
    cut_short(Path(recipe.run_dir) / "checkpoints" / "ep1-ba4-rank0.pt")
    train(changed(recipe, save_interval="1ba", max_duration="3ba"))
    assert checkpoints(recipe) == ["ep0-ba2-rank0.pt", "ep0-ba3-rank0.pt"]


def test_starts_over_when_every_checkpoint_is_damaged(make_run, capsys):
    recipe = make_run(max_duration="2ba")
    train(recipe)
    for path in find_checkpoints(Path(recipe.run_dir) / "checkpoints"):
        cut_short(path)
    train(recipe)
    assert capsys.readouterr().err.count("batch 0: held-out") == 2
    assert checkpoints(recipe) == ["ep0-ba1-rank0.pt", "ep0-ba2-rank0.pt"]


def test_a_finished_training_is_exported_and_left_alone(make_run, capsys):
    recipe = make_run(max_duration="1ep")
    train(recipe)
    before = [path.stat() for path in find_checkpoints(Path(recipe.run_dir) / "checkpoints")]
    (Path(recipe.run_dir) / "draft" / "model.safetensors").unlink()
    capsys.readouterr()
    train(recipe)
    assert "distill.max_duration=1ep" in capsys.readouterr().err
    assert [path.stat() for path in find_checkpoints(Path(recipe.run_dir) / "checkpoints")] == before
    assert (Path(recipe.run_dir) / "draft" / "model.safetensors").is_file()


@pytest.mark.parametrize(("kind", "end"), [("whole", "-rank0.pt"), ("sharded", "")])
def test_a_full_disk_costs_no_checkpoint(make_run, kind, end):
    recipe = make_run(max_duration="2ba", checkpoints=kind)
    train(recipe)
    folder = Path(recipe.run_dir) / "checkpoints"
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
    assert checkpoints(recipe) == []


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
