"""The memory estimate against what torch keeps, and how it follows processes and sharding."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from architectures.masks.gating import masked
from architectures.masks.masks import Masks
from architectures.shapes.requested_shape import draft_shape
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import NAMED_SHAPES, Shape
from distill.estimates.memory import (
    layer_bytes_per_token,
    loss_bytes,
    matrix_parameters,
    memory_parts,
    process_counts,
    sequences_at_once,
    together,
)
from distill.estimates.trainings import Training, trainings
from distill.formulas.dense import forward_kl
from distill.losses.chunked import Head, sum_of_rows
from distill.losses.kept_rows import FrozenRows
from distill.recipe.recipe import Recipe
from distill.recipe.sections.token_selection import chunk_size
from distill.teacher.live import TeacherRows

LLAMA = NAMED_SHAPES["llama-7b"].shape
DRAFT = draft_shape(LLAMA, ArchitectureConfig(shape="wide-796m"))
WIDE = Training(
    title="distillation",
    student=DRAFT,
    teacher=LLAMA,
    teacher_dtype="bfloat16",
    precision="amp_bf16",
    batch=64,
    microbatch=4,
    seq_len=2048,
    loss_tokens=512,
)
B, T = 3, 50
SIZES = {"hidden_size": 96, "intermediate_size": 176, "num_attention_heads": 8, "head_dim": 16, "vocab_size": 300}


def sizes(training: Training, processes: int) -> dict[str, int]:
    return {part.name: part.size_bytes for part in memory_parts(training, processes)}


def kept_bytes(model, shape: Shape, precision: str, *, gated: bool = False, packing: bool = False) -> int:
    """Bytes of the distinct storages a forward pass of the layers keeps, of those with a row per token."""
    found = {}

    def note(tensor):
        if any(length in (T, B * T) for length in tensor.shape) and tensor.dtype != torch.int64:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    gates = nullcontext()
    if gated:
        half = replace(shape, hidden=48, intermediate=88, heads=4, kv_heads=4)
        masks = Masks(shape, half, seed=0)
        gates = masked(model, masks.sampled(0), shape)
    bfloat16 = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp_bf16")
    with saved_tensors_hooks(note, lambda tensor: tensor), bfloat16, gates:
        ids_BT = torch.arange(B * T).view(B, T)
        positions_BT = (torch.arange(T) % 20).expand(B, T) if packing else None
        states = model.base_model(input_ids=ids_BT, position_ids=positions_BT, use_cache=False)
        hidden = states.last_hidden_state
    assert hidden.requires_grad
    return sum(count for count, _ in found.values())


@pytest.mark.parametrize("precision", ["amp_bf16", "fp32"])
@pytest.mark.parametrize(("family", "gated"), [("llama", False), ("llama", True), ("qwen2", False), ("mistral", False)])
def test_a_layer_keeps_what_the_estimate_says(family, gated, precision):
    from transformers import AutoConfig, AutoModelForCausalLM

    counts = []
    for layers in (1, 3):  # of two layers more: embedding, rotary tables and last norm cancel
        config = AutoConfig.for_model(family, **SIZES, num_key_value_heads=8, num_hidden_layers=layers)
        shape = Shape.from_config(config.to_dict())
        counts.append(kept_bytes(AutoModelForCausalLM.from_config(config), shape, precision, gated=gated))
    training = replace(WIDE, student=shape, precision=precision, gated=gated)
    kept = (counts[1] - counts[0]) / 2 / (B * T)
    statistics = 2 * 4 + 4 * 8  # of two norms, and of attention for each head: not in the estimate
    assert kept - statistics == pytest.approx(layer_bytes_per_token(training), abs=1)


@pytest.mark.parametrize("precision", ["amp_bf16", "fp32"])
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_a_layer_of_packed_rows_keeps_what_the_estimate_says(kv_heads, precision):
    from transformers import AutoConfig, AutoModelForCausalLM

    counts = []
    for layers in (1, 3):
        config = AutoConfig.for_model("llama", **SIZES, num_key_value_heads=kv_heads, num_hidden_layers=layers)
        shape = Shape.from_config(config.to_dict())
        counts.append(kept_bytes(AutoModelForCausalLM.from_config(config), shape, precision, packing=True))
    kept = (counts[1] - counts[0]) / 2 / (B * T)
    training = replace(WIDE, student=shape, precision=precision, packing=True, seq_len=T)
    statistics = 2 * 4 + 4 * 8  # as above
    assert kept - statistics == pytest.approx(layer_bytes_per_token(training), abs=1)


@pytest.mark.parametrize("packing", [True, False])
def test_the_estimate_knows_of_packing(packing):
    recipe = Recipe.model_validate(
        {
            "run_name": "x",
            "target": {"path": "x"},
            "data": {"self_written_prompts": 9},
            "architecture": {"shape": "wide-796m"},
            "distill": {"packing": packing},
        }
    )
    assert [training.packing for training in trainings(recipe, LLAMA, DRAFT, on_gpu=False)] == [packing]


def test_weights_gradients_and_moments_are_16_bytes_a_parameter():
    found = sizes(WIDE, 1)
    total = found["student weights, float32"] + found["gradients, float32"] + found["Adam's two moments, float32"]
    assert total == 16 * DRAFT.parameters()
    assert found["teacher weights, bfloat16"] == 2 * LLAMA.parameters()
    assert found["student matrices, bfloat16"] == 2 * matrix_parameters(DRAFT)
    assert matrix_parameters(DRAFT) == DRAFT.parameters() - 32000 * 4096 - 11 * 4096  # all but embedding and norms
    assert together(memory_parts(WIDE, 1)) == sum(found.values())


def test_activations_and_loss_follow_sequences_and_lengths():
    one, two = sizes(replace(WIDE, microbatch=1), 1), sizes(replace(WIDE, microbatch=2), 1)
    assert two["activations"] == 2 * one["activations"]
    chunk, head = chunk_size(32000), 32000 * 4096 * 4
    assert two["logits and loss"] == one["logits and loss"] == chunk * 32000 * 24 + head  # both are several chunks
    on_gpu = sizes(replace(WIDE, microbatch=4, on_gpu=True), 1)
    assert on_gpu["logits and loss"] == 4 * chunk * 32000 * 24 + head
    (short,) = (
        part for part in memory_parts(replace(WIDE, microbatch=1, loss_tokens=9), 1) if part.name == "logits and loss"
    )
    assert short.size_bytes == 9 * 32000 * 24
    assert one["activations"] == 2048 * (5 * layer_bytes_per_token(WIDE) + 8 * 4096)
    assert sizes(replace(WIDE, microbatch=1, seq_len=1024), 1)["activations"] == one["activations"] // 2


def test_several_processes_by_ddp_hold_buckets_and_whole_models():
    one, eight = sizes(WIDE, 1), sizes(WIDE, 8)
    assert eight.pop("gradient buckets of DDP, float32") == 4 * DRAFT.parameters()
    assert eight == one


def test_fsdp2_divides_the_student_and_not_the_teacher():
    sharded = replace(WIDE, sharded=True)
    one, eight = sizes(sharded, 1), sizes(sharded, 8)
    for name in ("student weights, float32", "gradients, float32", "Adam's two moments, float32"):
        assert eight[name] == one[name] // 8
    for name in ("teacher weights, bfloat16", "activations", "logits and loss", "parts gathered by FSDP2"):
        assert eight[name] == one[name]
    gathered = DRAFT.parameters() - 3 * DRAFT.parameters_per_layer()
    assert one["parts gathered by FSDP2"] == 2 * 2 * gathered
    assert sizes(replace(sharded, precision="fp32"), 1)["parts gathered by FSDP2"] == 2 * 4 * gathered


def test_a_sharded_teacher_is_divided_but_for_what_is_gathered():
    on_gpu = replace(WIDE, on_gpu=True)  # where nothing depends on what is gathered
    sharded = replace(on_gpu, teacher_sharded=True)
    one, eight, whole = sizes(sharded, 1), sizes(sharded, 8), sizes(on_gpu, 8)
    assert one == sizes(on_gpu, 1)
    assert eight["teacher weights, bfloat16"] == whole["teacher weights, bfloat16"] // 8
    gathered = 2 * (LLAMA.parameters() - 30 * LLAMA.parameters_per_layer())
    assert eight.pop("teacher's parts gathered by FSDP2") == gathered
    assert {**eight, "teacher weights, bfloat16": 0} == {**whole, "teacher weights, bfloat16": 0}


def test_new_answers_hold_keys_and_values_before_there_are_activations():
    """A teacher of 32 layers beside the draft: 0.5 MiB a token in bfloat16, of 64 whole sequences."""
    writing = replace(WIDE, written_bytes=LLAMA.kv_bytes_per_token("bfloat16"))
    plain, found = sizes(WIDE, 1), sizes(writing, 1)
    held = found.pop("keys and values of new answers")
    assert found == plain
    assert held == 64 * 2048 * 2**19 - plain["activations"] - plain["logits and loss"]
    assert sizes(replace(WIDE, written_bytes=1), 1) == plain  # less than what comes afterwards
    recipe = {"run_name": "r", "target": {"path": "absent"}, "architecture": {"layers": 5}}
    recipe |= {"data": {"self_written_prompts": 1}, "distill": {"samples": {"source": "mix_token"}}}
    [training] = trainings(Recipe.model_validate(recipe), LLAMA, DRAFT)
    of_draft = DRAFT.kv_bytes_per_token("float32")
    assert training.written_bytes == of_draft + LLAMA.kv_bytes_per_token(training.teacher_dtype)
    recipe["distill"] = {"samples": {"source": "student"}}
    assert trainings(Recipe.model_validate(recipe), LLAMA, DRAFT)[0].written_bytes == of_draft


@pytest.mark.parametrize("answers", ["live", "recorded"])
def test_what_answers_requests_and_the_last_good_draft_are_counted(answers):
    """Live: target and draft in bfloat16, 2,048 tokens of keys and values of both; 12 bytes of each trained weight."""
    stream = {"sources": [{"path": "p.jsonl"}]}
    online = {"mode": "online", "teacher": {"source": "cache"}, "online": {"stream": stream, "answers": answers}}
    recipe = {"run_name": "r", "target": {"path": "absent", "dtype": "bfloat16"}, "architecture": {"layers": 5}}
    recipe |= {"data": {"prompts": [{"path": "p.jsonl"}], "max_seq_len": 2048}, "distill": online}
    [training] = trainings(Recipe.model_validate(recipe), LLAMA, DRAFT)
    found = sizes(training, 1)
    assert found["last good draft"] == 12 * DRAFT.parameters()
    models = (LLAMA, DRAFT)
    expected = sum(2 * each.parameters() + 2048 * each.kv_bytes_per_token("bfloat16") for each in models)
    assert found.get("what answers requests") == (expected if answers == "live" else None)


def test_auto_takes_the_whole_batch_of_a_process():
    auto = replace(WIDE, microbatch=None)
    assert [sequences_at_once(auto, processes) for processes in (1, 8)] == [64, 8]
    assert [sequences_at_once(replace(WIDE, batch=8), processes) for processes in (1, 8)] == [4, 1]


@pytest.mark.parametrize(("batch", "counts"), [(64, [1, 8]), (12, [1, 6]), (7, [1, 7]), (1, [1])])
def test_columns_are_one_process_and_as_many_as_can_share_the_batch(batch, counts):
    assert process_counts(replace(WIDE, batch=batch)) == counts


def masked_recipe(**masks) -> Recipe:
    return Recipe.model_validate(
        {
            "run_name": "masks",
            "target": {"path": "meta-llama/Llama-2-7b-hf"},
            "architecture": {"shape": "wide-1.3b", "method": "learned_masks", "masks": masks},
            "data": {"self_written_prompts": 100},
            "text": {"domains": [{"name": "wiki", "path": "wiki.txt"}], "max_seq_len": 4096},
        }
    )


def test_learned_masks_train_the_whole_target_beside_its_frozen_self():
    masks, distillation = trainings(masked_recipe(device_train_microbatch_size=1), LLAMA, DRAFT, on_gpu=False)
    found = sizes(masks, 1)
    assert found["student weights, float32"] == 4 * LLAMA.parameters()
    assert found["teacher weights, bfloat16"] == 2 * LLAMA.parameters()
    assert found["activations"] == 4096 * (32 * layer_bytes_per_token(masks) + 8 * 4096)
    assert found["logits and loss"] == chunk_size(32000) * 32000 * 32 + 32000 * 4096 * 4
    assert layer_bytes_per_token(masks) > layer_bytes_per_token(replace(masks, gated=False))
    assert (masks.batch, masks.loss_tokens) == (32, 4095)
    assert distillation.student == DRAFT
    assert not distillation.gated


def test_masks_without_kl_have_no_teacher():
    masks, _ = trainings(masked_recipe(kl_weight=0.0, precision="fp32"), LLAMA, DRAFT, on_gpu=False)
    found = sizes(masks, 1)
    assert not [name for name in found if name.startswith("teacher")]
    assert found["logits and loss"] == chunk_size(32000) * 32000 * 16 + 32000 * 4096 * 4


def test_the_loss_as_measured():
    assert (loss_bytes("amp_bf16"), loss_bytes("fp32")) == (24, 28)


SMALL = replace(DRAFT, head_vocab=4096)


@pytest.mark.parametrize(
    ("distill", "rows"),
    [
        ({}, True),
        ({"loss": "cross_entropy"}, False),  # asks no teacher
        ({"teacher": {"source": "none"}}, False),
        ({"teacher": {"parallelism": "fsdp2"}, "device_train_microbatch_size": 2}, True),
        ({"teacher": {"source": "cache"}}, True),
        ({"teacher": {"source": "cache", "contents": "top_k"}}, False),  # which has no logits
        ({"token_selection": {"fraction": 0.4, "reference": "x"}, "loss": "cross_entropy"}, True),
    ],
    ids=str,
)
def test_a_small_head_costs_its_rows(distill, rows):
    recipe = Recipe.model_validate(
        {
            "run_name": "small",
            "target": {"path": "meta-llama/Llama-2-7b-hf"},
            "architecture": {"shape": "wide-796m"},
            "data": {"self_written_prompts": 100},
            "distill": distill,
        }
    )
    (whole,), (small,) = (trainings(recipe, LLAMA, draft, on_gpu=False) for draft in (DRAFT, SMALL))
    for processes in (1, 8):
        before, found = sizes(whole, processes), sizes(small, processes)
        copied = found.pop("rows of the teacher's head, bfloat16", 0)
        assert copied == (4096 * 4096 * 2 if rows else 0)
        chunk = min(chunk_size(4096), sequences_at_once(small, processes) * small.loss_tokens)
        head = 4096 * 4096 * 4 if chunk < sequences_at_once(small, processes) * small.loss_tokens else 0
        per_logit = 14 if recipe.distill.teacher.source == "none" else 24
        assert found["logits and loss"] == chunk * 4096 * per_logit + head
        assert before["gradients, float32"] - found["gradients, float32"] == 4 * (32000 - 4096) * 4096
        matrices = "student matrices, bfloat16"
        assert before[matrices] - found[matrices] == 2 * (32000 - 4096) * 4096
        assert before["activations"] == found["activations"]
        teachers = [name for name in before if name.startswith("teacher")]
        assert {name: found[name] for name in teachers} == {name: before[name] for name in teachers}


def held_at_most(step) -> int:
    """Bytes above what was there before, by torch's own count of what it allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


