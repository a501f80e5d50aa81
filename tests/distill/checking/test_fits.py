"""Memory of every stage on machines that are told of; what cannot fit is refused, with what would make it fit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from architectures.errors import UserError
from architectures.shapes.shape import NAMED_SHAPES
from distill.checking.fits import Machines, Models, Need, refuse_beyond, remedy, stage_needs, stage_rows
from distill.estimates.memory import student_parts
from distill.estimates.trainings import trainings
from distill.recipe.recipe import Recipe, save_recipe
from tests.distill.estimates.test_memory import WIDE
from widedraft import main

LLAMA = NAMED_SHAPES["llama-7b"].shape
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
    recipe |= {"distill": distill, "eval": {"num_prompts": 2, "dtype": "bfloat16"}}
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
    for stage in ("answers", "mask training", "distillation", "scorecard"):
        assert f"\n  {stage}  " in said
    assert "\n  mask training    36.6 GiB  the parts below, at their fullest\n" in said
    assert "  answers: fits, and " in said


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
    assert "memory of one process (of 1) in every stage, estimated at its fullest; a device has 192 GiB" in said
    assert "GiB  with micro-batches of 1, to which auto goes down" in said


def test_on_a_processor_every_stage_is_told_and_nothing_is_refused(tmp_path, monkeypatch, capfd):
    layers = {"layers": 4, "method": "first_last"}
    device = "--device", "amd-epyc-2-cores"
    code, said = told(tmp_path, monkeypatch, capfd, "meta-llama/Llama-2-7b-hf", layers, {}, *device)
    assert code == 0
    for stage in ("answers", "distillation", "scorecard"):
        assert f"\n  {stage}  " in said
    assert "calibration" not in said.split("disk (")[0]  # first_last asks for no scores
    assert "a device has" not in said


def needs_of(recipe: Recipe, **placed: int) -> dict[str, Need]:
    models = Models(LLAMA, LLAMA, LLAMA, 0, on_gpu=True)
    trained = trainings(recipe, LLAMA, LLAMA, on_gpu=True)
    return {need.stage: need for need in stage_needs(recipe, models, trained=trained, **{"processes": 8, **placed})}


def recipe_with(**sections: object) -> Recipe:
    base = {"run_name": "r", "run_dir": "run", "target": {"path": "meta-llama/Llama-2-7b-hf", "dtype": "bfloat16"}}
    base |= {"data": {"prompts": [{"path": "p.jsonl"}], "num_eval_prompts": 2}}
    base |= {"architecture": {"layers": 4, "method": "first_last"}, "distill": SHARDS}
    return Recipe.model_validate(base | sections)


def test_more_processes_hold_less_and_the_number_that_is_told_decides():
    few, many = (needs_of(recipe_with(), processes=count)["distillation"].least_bytes for count in (2, 8))
    assert many < few
    between = (few + many) / 2 / 2**30
    for count, refused in ((2, True), (8, False), (None, False)):
        needs = [needs_of(recipe_with(), processes=count or 8)["distillation"]]
        if refused:
            with pytest.raises(UserError, match="distillation: one of 2 processes needs"):
                refuse_beyond(needs, Machines(count, between))
        else:
            refuse_beyond(needs, Machines(count, between))


def test_the_number_of_processes_reaches_what_is_told_and_what_is_refused(tmp_path, monkeypatch, capfd):
    place = "meta-llama/Llama-2-7b-hf", {"layers": 4, "method": "first_last"}
    found = {}
    for count in ("1", "2", "8"):
        _, found[count] = told(tmp_path, monkeypatch, capfd, *place, SHARDS, "--processes", count)
    assert len({told_of(said, "distillation") for said in found.values()}) == 3
    limit = "--device-gib", "20"  # 33 GiB of one process, 9 of eight
    assert (
        "distillation: one of 1 process needs"
        in told(tmp_path, monkeypatch, capfd, *place, SHARDS, "--processes", "1", *limit)[1]
    )
    assert "distillation: one of" not in told(tmp_path, monkeypatch, capfd, *place, SHARDS, *limit)[1]


def told_of(said: str, stage: str) -> str:
    return next(line for line in said.splitlines() if line.startswith(f"  {stage}  "))


def test_only_what_a_stage_cannot_do_without_is_refused_and_the_rest_is_said():
    """Texts need not be as long as the recipe allows."""
    need = Need("answers", 50 * 2**30, 40 * 2**30, "target", "target.bits")
    for held, refused in ((39.9, True), (40.0, False)):
        if refused:
            with pytest.raises(UserError, match=r"answers: one of 8 processes needs 40\.0 GiB, at least, .* 39\.9 GiB"):
                refuse_beyond([need], Machines(8, held))
        else:
            refuse_beyond([need], Machines(8, held))
    [rows] = stage_rows([need], Machines(8, 45.0)).values()
    assert "does not fit where texts are as long as the recipe allows. Use for answers: target.bits" in rows[-1][1]
    [rows] = stage_rows([need], Machines(8, 51.0)).values()
    assert rows[-1][1].endswith("answers: fits, and 1.0 GiB are left")
    refuse_beyond([need], Machines(8, None))


def test_a_stage_is_told_by_how_its_models_are_held():
    whole = needs_of(recipe_with(distill={"teacher": {"source": "cache"}}))
    head = needs_of(recipe_with(distill={"teacher": {"source": "cache", "captured_while": "answering"}}))
    assert head["teacher's cache"].least_bytes == LLAMA.vocab * LLAMA.hidden * 2
    assert whole["teacher's cache"].least_bytes == LLAMA.weight_bytes("bfloat16")
    held = {"path": "meta-llama/Llama-2-7b-hf", "dtype": "bfloat16", "placement": "layers"}
    layers = needs_of(recipe_with(target=held, distill={"teacher": {"source": "cache"}}))
    assert layers["teacher's cache"].size_bytes < LLAMA.weight_bytes("bfloat16")
    assert "calibration" not in whole
    greedy = needs_of(recipe_with(architecture={"layers": 4, "method": "greedy"}))
    assert greedy["calibration"].size_bytes > LLAMA.weight_bytes("bfloat16")


def test_a_scorecard_holds_the_draft_before_and_after_in_the_type_it_is_scored_in():
    halves, wholes = (needs_of(recipe_with(eval={"dtype": dtype}))["scorecard"] for dtype in ("bfloat16", "float32"))
    assert halves.size_bytes > 3 * LLAMA.weight_bytes("bfloat16")
    assert wholes.size_bytes > 3 * LLAMA.weight_bytes("float32")
