"""Pruning: what is kept is kept bit for bit, what is cut is cut everywhere, and nothing half-written remains."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from architectures.checkpoints.weights import TensorInfo, write_weights
from architectures.errors import UserError
from architectures.pruning.plan import PruningPlan
from architectures.pruning.prune import prune_checkpoint
from architectures.pruning.selection import plan_pruning
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape, checkpoint_tensors
from architectures.targets.target import read_config

IDS = torch.arange(3, 35)[None]


def plan_for(target: Path, num_layers: int, method: str = "first_last") -> PruningPlan:
    config = ArchitectureConfig(layers=num_layers, method=method)
    return plan_pruning(Shape.from_config(read_config(target)), config)


def logits(folder: Path, **options) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **options).eval()
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture
def copy(tiny_target, tmp_path):
    """A target of one's own to damage."""
    return Path(shutil.copytree(tiny_target, tmp_path / "target"))


def test_tied_embeddings_stay_tied_and_are_stored_once(tiny_target, tmp_path):
    prune_checkpoint(tiny_target, plan_for(tiny_target, 2), tmp_path / "draft")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in load_file(tmp_path / "draft" / "model.safetensors")


def test_a_stored_copy_of_a_tied_head_is_dropped(copy, tmp_path):
    expected = logits(copy)
    tensors = load_file(copy / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})

    prune_checkpoint(copy, plan_for(copy, 4), tmp_path / "draft")

    assert "lm_head.weight" not in load_file(tmp_path / "draft" / "model.safetensors")
    assert torch.equal(logits(tmp_path / "draft"), expected)


def test_a_tied_head_that_differs_is_refused(copy, tmp_path):
    tensors = load_file(copy / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1e-6
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(UserError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft")


def test_old_rotary_buffers_are_dropped_and_other_strangers_refused(copy, tmp_path):
    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    prune_checkpoint(copy, plan_for(copy, 4), tmp_path / "draft")
    assert torch.equal(logits(tmp_path / "draft"), logits(copy))

    tensors["model.layers.3.self_attn.q_proj.lora_A"] = torch.ones(8)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"model\.layers\.3\.self_attn\.q_proj\.lora_A is not a tensor of this family"):
        prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft2")


def test_a_sharded_target_gives_the_same_draft(tiny_target, copy, tmp_path):
    AutoModelForCausalLM.from_pretrained(tiny_target).save_pretrained(copy, max_shard_size="100KB")
    (copy / "model.safetensors").unlink(missing_ok=True)
    assert len(list(copy.glob("model-*.safetensors"))) > 2

    for target, out in ((tiny_target, "one"), (copy, "many")):
        prune_checkpoint(target, plan_for(target, 3), tmp_path / out)

    one, many = (tmp_path / out / "model.safetensors" for out in ("one", "many"))
    assert one.read_bytes() == many.read_bytes()


def test_dtype_is_cast_only_when_asked(tiny_target, tmp_path):
    prune_checkpoint(tiny_target, plan_for(tiny_target, 2), tmp_path / "as_is")
    prune_checkpoint(tiny_target, plan_for(tiny_target, 2), tmp_path / "cast", dtype="bfloat16")

    as_is, cast = (load_file(tmp_path / out / "model.safetensors") for out in ("as_is", "cast"))
    assert {tensor.dtype for tensor in as_is.values()} == {torch.float32}
    assert all(torch.equal(cast[name], as_is[name].bfloat16()) for name in as_is)
    assert read_config(tmp_path / "as_is")["dtype"] == "float32"
    assert read_config(tmp_path / "cast")["dtype"] == "bfloat16"


def test_a_layers_own_dtype_comes_along_when_none_is_asked(copy, tmp_path):
    tensors = load_file(copy / "model.safetensors")
    mixed = {name: tensor.bfloat16() if ".layers.3." in name else tensor for name, tensor in tensors.items()}
    save_file(mixed, copy / "model.safetensors", metadata={"format": "pt"})

    prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft")  # layers 0 and 3

    draft = load_file(tmp_path / "draft" / "model.safetensors")
    assert draft["model.layers.0.mlp.up_proj.weight"].dtype == torch.float32
    assert draft["model.layers.1.mlp.up_proj.weight"].dtype == torch.bfloat16
    assert torch.equal(draft["model.layers.1.mlp.up_proj.weight"], mixed["model.layers.3.mlp.up_proj.weight"])


def test_dtype_goes_under_the_name_the_config_uses(copy, tmp_path):
    config = read_config(copy)
    config["torch_dtype"] = config.pop("dtype")
    (copy / "config.json").write_text(json.dumps(config))

    prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft", dtype="float16")

    draft = read_config(tmp_path / "draft")
    assert draft["torch_dtype"] == "float16"
    assert "dtype" not in draft
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype="auto").dtype == torch.float16