@pytest.mark.parametrize("rows", [0, 2000])
def test_the_loss_of_a_small_head_holds_what_the_estimate_says(rows):
    """float32, one chunk of 300 tokens; measured 27.1 bytes an entry of whole logits, 27.0 of 2,000 rows."""
    vocab, width, tokens = 20000, 64, 300
    generator = torch.Generator().manual_seed(0)
    hidden_AH, teacher_AH = (torch.randn(tokens, width, generator=generator) for _ in range(2))
    weight_KH = torch.randn(rows or vocab, width, generator=generator).requires_grad_()
    hidden_AH.requires_grad_()
    head = Head(torch.randn(vocab, width, generator=generator), None, None, vocab)
    teacher = FrozenRows().of(head, torch.arange(rows)) if rows else head

    def loss_of_rows(student_AK, at):
        return forward_kl(student_AK, TeacherRows(teacher_AH, teacher).logits(at))

    def step():
        sum_of_rows(hidden_AH, Head(weight_KH, None, None, len(weight_KH)), loss_of_rows).backward()
        hidden_AH.grad = weight_KH.grad = None

    step()  # what a first call allocates for good is not the loss's
    shape = replace(DRAFT, vocab=vocab, head_vocab=rows, hidden=width)
    training = replace(WIDE, student=shape, precision="fp32", microbatch=1, loss_tokens=tokens)
    (estimated,) = (part.size_bytes for part in memory_parts(training, 1) if part.name == "logits and loss")
    gradients = weight_KH.nbytes + hidden_AH.nbytes  # which are counted elsewhere
    assert held_at_most(step) - gradients == pytest.approx(estimated, rel=0.05)
    if rows:
        assert teacher.weight_VH.untyped_storage().nbytes() == rows * width * 4


