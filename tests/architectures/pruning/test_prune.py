"""Pruning: what is kept is kept bit for bit, what is cut is cut everywhere, and nothing half-written remains."""

import shutil
import subprocess
import sys
from errno import ENOSPC
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from architectures.checkpoint import TensorInfo, write_weights
from architectures.hub import read_config
from architectures.pruning.prune import prune_checkpoint
from architectures.shapes import checkpoint_tensors
from tests.architectures.cuts import edit_weights, load, logits, plan_for, shape_of, write_config
from tests.rejections import rejects


@pytest.fixture
def copy(tiny_target, tmp_path):
    """A target of one's own to damage."""
    return Path(shutil.copytree(tiny_target, tmp_path / "target"))


def test_a_stored_copy_of_a_tied_head_is_dropped(copy, tmp_path):
    expected = logits(load(copy))
    edit_weights(copy, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))

    prune_checkpoint(copy, plan_for(copy, layers=4), tmp_path / "draft")

    assert "lm_head.weight" not in load_file(tmp_path / "draft" / "model.safetensors")
    assert torch.equal(logits(load(tmp_path / "draft")), expected)


def test_old_rotary_buffers_are_dropped_and_other_strangers_refused(copy, tmp_path):
    edit_weights(copy, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    prune_checkpoint(copy, plan_for(copy, layers=4), tmp_path / "draft")
    assert torch.equal(logits(load(tmp_path / "draft")), logits(load(copy)))

    edit_weights(copy, lambda tensors: tensors.update({"model.layers.3.self_attn.q_proj.lora_A": torch.ones(8)}))
    with rejects("model.layers.3.self_attn.q_proj.lora_A"):
        prune_checkpoint(copy, plan_for(copy, layers=2), tmp_path / "draft2")


def test_a_sharded_target_gives_the_same_draft(tiny_target, copy, tmp_path):
    AutoModelForCausalLM.from_pretrained(tiny_target).save_pretrained(copy, max_shard_size="100KB")
    (copy / "model.safetensors").unlink(missing_ok=True)
    assert len(list(copy.glob("model-*.safetensors"))) > 2

    for target, out in ((tiny_target, "one"), (copy, "many")):
        prune_checkpoint(target, plan_for(target, layers=3), tmp_path / out)

    one, many = (tmp_path / out / "model.safetensors" for out in ("one", "many"))
    assert one.read_bytes() == many.read_bytes()


def test_dtype_is_cast_only_when_asked(tiny_target, tmp_path):
    prune_checkpoint(tiny_target, plan_for(tiny_target, layers=2), tmp_path / "as_is")
    prune_checkpoint(tiny_target, plan_for(tiny_target, layers=2), tmp_path / "cast", dtype="bfloat16")

    as_is, cast = (load_file(tmp_path / out / "model.safetensors") for out in ("as_is", "cast"))
    assert {tensor.dtype for tensor in as_is.values()} == {torch.float32}
    assert all(torch.equal(cast[name], as_is[name].bfloat16()) for name in as_is)
    assert read_config(tmp_path / "as_is")["dtype"] == "float32"
    assert read_config(tmp_path / "cast")["dtype"] == "bfloat16"


def test_a_layers_own_dtype_comes_along_when_none_is_asked(copy, tmp_path):
    mixed = edit_weights(
        copy, lambda every: every.update({n: t.bfloat16() for n, t in every.items() if ".layers.3." in n})
    )

    prune_checkpoint(copy, plan_for(copy, layers=2), tmp_path / "draft")  # layers 0 and 3

    draft = load_file(tmp_path / "draft" / "model.safetensors")
    assert draft["model.layers.0.mlp.up_proj.weight"].dtype == torch.float32
    assert draft["model.layers.1.mlp.up_proj.weight"].dtype == torch.bfloat16
    assert torch.equal(draft["model.layers.1.mlp.up_proj.weight"], mixed["model.layers.3.mlp.up_proj.weight"])


def test_dtype_goes_under_the_name_the_config_uses(copy, tmp_path):
    write_config(copy, without=["dtype"], torch_dtype="float32")

    prune_checkpoint(copy, plan_for(copy, layers=2), tmp_path / "draft", dtype="float16")

    draft = read_config(tmp_path / "draft")
    assert draft["torch_dtype"] == "float16"
    assert "dtype" not in draft
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype="auto").dtype == torch.float16


