"""Memory, steps, FLOPs and hours: formulas against what torch keeps and counts, and against values by hand."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from architectures.pruning.masks import Masks, masked
from architectures.requested_shape import ArchitectureConfig, draft_shape
from architectures.shapes import NAMED_SHAPES, Shape
from architectures.vocabulary_head import cut_head
from distill.estimate import (
    DEVICES,
    Device,
    PlannedShapes,
    Steps,
    Work,
    disk_bytes,
    find_device,
    forward_flops,
    layer_bytes_per_token,
    matrix_parameters,
    stage_memory,
    stage_seconds,
    step_seconds,
    training_flops,
    training_memory,
    training_steps,
)
from distill.losses import chunk_size
from distill.recipe.recipe import Recipe
from tests.rejections import rejects

LLAMA = NAMED_SHAPES["llama-7b"].shape
DRAFT = draft_shape(LLAMA, ArchitectureConfig(shape="wide-796m"))
SHAPES = PlannedShapes(LLAMA, LLAMA, DRAFT, "", (None, None))
B, T = 3, 50
SIZES = {"hidden_size": 96, "intermediate_size": 176, "num_attention_heads": 8, "head_dim": 16, "vocab_size": 300}


def recipe_of(distill=None, **sections) -> Recipe:
    values = {
        "run_name": "r",
        "target": {"path": "absent", "dtype": "bfloat16"},
        "architecture": {"shape": "wide-796m", "method": "first_last"},
        "data": {"self_written_prompts": 100, "num_eval_prompts": 4},
        "distill": {"precision": "amp_bf16", **(distill or {})},
        "eval": {"dtype": "bfloat16"},
        "export": {"dtype": "bfloat16"},
    }
    return Recipe.model_validate({**values, **sections})


def wide(data=None, **distill) -> Recipe:
    settings = {"global_train_batch_size": 64, "device_train_microbatch_size": 4, **distill}
    lengths = {"self_written_prompts": 100, "num_eval_prompts": 4, "max_seq_len": 2048, "max_new_tokens": 512}
    return recipe_of(settings, data={**lengths, **(data or {})})


def kept_bytes(model, shape: Shape, precision: str, *, masks: bool = False) -> int:
    """Bytes of the distinct storages a forward pass of the layers keeps, of those with a row per token."""
    found = {}

    def note(tensor):
        if any(length in (T, B * T) for length in tensor.shape) and tensor.dtype != torch.int64:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    gates = nullcontext()
    if masks:
        half = replace(shape, hidden=48, intermediate=88, heads=4, kv_heads=4)
        gates = masked(model, Masks(shape, half, seed=0).sampled(0), shape)
    bfloat16 = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp_bf16")
    with saved_tensors_hooks(note, lambda tensor: tensor), bfloat16, gates:
        ids_BT = torch.arange(B * T).view(B, T)
        states = model.base_model(input_ids=ids_BT, use_cache=False)
        hidden = states.last_hidden_state
    assert hidden.requires_grad
    return sum(count for count, _ in found.values())


@pytest.mark.parametrize("precision", ["amp_bf16", "fp32"])
@pytest.mark.parametrize(("family", "masks"), [("llama", False), ("llama", True), ("qwen2", False)])
def test_a_layer_keeps_what_torch_counts(family, masks, precision):
    from transformers import AutoConfig, AutoModelForCausalLM

    counts = []
    for layers in (1, 3):  # of two layers more: embedding, rotary tables and last norm cancel
        config = AutoConfig.for_model(family, **SIZES, num_key_value_heads=8, num_hidden_layers=layers)
        shape = Shape.from_config(config.to_dict())
        counts.append(kept_bytes(AutoModelForCausalLM.from_config(config), shape, precision, masks=masks))
    kept = (counts[1] - counts[0]) / 2 / (B * T)
    statistics = 2 * 4 + 4 * 8  # of two norms, and of attention for each head: not in the estimate
    assert kept - statistics == pytest.approx(layer_bytes_per_token(shape, precision, masks=masks), abs=1)


def test_parts_of_a_training():
    found = training_memory(wide(), SHAPES)
    assert found["weights"] + found["gradients"] + found["moments"] == 16 * DRAFT.parameters()
    assert found["teacher"] == 2 * LLAMA.parameters()
    assert found["bfloat16 matrices"] == 2 * matrix_parameters(DRAFT)
    assert matrix_parameters(DRAFT) == DRAFT.parameters() - 32000 * 4096 - 11 * 4096  # all but embedding and norms
    per_layer = layer_bytes_per_token(DRAFT, "amp_bf16")
    assert found["activations"] == 4 * 2048 * (5 * per_layer + 8 * 4096)
    assert found["logits and loss"] == chunk_size(32000) * 32000 * 24 + 4 * 32000 * 4096
    short = training_memory(wide({"max_new_tokens": 9}, device_train_microbatch_size=1), SHAPES)
    assert short["logits and loss"] == 9 * 32000 * 24
    recomputed = training_memory(wide(activation_checkpointing=True), SHAPES)["activations"]
    assert recomputed == 4 * 2048 * (5 * 4 * 4096 + per_layer + 8 * 4096)


def test_processes_divide_what_fsdp2_shards_and_copy_the_rest():
    one, eight = (training_memory(wide(), SHAPES, processes=count) for count in (1, 8))
    assert eight.pop("DDP buckets") == 4 * DRAFT.parameters()
    assert eight == one
    sharded = wide(parallelism="fsdp2", teacher={"parallelism": "fsdp2"})
    one, eight = (training_memory(sharded, SHAPES, processes=count) for count in (1, 8))
    for name in ("weights", "gradients", "moments", "teacher"):
        assert eight[name] == one[name] // 8
    of_student = 4 * (DRAFT.parameters() - 3 * DRAFT.parameters_per_layer())
    assert one["gathered by FSDP2"] == of_student
    assert eight["gathered by FSDP2"] == of_student + 2 * (LLAMA.parameters() - 30 * LLAMA.parameters_per_layer())
    pairs = wide(parallelism="hsdp", shard_degree=2)
    assert training_memory(pairs, SHAPES, processes=8)["weights"] == one["weights"] // 2


@pytest.mark.parametrize(
    ("distill", "teacher"),
    [
        ({"teacher": {"source": "none"}}, None),
        ({"teacher": {"source": "cache"}}, 2 * 32000 * 4096 + 16 * 256 * 4096 * 2),
        ({"teacher": {"source": "cache", "contents": "top_k", "k": 32}}, 2 * 32000 * 4096 + 16 * 256 * (32 * 12 + 4)),
    ],
)
def test_what_is_held_of_a_teacher(distill, teacher):
    found = training_memory(recipe_of({**distill, "global_train_batch_size": 16}), SHAPES)
    assert found.get("teacher") == teacher


def test_learned_masks_train_the_whole_target_beside_its_frozen_self():
    recipe = recipe_of(
        {"precision": "amp_bf16", "device_train_microbatch_size": 1},
        architecture={"shape": "wide-1.3b", "method": "learned_masks"},
        text={"domains": [{"name": "wiki", "path": "wiki.txt"}], "max_seq_len": 4096},
    )
    found = training_memory(recipe, SHAPES, "masks")
    assert found["weights"] == 4 * LLAMA.parameters()
    assert found["teacher"] == 2 * LLAMA.parameters()
    assert found["logits and loss"] == chunk_size(32000) * 32000 * 32 + 4 * 32000 * 4096
    assert list(stage_memory(recipe, SHAPES, processes=1, on_gpu=False)) == ["generate", "masks", "distill", "eval"]


def test_frozen_embeddings_have_neither_gradients_nor_moments():
    frozen = training_memory(wide(freeze_input_embeddings=True), SHAPES)
    assert frozen["weights"] == 4 * DRAFT.parameters()
    assert frozen["gradients"] == 4 * (DRAFT.parameters() - 32000 * 4096)


def test_needs_of_every_stage():
    recipe = recipe_of({"global_train_batch_size": 16}, eval={"dtype": "bfloat16", "batch_size": 8})
    needs = stage_memory(recipe, SHAPES, processes=1, on_gpu=True)
    assert list(needs) == ["generate", "distill", "eval"]
    kv = LLAMA.kv_bytes_per_token("bfloat16")
    assert sum(needs["generate"].values()) == 2 * LLAMA.parameters() + recipe.data.batch_size * 1024 * kv
    assert sum(needs["eval"].values()) == 2 * LLAMA.parameters() + 4 * DRAFT.parameters() + 8 * (1024 + 128) * kv
    tasks = {"dtype": "bfloat16", "batch_size": 8, "tasks": [{"path": "a.jsonl"}]}
    for limit, tokens in ((None, 8 * 1024), (256, 8 * 256), (2048, 8 * 1024), (9000, 9000)):
        parts = stage_memory(recipe_of(eval={**tasks, "max_prompt_len": limit}), SHAPES, processes=1, on_gpu=False)
        assert parts["eval"]["keys and values"] == (tokens + 8 * 128) * kv
    smallest = recipe_of({"global_train_batch_size": 16, "device_train_microbatch_size": 1})
    assert needs["distill"] == training_memory(smallest, SHAPES, on_gpu=True)  # to which auto goes down
    held = {"target": {"path": "absent", "placement": "layers"}, "data": {"self_written_prompts": 9, "batch_size": 1}}
    layers = recipe_of({"teacher": {"source": "none"}}, **held)
    generate = stage_memory(layers, SHAPES, processes=1, on_gpu=False)["generate"]
    assert sum(generate.values()) < LLAMA.weight_bytes(layers.target.dtype)


def test_disk_of_a_run():
    found = disk_bytes(recipe_of({"teacher": {"source": "cache"}}), SHAPES, Work(100, 96, 500, 55))
    assert found["checkpoints"] == 3 * 12 * DRAFT.parameters()
    assert found["teacher cache"] == (96 * 55 + 4 * 256) * 4096 * 2
    assert found["responses"] == 100 * 1024 * 12


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("1ep", Steps(3, 10, 1.0)),  # 4, 4 and 2 sequences
        ("2ep", Steps(6, 20, 2.0)),
        ("4ba", Steps(4, 14, 1.4)),
        ("13sp", Steps(4, 13, 1.3)),
        ("260tok", Steps(4, 13, 1.3)),
    ],
)
def test_steps_of_ten_sequences_in_batches_of_four(duration, expected):
    config = recipe_of({"max_duration": duration, "global_train_batch_size": 4}).distill
    assert training_steps(config, 10, 20) == expected


def test_steps_of_an_unknown_number_of_sequences():
    assert training_steps(recipe_of({"max_duration": "1ep"}).distill, None, 20) is None
    config = recipe_of({"max_duration": "5ba", "global_train_batch_size": 4}).distill
    assert training_steps(config, None, 20) == Steps(5, 20)


FLAT = Device("Flat GPU", {"amp_bf16": 1e14, "fp32": 1e13}, 1000, 0.5, 80, "test")


def test_a_decoding_step_takes_the_longest_of_launches_bytes_and_products():
    assert step_seconds(FLAT, DRAFT, "bfloat16", batch=1, context=10) == 5 * 0.5e-3
    read = 2 * matrix_parameters(LLAMA) + 8 * 4096 * LLAMA.kv_bytes_per_token("bfloat16")
    assert step_seconds(FLAT, LLAMA, "bfloat16", batch=8, context=4096) == pytest.approx(read / 1e12)
    slow = replace(FLAT, train_flops_per_s={"fp32": 1e9}, layer_ms=0)
    assert step_seconds(slow, DRAFT, "float32", batch=2, context=1) == 2 * DRAFT.flops_per_token(1) / 1e9


def test_hours_follow_counts_and_speeds():
    recipe = recipe_of({"max_duration": "2ep", "global_train_batch_size": 8})
    work = Work(100, 96, 300, 100)
    seconds = stage_seconds(recipe, SHAPES, work, FLAT)
    assert list(seconds) == ["generate", "distill"]
    step = step_seconds(FLAT, LLAMA, "bfloat16", batch=48, context=350)
    read = 100 * forward_flops(LLAMA, [(300, 1)]) / 1e14
    assert seconds["generate"] == pytest.approx(3 * 100 * step + read)  # 100 prompts in batches of 48
    sequence = [(400, 100)]
    trained = 192 * (3 * forward_flops(DRAFT, sequence) + forward_flops(LLAMA, sequence))
    assert seconds["distill"] == pytest.approx(trained / 1e14)
    unknown = stage_seconds(recipe, SHAPES, replace(work, prompts=None, sequences=None), FLAT)
    assert (unknown["generate"], unknown["distill"]) == (None, None)
    assert stage_seconds(recipe, SHAPES, work, replace(FLAT, train_flops_per_s={})) == {}


def test_a_device_is_found_by_name():
    assert find_device("NVIDIA H100 PCIe") is find_device("nvidia-h100-pcie")
    assert [device.is_gpu for device in DEVICES] == [True, False, True, True, True]
    with rejects("--device abacus"):
        find_device("abacus")


CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_implementation="eager",
)
SHAPE = Shape.from_config(CONFIG.to_dict())


def test_a_forward_pass_is_counted_as_torch_counts_it():
    lm = LlamaForCausalLM(CONFIG)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        lm(input_ids=torch.zeros(1, 15, dtype=torch.long), logits_to_keep=5)
    counted = counter.get_total_flops()
    scores = 2 * 2 * 2 * 4 * 8 * 15 * 15  # layers, scores and values, multiply and add: torch computes the whole square
    ours = forward_flops(SHAPE, [(15, 5)])
    rotary = counted - ours - scores // 2 * 14 // 15
    assert 0 <= rotary <= 2 * 2 * 8 * 15  # an outer product of positions and frequencies


def test_a_small_head_counts_its_rows_as_torch_does():
    counts = []
    for rows in (96, 10):
        lm = LlamaForCausalLM(CONFIG)
        if rows < 96:
            cut_head(lm, torch.arange(rows))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            lm(input_ids=torch.zeros(1, 15, dtype=torch.long), logits_to_keep=5)
        counts.append(counter.get_total_flops())
    small = Shape.from_config(lm.config.to_dict())
    assert small == replace(SHAPE, head_vocab=10)
    assert forward_flops(SHAPE, [(15, 5)]) - forward_flops(small, [(15, 5)]) == counts[0] - counts[1]


def test_the_head_counts_where_it_runs():
    assert forward_flops(SHAPE, [(10, 4)]) - forward_flops(SHAPE, [(10, 3)]) == 2 * 96 * 32


def test_a_step_is_three_passes_of_the_student_and_what_the_teacher_does():
    responses = [(10, 4), (7, 7)]
    forward = forward_flops(SHAPE, responses)
    assert training_flops(SHAPE, iter(responses), teacher=5) == 3 * forward + 5