@pytest.mark.parametrize(("precision", "per_logit"), [("amp_bf16", 14), ("fp32", 16)])
def test_without_a_teacher_a_process_holds_the_student_and_the_loss_of_tokens(precision, per_logit):
    recipe = Recipe.model_validate(
        {
            "run_name": "alone",
            "target": {"path": "meta-llama/Llama-2-7b-hf"},
            "architecture": {"shape": "wide-796m"},
            "data": {"self_written_prompts": 100},
            "distill": {"teacher": {"source": "none"}, "precision": precision},
        }
    )
    (training,) = trainings(recipe, LLAMA, DRAFT, on_gpu=False)
    found = sizes(training, 1)
    assert not [name for name in found if "teacher" in name]
    assert found["logits and loss"] == chunk_size(32000) * 32000 * per_logit + 32000 * 4096 * 4
    beside = sizes(replace(training, teacher=LLAMA), 1)
    followed = ("teacher weights", "logits and loss", "freed")  # what a teacher adds, and what follows the loss
    found, beside = ({n: size for n, size in each.items() if not n.startswith(followed)} for each in (found, beside))
    assert found == beside


def test_a_processor_keeps_three_quarters_of_what_comes_and_goes():
    found = sizes(WIDE, 1)
    assert found["freed, and kept by the C library"] == int(0.75 * (found["activations"] + found["logits and loss"]))
    assert "freed, and kept by the C library" not in sizes(replace(WIDE, on_gpu=True), 1)


