"""A trained draft with a small head is exported with what it says, and its unknown row."""

import shutil
from pathlib import Path

import pytest
import torch

from architectures.hub import read_config
from architectures.manifest import write_manifest
from architectures.pruning.plan import plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import Shape
from architectures.vocabulary import read_draft_vocabulary
from distill.export import export_checkpoint
from eval.models import load_model

IDS = (1, 2, *range(10, 200, 3))


def finish(folder: Path) -> None:
    write_manifest(folder, stage="export", inputs={})


@pytest.fixture
def exported(make_checkpoint, tmp_path):
    """exported(unknown_inputs) -> folder of an exported draft, and its target's."""

    def make(*, unknown_inputs: bool):
        target = make_checkpoint(seed=1)
        shape = Shape.from_config(read_config(target))
        plan = plan_pruning(shape, ArchitectureConfig(layers=2, method="first_last")).with_vocabulary(IDS)
        prune_checkpoint(target, plan, tmp_path / "init", origin={"from": "a test"})
        student = load_model(tmp_path / "init", dtype="float32", device="cpu")
        saved = {f"student.lm.{name}": tensor for name, tensor in student.state_dict().items()}
        torch.save({"state": {"model": saved}}, tmp_path / "checkpoint.pt")
        export_checkpoint(
            tmp_path / "checkpoint.pt",
            tmp_path / "init",
            tmp_path / "draft",
            target=target,
            dtype="float32",
            unknown_inputs=unknown_inputs,
            finish=finish,
        )
        return tmp_path / "draft", target

    return make


def test_a_row_trained_for_unknown_inputs_is_recorded(exported, tmp_path):
    folder, _ = exported(unknown_inputs=True)
    found, init = read_draft_vocabulary(folder), read_draft_vocabulary(tmp_path / "init")
    assert (found.ids, found.origin, found.unknown_id) == (init.ids, init.origin, 263)


def test_a_draft_that_says_everything_has_no_card(tiny_draft, tmp_path):
    init = shutil.copytree(tiny_draft, tmp_path / "init")
    student = load_model(init, dtype="float32", device="cpu")
    saved = {f"student.lm.{name}": tensor for name, tensor in student.state_dict().items()}
    torch.save({"state": {"model": saved}}, tmp_path / "checkpoint.pt")
    export_checkpoint(tmp_path / "checkpoint.pt", init, tmp_path / "draft", target=init, dtype="float32", finish=finish)
    assert not (tmp_path / "draft" / "README.md").exists()
    assert not (tmp_path / "draft" / "draft_vocabulary.json").exists()
