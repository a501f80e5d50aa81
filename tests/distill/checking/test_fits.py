"""Memory of every stage on machines that are told of; what cannot fit is refused, with what would make it fit."""

import json
from dataclasses import replace
from pathlib import Path

from distill.checking.fits import remedy
from distill.estimates.memory import student_parts
from distill.recipe.recipe import Recipe, save_recipe
from tests.distill.estimates.test_memory import WIDE
from widedraft import main

LLAMA_70B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "vocab_size": 32000}
LLAMA_70B |= {"intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
SHARDS = {"parallelism": "fsdp2", "teacher": {"parallelism": "fsdp2"}, "device_train_microbatch_size": 1}


def told(tmp_path: Path, monkeypatch, capfd, target: str, architecture, distill, *flags: str) -> tuple[int, str]:
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text("".join(json.dumps({"prompt": f"Count to {n}."}) + "\n" for n in range(8)))
    masks = architecture.get("method") == "learned_masks"
    words = {"text": {"domains": [{"name": "a", "path": "p.jsonl", "field": "prompt"}]}} if masks else {}
    recipe = {"run_name": "r", "run_dir": "run", "target": {"path": target, "dtype": "bfloat16"}, **words}
    recipe |= {"architecture": architecture, "data": {"prompts": [{"path": "p.jsonl"}], "num_eval_prompts": 2}}
    recipe |= {"distill": distill, "eval": {"num_prompts": 2, "policy_prompts": 0}}
    save_recipe(Recipe.model_validate(recipe), Path("r.yaml"))
    code = main(["check", "r.yaml", *flags])
    out, err = capfd.readouterr()
    return code, out + err


def test_masks_of_7b_fit_eight_devices_in_shards_and_are_refused_whole(tmp_path, monkeypatch, capfd):
    wanted = {"shape": "wide-1.3b", "method": "learned_masks", "masks": {"device_train_microbatch_size": 1}}
    place = "meta-llama/Llama-2-7b-hf", wanted
    flags = "--processes", "8", "--device-gib", "80"
    code, said = told(tmp_path, monkeypatch, capfd, *place, {"device_train_microbatch_size": 1}, *flags)
    assert code == 2
    assert "mask training: one of 8 processes needs" in said
    assert "distill.parallelism: fsdp2, distill.activation_checkpointing: true" in said
    code, said = told(tmp_path, monkeypatch, capfd, *place, SHARDS, *flags)
    assert code == 0
    for stage in ("answers", "calibration", "mask training", "distillation", "scorecard"):
        assert f"{stage}, " in said
    assert "27.0 GiB  mask training, estimated" in said


def test_a_target_of_70b_is_refused_where_it_is_whole(tmp_path, monkeypatch, capfd):
    (tmp_path / "70b").mkdir()
    (tmp_path / "70b" / "config.json").write_text(json.dumps(LLAMA_70B))
    layers = {"layers": 4, "method": "first_last"}
    flags = "--processes", "8", "--device-gib", "80"
    code, said = told(tmp_path, monkeypatch, capfd, str(tmp_path / "70b"), layers, SHARDS, *flags)
    assert code == 2
    assert "answers: one of 8 processes needs" in said
    assert "Use target.placement: layers" in said
    assert "distillation: one of" not in said


def test_copies_are_divided_over_their_own_processes():
    over = replace(WIDE, sharded=True, shard_degree=8)
    assert student_parts(over, 64)[0].size_bytes == student_parts(replace(WIDE, sharded=True), 8)[0].size_bytes


def test_what_is_done_already_is_no_remedy():
    assert remedy(replace(WIDE, sharded=True, teacher_sharded=True, recomputed=True, microbatch=1)) == "more processes"


def test_a_gpu_whose_memory_is_known_refuses_what_one_of_eight_cannot_hold(tmp_path, monkeypatch, capfd):
    """Nobody said how many processes, nor how much a device has; micro-batches of auto go down to one sequence."""
    wanted = {"shape": "wide-1.3b", "method": "learned_masks"}
    place, device = ("meta-llama/Llama-2-7b-hf", wanted), ("--device", "nvidia-h100-80gb-hbm3")
    code, said = told(tmp_path, monkeypatch, capfd, *place, {}, *device)
    assert code == 2
    assert "mask training: one of 8 processes needs 159.7 GiB, estimated, and a device has 79.1 GiB." in said
    assert "a smaller device_train_microbatch_size" not in said
    code, said = told(tmp_path, monkeypatch, capfd, *place, {}, *device, "--device-gib", "192")
    assert code == 0
    assert "memory of one process (of 1), by stage, on devices of 192 GiB" in said
    assert "mask training, estimated: with micro-batches of 1, to which auto goes down" in said


def test_on_a_processor_every_stage_is_told_and_nothing_is_refused(tmp_path, monkeypatch, capfd):
    layers = {"layers": 4, "method": "first_last"}
    device = "--device", "amd-epyc-2-cores"
    code, said = told(tmp_path, monkeypatch, capfd, "meta-llama/Llama-2-7b-hf", layers, {}, *device)
    assert code == 0
    for stage in ("answers, at least", "calibration, at least", "distillation, estimated", "scorecard, at least"):
        assert f"GiB  {stage}" in said