def test_sizes_an_engine_might_guess_are_written_out(make_checkpoint, tmp_path):
    target = make_checkpoint(num_key_value_heads=4, tie_word_embeddings=False)
    before, left_out = read_config(target), {"head_dim", "architectures", "num_key_value_heads", "tie_word_embeddings"}
    write_config(target, without=left_out, _name_or_path="someone/target")

    prune_checkpoint(target, plan_for(target, layers=2), tmp_path / "draft")

    draft = read_config(tmp_path / "draft")
    assert {key: draft[key] for key in left_out} == {key: before[key] for key in left_out}
    assert (draft["num_hidden_layers"], draft["vocab_size"]) == (2, 264)
    assert "_name_or_path" not in draft


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}])
def test_rotary_entries_are_written_for_transformers_4_too(make_checkpoint, tmp_path, rope):
    folder = make_checkpoint(rope_parameters=rope | {"rope_theta": 5e5})
    prune_checkpoint(folder, plan_for(folder, layers=2), tmp_path / "draft")
    config = read_config(tmp_path / "draft")
    assert config["rope_theta"] == 5e5
    assert config.get("rope_scaling", {"rope_type": "default"}) == rope
    assert AutoConfig.from_pretrained(tmp_path / "draft").rope_parameters == config["rope_parameters"]
    assert torch.equal(load(tmp_path / "draft").model.rotary_emb.inv_freq, load(folder).model.rotary_emb.inv_freq)


def test_layer_lists_and_window_layers_follow_the_cut(family_checkpoint, tmp_path):
    target = family_checkpoint("qwen2")
    prune_checkpoint(target, plan_for(target, layers=3, method="evenly_spaced"), tmp_path / "draft")

    draft = read_config(tmp_path / "draft")  # layers 0, 2 and 3, of which 2 and 3 have a window
    assert draft["layer_types"] == ["full_attention", "sliding_attention", "sliding_attention"]
    assert draft["max_window_layers"] == 1


@pytest.mark.parametrize(
    ("family", "kinds"),  # of layers 0, 2 and 3: qwen2 has windows from layer 2 on, Gemma and others but in each n-th
    [("qwen2", "fss"), ("gemma2", "ssf"), ("gemma3_text", "sfs"), ("olmo3", "ssf"), ("exaone4", "sfs")],
)
def test_an_older_config_without_layer_types_keeps_its_windows(family_copy, tmp_path, family, kinds):
    target = family_copy(family)
    pattern = {"sliding_window_pattern": 3} if family in ("gemma3_text", "exaone4") else {}
    write_config(target, without=["layer_types"], **pattern)

    prune_checkpoint(target, plan_for(target, layers=3, method="evenly_spaced"), tmp_path / "draft")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    assert "".join(kind[0] for kind in model.config.layer_types) == kinds


@pytest.mark.parametrize("value", [float("nan"), -float("nan")])
def test_a_nan_in_the_target_is_named_and_nothing_written(copy, tmp_path, value):
    edit_weights(copy, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"][3, 5].fill_(value))

    with rejects("model.safetensors", "model.layers.1.mlp.up_proj.weight", "NaN"):
        prune_checkpoint(copy, plan_for(copy, layers=3), tmp_path / "draft")
    assert not list(tmp_path.glob("draft*"))
    prune_checkpoint(copy, plan_for(copy, layers=2), tmp_path / "draft")  # layers 0 and 3: the bad one is not read


def test_a_layer_list_of_another_length_is_refused(copy, tmp_path):
    write_config(copy, layer_types=["full_attention"] * 5)
    with rejects("layer_types", 5, 4):
        prune_checkpoint(copy, plan_for(copy, layers=2), tmp_path / "draft")
    assert not list(tmp_path.glob("draft*"))


def test_a_target_without_tokenizer_is_refused(copy, tmp_path):
    (copy / "tokenizer.json").unlink()
    with rejects("tokenizer.json"):
        prune_checkpoint(copy, plan_for(copy, layers=2), tmp_path / "draft")


def test_an_error_in_the_middle_leaves_the_earlier_draft(tiny_target, tmp_path, monkeypatch):
    out = tmp_path / "draft"
    prune_checkpoint(tiny_target, plan_for(tiny_target, layers=2), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def stop(folder: Path) -> None:
        raise OSError(ENOSPC, "full")

    with rejects(ENOSPC, error=OSError):
        prune_checkpoint(tiny_target, plan_for(tiny_target, layers=3), out, finish=stop)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]

    prune_checkpoint(tiny_target, plan_for(tiny_target, layers=3), out)
    assert read_config(out)["num_hidden_layers"] == 3


# VmHWM, since ru_maxrss of a child starts at what its parent held.
MEASURE = """
import sys
from pathlib import Path
from architectures.pruning.prune import prune_checkpoint
from architectures.pruning.plan import plan_pruning
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import Shape
from architectures.hub import read_config

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
    """A 170 MB target in four shards, 140 MB of it kept; its largest tensor has 9 MB."""
    write_config(copy, hidden_size=512, intermediate_size=4500, num_hidden_layers=6)
    (copy / "model.safetensors").unlink()
    sizes = checkpoint_tensors(shape_of(copy))
    layout = {name: TensorInfo(torch.float32, size) for name, size in sizes.items()}
    write_weights(layout, lambda name: torch.ones(sizes[name]), copy, max_shard_bytes=5 * 10**7)
    assert sum(path.stat().st_size for path in copy.glob("model-*-of-00004.safetensors")) > 165e6

    command = [sys.executable, "-c", MEASURE, str(copy), str(tmp_path / "draft")]
    grown_kib = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert (tmp_path / "draft" / "model.safetensors").stat().st_size > 135e6
    assert grown_kib * 1024 < 60e6