def test_keys_that_query_heads_share_keep_attention_scores_on_a_processor():
    grouped = replace(WIDE, student=replace(DRAFT, kv_heads=DRAFT.heads // 4))
    more = layer_bytes_per_token(grouped) - layer_bytes_per_token(replace(grouped, on_gpu=True))
    assert more == 12 * DRAFT.axis("query") + 4 * DRAFT.heads * WIDE.seq_len
    assert layer_bytes_per_token(WIDE) == layer_bytes_per_token(replace(WIDE, on_gpu=True))


@pytest.mark.parametrize(
    ("contents", "row_bytes"),
    [({"contents": "hidden"}, 4096 * 2), ({"contents": "top_k", "k": 32}, 32 * 12 + 4), ({"contents": "samples"}, 96)],
)
def test_of_a_cached_teacher_a_batch_holds_rows_and_a_process_the_head(contents, row_bytes):
    recipe = Recipe.model_validate(
        {
            "run_name": "cached",
            "target": {"path": "meta-llama/Llama-2-7b-hf"},
            "architecture": {"shape": "wide-796m"},
            "data": {"self_written_prompts": 100},
            "distill": {"teacher": {"source": "cache", **contents}, "global_train_batch_size": 16},
        }
    )
    (training,) = trainings(recipe, LLAMA, DRAFT, on_gpu=False)
    assert not training.teacher_sharded
    for processes in (1, 4):
        found = sizes(training, processes)
        assert found["teacher's head, bfloat16"] == 2 * 32000 * 4096
        assert found["cached teacher's rows"] == 16 // processes * recipe.data.max_new_tokens * row_bytes
        assert "teacher weights, bfloat16" not in found
