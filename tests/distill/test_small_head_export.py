"""A trained draft with a small head is exported with what it says, its unknown row, and a card that opens it."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from architectures.checkpoints.manifest import write_manifest
from architectures.pruning.prune import prune_checkpoint
from architectures.pruning.selection import plan_pruning
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from architectures.vocabulary import read_draft_vocabulary
from architectures.vocabulary_head import head_ids
from distill.export import export_checkpoint
from eval.models.loading import load_model

IDS = (1, 2, *range(10, 200, 3))
FAMILIES = {
    "llama": {},
    "gemma2": {"query_pre_attn_scalar": 16},  # whose logits are capped behind the head
    "granite": {"logits_scaling": 3.0},  # whose logits are divided behind the head
    "gpt_neox": {"tie_word_embeddings": False},  # which calls the head otherwise in its files
    "gpt2": {"n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 512},
}
INPUTS = torch.randint(0, 264, (2, 20), generator=torch.Generator().manual_seed(1))


def finish(folder: Path) -> None:
    write_manifest(folder, stage="export", inputs={})


@pytest.fixture
def exported(make_checkpoint, tmp_path):
    """exported(family, unknown_inputs) -> folder of an exported draft, and its target's."""

    def make(family: str = "llama", *, unknown_inputs: bool = False):
        target = make_checkpoint(model_type=family, seed=1, **FAMILIES[family])
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


def snippet_of(folder: Path) -> str:
    """The code of a card."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.DOTALL)
    return code


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cards_code_opens_the_draft_with_transformers_alone(exported, monkeypatch, family):
    folder, _ = exported(family)
    ours = load_model(folder, dtype="float32", device="cpu")
    assert "architectures" not in snippet_of(folder)
    monkeypatch.chdir(folder)
    draft = run_snippet(snippet_of(folder))
    ids_K = head_ids(ours)
    with torch.no_grad():
        logits_BTV, ours_BTK = draft(INPUTS).logits, ours(INPUTS).logits
    assert logits_BTV.shape[-1] == 264
    torch.testing.assert_close(logits_BTV[..., ids_K], ours_BTK)
    assert torch.equal(logits_BTV.argmax(dim=-1), ids_K[ours_BTK.argmax(dim=-1)])
    others = [id_ for id_ in range(264) if id_ not in IDS]
    assert logits_BTV[..., others].max() <= ours_BTK.min()


def run_snippet(code: str):
    """The draft that a card's code makes in the current folder."""
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)  # what the card tells its reader to run
    return names["draft"]


def test_the_cards_draft_assists_transformers_and_changes_no_text(exported, monkeypatch):
    folder, target_folder = exported()
    target = AutoModelForCausalLM.from_pretrained(target_folder).eval()
    monkeypatch.chdir(folder)
    draft = run_snippet(snippet_of(folder))
    inputs = INPUTS[:1, :8]
    plain = target.generate(inputs, max_new_tokens=24, do_sample=False)
    assert torch.equal(target.generate(inputs, max_new_tokens=24, do_sample=False, assistant_model=draft), plain)
    sampled = target.generate(inputs, max_new_tokens=24, do_sample=True, assistant_model=draft)
    assert sampled.shape[1] > inputs.shape[1]


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