def test_sizes_an_engine_might_guess_are_written_out(make_checkpoint, tmp_path):
    target = make_checkpoint(num_key_value_heads=4, tie_word_embeddings=False)
    config = read_config(target) | {"_name_or_path": "someone/target"}
    for key in ("head_dim", "architectures", "num_key_value_heads", "tie_word_embeddings"):
        del config[key]
    (target / "config.json").write_text(json.dumps(config))

    prune_checkpoint(target, plan_for(target, 2), tmp_path / "draft")

    draft = read_config(tmp_path / "draft")
    expected = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": False,
        "vocab_size": 264,
    }
    assert {key: draft[key] for key in expected} == expected
    assert "_name_or_path" not in draft


def test_layer_lists_and_window_layers_follow_the_cut(family_checkpoint, tmp_path):
    target = family_checkpoint("qwen2")
    prune_checkpoint(target, plan_for(target, 3, "evenly_spaced"), tmp_path / "draft")

    draft = read_config(tmp_path / "draft")  # layers 0, 2 and 3, of which 2 and 3 have a window
    assert draft["layer_types"] == ["full_attention", "sliding_attention", "sliding_attention"]
    assert draft["max_window_layers"] == 1


@pytest.mark.parametrize(
    ("family", "kinds"),  # of layers 0, 2 and 3: qwen2 has windows from layer 2 on, Gemma but in each second or third
    [("qwen2", "fss"), ("gemma2", "ssf"), ("gemma3_text", "sfs")],
)
def test_an_older_config_without_layer_types_keeps_its_windows(family_copy, tmp_path, family, kinds):
    target = family_copy(family)
    config = read_config(target)
    del config["layer_types"]
    if family == "gemma3_text":
        config["sliding_window_pattern"] = 3
    (target / "config.json").write_text(json.dumps(config))

    prune_checkpoint(target, plan_for(target, 3, "evenly_spaced"), tmp_path / "draft")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    assert "".join(kind[0] for kind in model.config.layer_types) == kinds


@pytest.mark.parametrize("value", [float("nan"), -float("nan")])
def test_a_nan_in_the_target_is_named_and_nothing_written(copy, tmp_path, value):
    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(UserError, match=r"model\.safetensors: model\.layers\.1\.mlp\.up_proj\.weight holds NaN"):
        prune_checkpoint(copy, plan_for(copy, 3), tmp_path / "draft")
    assert not list(tmp_path.glob("draft*"))
    prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft")  # layers 0 and 3: the bad one is not read


def test_a_layer_list_of_another_length_is_refused(copy, tmp_path):
    config = read_config(copy) | {"layer_types": ["full_attention"] * 5}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="layer_types has 5 entries for 4 layers"):
        prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft")
    assert not list(tmp_path.glob("draft*"))


def test_tokenizer_and_generation_files_are_carried_byte_for_byte(copy, tmp_path):
    (copy / "generation_config.json").write_text('{"eos_token_id": [2, 0],\n  "odd":  "spacing"}')
    (copy / "additional_chat_templates").mkdir()
    (copy / "additional_chat_templates" / "tool.jinja").write_text("{{ 1 }}")
    (copy / "README.md").write_text("the target's own page")

    prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft")

    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
        "additional_chat_templates/tool.jinja",
    ):
        assert (tmp_path / "draft" / name).read_bytes() == (copy / name).read_bytes()
    assert not (tmp_path / "draft" / "README.md").exists()
    text = "Ünï <|im_end|> text"
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (copy, tmp_path / "draft")]
    assert tokenizers[0](text).input_ids == tokenizers[1](text).input_ids


