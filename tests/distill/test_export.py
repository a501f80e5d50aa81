"""The draft folder: the trained student, bit for bit, in a folder that transformers opens as it is."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from architectures.hub import read_config
from architectures.manifest import write_manifest
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.export import export_checkpoint
from distill.train import train
from tests.rejections import rejects

PROMPT_IDS = torch.tensor([[1, 70, 80, 90, 100, 110, 2, 13, 40]])


def finish(folder: Path) -> None:
    write_manifest(folder, stage="export", inputs={})


@pytest.fixture
def trained(make_run):
    """make(**of make_run) -> (checkpoint, init) of a short training."""

    def make(**settings):
        recipe = make_run(max_duration="2ba", save_interval="1dur", scheduler={"t_warmup": "0ba"}, **settings)
        train(recipe)
        run = Path(recipe.run_dir)
        return find_checkpoints(run / "checkpoints")[-1], run / "init"

    return make


def student_of(checkpoint: Path, init: Path, dtype: str = "float32"):
    """The student as it was trained: the init model with the checkpoint's weights, which alone are cast to dtype.

    (`model.to(dtype)` would also round the rotary frequencies, which no loader does.)
    """
    model = AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)
    saved = torch.load(checkpoint, weights_only=False)["state"]["model"]
    model.load_state_dict({name.removeprefix("student.lm."): tensor for name, tensor in saved.items()}, strict=True)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return model.eval()


def stored_names(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


def test_loaded_logits_are_the_students_bit_for_bit(trained, tmp_path):
    checkpoint, init = trained()
    for dtype in ("float32", "bfloat16", "float16"):
        out = tmp_path / dtype
        export_checkpoint(checkpoint, init, out, target=init, dtype=dtype, finish=finish)
        draft = AutoModelForCausalLM.from_pretrained(out)
        assert draft.dtype == getattr(torch, dtype)
        assert torch.equal(draft(PROMPT_IDS).logits, student_of(checkpoint, init, dtype)(PROMPT_IDS).logits)
        undistilled = AutoModelForCausalLM.from_pretrained(init, dtype=getattr(torch, dtype))
        assert not torch.equal(draft(PROMPT_IDS).logits, undistilled(PROMPT_IDS).logits)
        assert not {"README.md", "draft_vocabulary.json"} & {path.name for path in out.iterdir()}  # of a whole head


@pytest.mark.parametrize("tied", [True, False])
def test_tied_stays_tied_and_untied_untied(trained, make_checkpoint, tmp_path, tied):
    checkpoint, init = trained(init=make_checkpoint(seed=3, num_hidden_layers=2, tie_word_embeddings=tied))
    export_checkpoint(checkpoint, init, tmp_path / "draft", target=init, dtype="float32", finish=finish)
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    assert (draft.lm_head.weight is draft.model.embed_tokens.weight) == tied
    assert ("lm_head.weight" in stored_names(tmp_path / "draft")) == (not tied)
    assert stored_names(tmp_path / "draft") == stored_names(init)
    assert torch.equal(draft(PROMPT_IDS).logits, student_of(checkpoint, init)(PROMPT_IDS).logits)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gemma3_text", {"query_pre_attn_scalar": 16}),
        ("phi3", {}),
        ("smollm3", {"no_rope_layers": [1, 0, 0, 1]}),
        ("olmo2", {}),
        ("granite", {"logits_scaling": 3.0}),
        ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
        ("gpt_neox", {"tie_word_embeddings": False}),  # its module calls the head by another name than its files
        ("bloom", {"n_layer": 4, "n_head": 4}),
        ("gpt2", {"n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 512}),
        ("gpt_bigcode", {"n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 512}),
    ],
)
def test_every_family_is_exported_under_the_names_of_its_files(make_checkpoint, tmp_path, family, settings):
    init = make_checkpoint(model_type=family, **settings)
    student = AutoModelForCausalLM.from_pretrained(make_checkpoint(model_type=family, seed=4, **settings)).eval()
    saved = {f"student.lm.{name}": tensor for name, tensor in student.state_dict().items()}
    torch.save({"state": {"model": saved}}, tmp_path / "checkpoint.pt")

    export_checkpoint(tmp_path / "checkpoint.pt", init, tmp_path / "draft", target=init, dtype="float32", finish=finish)

    assert stored_names(tmp_path / "draft") == stored_names(init)
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    assert torch.equal(draft(PROMPT_IDS).logits, student(PROMPT_IDS).logits)


def test_a_checkpoint_of_another_init_is_refused_by_name(trained, make_checkpoint, tmp_path):
    whole, init = trained()
    untied, _ = trained(name="untied", init=make_checkpoint(num_hidden_layers=2, tie_word_embeddings=False))
    for checkpoint, overrides, problem in (
        (whole, {"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight"),
        (whole, {"num_hidden_layers": 1}, "model.layers.1."),
        (whole, {"num_hidden_layers": 2, "intermediate_size": 96}, "model.layers.0.mlp.down_proj"),
        (untied, {"num_hidden_layers": 2}, "lm_head.weight"),
    ):
        other, out = make_checkpoint(**overrides), tmp_path / "draft"
        with rejects(problem):
            export_checkpoint(checkpoint, other, out, target=init, dtype="float32", finish=finish)
        assert not out.exists()


@pytest.mark.parametrize("tied", [True, False])
def test_the_draft_has_the_targets_vocabulary(trained, make_checkpoint, tmp_path, tied):
    checkpoint, init = trained(init=make_checkpoint(seed=2, num_hidden_layers=2, tie_word_embeddings=tied))
    expected = student_of(checkpoint, init)(PROMPT_IDS).logits
    for vocab_size in (259, 264, 300):
        target, out = make_checkpoint(vocab_size=vocab_size, num_hidden_layers=1), tmp_path / str(vocab_size)
        export_checkpoint(checkpoint, init, out, target=target, dtype="float32", finish=finish)
        draft = AutoModelForCausalLM.from_pretrained(out)
        assert draft.config.vocab_size == vocab_size
        assert draft.get_input_embeddings().weight.shape == (vocab_size, 64)
        rows, logits = min(264, vocab_size), draft(PROMPT_IDS).logits
        torch.testing.assert_close(logits[..., :rows], expected[..., :rows], rtol=1e-5, atol=1e-5)
        added = expected.mean(dim=-1, keepdim=True).expand(*logits.shape[:-1], vocab_size - rows)
        torch.testing.assert_close(logits[..., rows:], added, rtol=1e-4, atol=1e-4)


def test_what_is_the_targets_is_taken_from_it_and_not_from_an_init_made_otherwise(trained, make_checkpoint, tmp_path):
    checkpoint, init = trained()
    target = make_checkpoint(eos_token_id=[2, 7], pad_token_id=None)
    (target / "chat_template.jinja").write_text("another {{ messages }}")
    (target / "generation_config.json").write_text('{"eos_token_id": [2, 7],\n  "odd":  "spacing"}')
    (init / "added_tokens.json").write_text("{}")
    export_checkpoint(checkpoint, init, tmp_path / "draft", target=target, dtype="float32", finish=finish)
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "draft" / name).read_bytes() == (target / name).read_bytes(), name
    assert not (tmp_path / "draft" / "added_tokens.json").exists()
    config = read_config(tmp_path / "draft")
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, [2, 7], None)
