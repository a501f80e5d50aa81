"""`widedraft export`: of a recipe or of any checkpoint."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import widedraft
from architectures.gguf_import import import_gguf
from architectures.hub import read_config
from architectures.manifest import read_manifest
from distill import export
from distill.export import export_any
from eval.models import load_model


@pytest.fixture
def trained(make_checkpoint, with_merges, tmp_path):
    """(checkpoint, init, target): a student that is not its init, saved as trainings save it."""
    target = with_merges(make_checkpoint(seed=1))
    init, student = (make_checkpoint(seed=seed, num_hidden_layers=2) for seed in (2, 3))
    saved = load_model(student, dtype="float32", device="cpu").state_dict()
    state = {"model": {f"student.lm.{name}": tensor for name, tensor in saved.items()}}
    torch.save({"state": state}, tmp_path / "ep1-ba9-rank0.pt")
    return tmp_path / "ep1-ba9-rank0.pt", init, target


def words(trained, out, *more):
    checkpoint, init, target = map(str, trained)
    named = ["--checkpoint", checkpoint, "--init", init, "--target", target, "--to", str(out)]
    return ["export", *named, *more]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_any_checkpoint_becomes_a_folder(trained, tmp_path, dtype):
    out = tmp_path / "draft"
    assert widedraft.main(words(trained, out, "--dtype", dtype)) == 0

    saved = torch.load(trained[0])["state"]["model"]
    for name, tensor in load_file(out / "model.safetensors").items():
        assert torch.equal(tensor, saved[f"student.lm.{name}"].to(getattr(torch, dtype))), name
    assert read_config(out)["dtype"] == dtype
    manifest = read_manifest(out) or {}
    assert (manifest["stage"], set(manifest["inputs"])) == ("export", {"checkpoint", "init", "target"})
    assert (out / "tokenizer.json").read_bytes() == (trained[2] / "tokenizer.json").read_bytes()


def test_gguf_files_lie_in_the_folder(trained, tmp_path, capsys):
    out = tmp_path / "draft"
    assert widedraft.main(words(trained, out, "--dtype", "float16", "--gguf", "f16", "--gguf", "q4_0")) == 0

    said = capsys.readouterr().out
    assert {path.name for path in out.glob("*.gguf")} == {"draft-F16.gguf", "draft-Q4_0.gguf"}
    for kind in ("F16", "Q4_0"):
        assert f"{out / f'draft-{kind}.gguf'}: 0." in said
    import_gguf(out / "draft-F16.gguf", tmp_path / "back")
    ids = torch.arange(20)[None]
    ours, back = (
        AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32) for place in (out, tmp_path / "back")
    )
    assert torch.equal(ours(ids).logits, back(ids).logits)


def test_a_refused_gguf_leaves_the_draft(trained, make_checkpoint, tmp_path, capsys):
    without_merges = (*trained[:2], make_checkpoint(seed=1))
    assert widedraft.main(words(without_merges, tmp_path / "draft", "--gguf", "q8_0")) == 2
    assert "has no merges" in capsys.readouterr().err
    assert read_manifest(tmp_path / "draft") is not None
    assert not list((tmp_path / "draft").glob("*gguf*"))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "recipe"),
        (["--dtype", "float16", "r.yaml"], "--dtype"),
        (["--checkpoint", "c.pt", "--to", "d"], "--init"),
        (["--checkpoint", "c", "--init", "i", "--target", "t", "--to", "d", "seed=5"], "--checkpoint"),
        (["r.yaml", "--to", "d"], "--form"),
        (["r.yaml", "--form", "whole"], "--to"),
        ([".", "seed=5", "--form", "whole", "--to", "d"], ".: "),
        (["."], ".: "),
    ],
)
def test_words_that_do_not_go_together_are_refused(given, named, capsys):
    assert widedraft.main(["export", *given]) == 2
    assert named in capsys.readouterr().err


def test_what_is_no_checkpoint_is_refused(trained, tmp_path, capsys):
    checkpoint, init, target = trained
    cut = tmp_path / "cut.pt"
    cut.write_bytes(checkpoint.read_bytes()[:-40])
    for wrong in (tmp_path / "none.pt", cut):
        assert widedraft.main(words((wrong, init, target), tmp_path / "draft")) == 2
        assert f"{wrong}: " in capsys.readouterr().err
    assert widedraft.main(words((checkpoint, tmp_path / "none", target), tmp_path / "draft")) == 2
    assert not (tmp_path / "draft").exists()


def test_the_checkpoint_says_whether_it_read_unknown_ids(trained, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(export, "export_checkpoint", lambda *places, **options: seen.append(options["unknown_inputs"]))
    checkpoint, init, target = trained
    state = torch.load(checkpoint)["state"]
    for algorithms in ([], [("UnknownInputs", {})], [("GradientNorm", {})]):
        torch.save({"state": {**state, "algorithms": algorithms}}, checkpoint)
        export_any(checkpoint, init, tmp_path / "draft", target=target, dtype="float32")
    assert seen == [False, True, False]


def test_a_recipes_draft_gets_its_gguf_files_too(trained, make_run, tmp_path, monkeypatch):
    from distill import pipeline as stages

    recipe = make_run()
    folder = tmp_path / "run" / "draft"
    monkeypatch.setattr(stages, "export_stage", lambda recipe: shutil.copytree(trained[2], folder))
    assert widedraft.main(["export", str(tmp_path / "run" / "recipe.yaml"), "--gguf", "q8_0"]) == 0
    assert [path.name for path in folder.glob("*.gguf")] == [f"{recipe.run_name}-Q8_0.gguf"]