def test_a_target_without_tokenizer_is_refused(copy, tmp_path):
    (copy / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"holds no tokenizer \(tokenizer\.json, tokenizer\.model, vocab\.json\)"):
        prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft")


def test_a_plan_for_another_shape_is_a_bug(tiny_target, make_checkpoint, tmp_path):
    plan = plan_for(make_checkpoint(num_hidden_layers=5), 2)
    with pytest.raises(ValueError, match="the plan was made for"):
        prune_checkpoint(tiny_target, plan, tmp_path / "draft")


def test_damaged_weights_are_refused_before_anything_is_written(copy, tmp_path):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged or cut short"):
        prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "draft")
    assert not list(tmp_path.glob("draft*"))


def test_finish_sees_the_whole_folder_before_it_takes_its_place(tiny_target, tmp_path):
    out = tmp_path / "draft"
    seen = []

    def finish(folder: Path) -> None:
        seen.extend(sorted(path.name for path in folder.iterdir()))
        assert not out.exists()
        (folder / "manifest.json").write_text("{}")

    prune_checkpoint(tiny_target, plan_for(tiny_target, 2), out, finish=finish)

    assert {"config.json", "model.safetensors", "plan.json", "tokenizer.json"} <= set(seen)
    assert (out / "manifest.json").exists()


def test_an_error_in_the_middle_leaves_the_earlier_draft(tiny_target, tmp_path, monkeypatch):
    out = tmp_path / "draft"
    prune_checkpoint(tiny_target, plan_for(tiny_target, 2), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def stop(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        prune_checkpoint(tiny_target, plan_for(tiny_target, 3), out, finish=stop)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]

    prune_checkpoint(tiny_target, plan_for(tiny_target, 3), out)
    assert read_config(out)["num_hidden_layers"] == 3


def test_the_target_itself_and_foreign_folders_are_not_replaced(copy, tmp_path):
    with pytest.raises(UserError, match="cannot become a checkpoint made from"):
        prune_checkpoint(copy, plan_for(copy, 2), copy)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    with pytest.raises(UserError, match=r"exists, is not empty and holds no plan\.json"):
        prune_checkpoint(copy, plan_for(copy, 2), tmp_path / "notes")


# VmHWM, since ru_maxrss of a child starts at what its parent held.
MEASURE = """
import sys
from pathlib import Path
from architectures.pruning.prune import prune_checkpoint
from architectures.pruning.selection import plan_pruning
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config

def peak_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

target, out = map(Path, sys.argv[1:])
plan = plan_pruning(Shape.from_config(read_config(target)), ArchitectureConfig(layers=5, method="first_last"))
before = peak_kib()
prune_checkpoint(target, plan, out)
print(peak_kib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process its own peak")
def test_memory_holds_one_tensor_not_the_target(copy, tmp_path):
    """A 335 MB target in four shards, 279 MB of it kept; its largest tensor has 18 MB."""
    config = read_config(copy) | {"hidden_size": 512, "intermediate_size": 9000, "num_hidden_layers": 6}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "model.safetensors").unlink()
    sizes = checkpoint_tensors(Shape.from_config(config))
    layout = {name: TensorInfo(torch.float32, size) for name, size in sizes.items()}
    write_weights(layout, lambda name: torch.ones(sizes[name]), copy, max_shard_bytes=10**8)
    assert sum(path.stat().st_size for path in copy.glob("model-*-of-00004.safetensors")) > 330e6

    command = [sys.executable, "-c", MEASURE, str(copy), str(tmp_path / "draft")]
    grown_kib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert (tmp_path / "draft" / "model.safetensors").stat().st_size > 275e6
    assert grown_kib * 1024 < 60e6
