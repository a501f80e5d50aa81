"""Memory of stages that only read models: each figure beside what torch itself counts, and what each depends on."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

from architectures.importance.layer_search import LayerSearch
from architectures.shapes.shape import NAMED_SHAPES, Shape
from distill.checking.reading_memory import (
    ENTRY_BYTES,
    ENTRY_ROWS,
    REPLAY_BYTES,
    SEARCH_BYTES,
    Texts,
    answers_bytes,
    calibration_bytes,
    capture_bytes,
    decoding_bytes,
    layer_bytes,
    resident,
    scoring_bytes,
)
from distill.estimates.memory import KEPT_FREE
from distill.recipe.recipe import Recipe
from distill.teacher_cache.contents import sampled_rows, top_k_rows
from distill.teacher_cache.shard_sizes import MAX_SHARD_BYTES
from eval.acceptance.replay import replay_answer
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import decode_steps
from eval.decoding.texts import Limits
from eval.decoding.wanted import Wanted

LLAMA = NAMED_SHAPES["llama-7b"].shape
GROUPED = replace(LLAMA, kv_heads=8)
SIZES = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 6, "num_hidden_layers": 6}
ROWS, WIDTH, VOCAB = 4, 256, 4000


def recipe_with(**sections: object) -> Recipe:
    base = {"run_name": "r", "run_dir": "run", "target": {"path": "meta-llama/Llama-2-7b-hf", "dtype": "bfloat16"}}
    base |= {"architecture": {"layers": 4, "method": "first_last"}}
    base |= {"data": {"prompts": [{"path": "p.jsonl"}], "num_eval_prompts": 2, "batch_size": 4, "max_seq_len": 512}}
    return Recipe.model_validate(base | sections)


def peak(step: Callable[[], object]) -> int:
    """Bytes above what was there before, by torch's own count of what it allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def model_of(kv_heads: int):
    config = AutoConfig.for_model("llama", **SIZES, num_key_value_heads=kv_heads, vocab_size=64)
    return AutoModelForCausalLM.from_config(config).eval(), Shape.from_config(config.to_dict())


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_reading_takes_what_is_told(kv_heads):
    """Without a mask, as calibration, a cache and replays read: shared keys keep attention scores, own ones do not."""
    model, shape = model_of(kv_heads)
    ids = torch.zeros(ROWS, WIDTH, dtype=torch.int64)

    @torch.inference_mode()
    def read() -> None:
        model.base_model(input_ids=ids, use_cache=False)

    read()
    told = layer_bytes(shape, "float32", Texts(ROWS, WIDTH), on_gpu=False)
    assert 0.9 <= told / peak(read) <= 1.5


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_decoding_takes_what_is_told(kv_heads):
    model, shape = model_of(kv_heads)
    prompts = torch.randint(3, 60, (ROWS, WIDTH)).tolist()
    wanted = Wanted(prompts, Limits(8, frozenset()), Sampling(0))

    def decode() -> None:
        for _ in decode_steps([model], wanted, row_seeds=list(range(ROWS))):
            pass

    decode()
    told = decoding_bytes(shape, "float32", ROWS, WIDTH, 8, on_gpu=False)
    assert 0.9 <= told / peak(decode) <= 1.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_replay_takes_what_is_told(temperature):
    """Both models' logits stand there before."""
    target, draft = torch.randn(2, 40, VOCAB)
    held = 8 * target.numel()
    taken = held + peak(lambda: replay_answer(target, draft, [5] * 40, sampling=Sampling(temperature)))
    assert taken <= REPLAY_BYTES * target.numel() <= 1.5 * taken


def test_entries_of_a_cache_take_what_is_told():
    logits = torch.randn(40, VOCAB)
    uniform = torch.rand(40, 8)
    most = max(peak(lambda: top_k_rows(logits, 8)), peak(lambda: sampled_rows(logits, uniform)))
    assert 0.9 * most <= (ENTRY_BYTES - 4) * logits.numel() <= 1.5 * most


def test_a_search_for_layers_takes_what_is_told():
    model, _ = model_of(6)
    model.resize_token_embeddings(VOCAB)
    with torch.inference_mode():
        search = LayerSearch(model, torch.zeros(1, 64, dtype=torch.int64))
        blocks = search.single_layers()
        most = peak(lambda: search.nearest_layer(blocks))
    assert 0.9 * most <= SEARCH_BYTES * 64 * VOCAB <= 1.5 * most


def test_scores_are_kept_where_no_fused_kernel_takes_shared_keys():
    texts = Texts(2, 1024)
    plain = layer_bytes(LLAMA, "bfloat16", texts, on_gpu=False)
    assert plain == layer_bytes(LLAMA, "bfloat16", texts, on_gpu=True)
    grouped, masked = (layer_bytes(GROUPED, "bfloat16", texts, on_gpu=False, masked=is_so) for is_so in (False, True))
    assert grouped - masked == 2 * 1024 * 1024 * 32 * 8
    assert layer_bytes(GROUPED, "bfloat16", texts, on_gpu=True) == masked


def test_answers_are_told_for_prompts_and_answers_as_long_as_may_be():
    data = {"prompts": [{"path": "p.jsonl"}], "num_eval_prompts": 2, "batch_size": 4, "max_seq_len": 512}
    short, long = (
        answers_bytes(recipe_with(data={**data, "max_new_tokens": tokens}), LLAMA, on_gpu=True) for tokens in (16, 80)
    )
    assert long - short == 4 * 64 * LLAMA.kv_bytes_per_token("bfloat16")


def test_calibration_is_told_by_its_method():
    told = {
        method: calibration_bytes(recipe_with(architecture={"layers": 4, "method": method}), LLAMA, on_gpu=True)
        for method in ("block_influence", "greedy", "merge")
    }
    layers = LLAMA.layers * LLAMA.parameters_per_layer() * 2
    assert told["merge"] - told["greedy"] == layers
    assert told["greedy"] > 256 * LLAMA.vocab * SEARCH_BYTES > told["block_influence"]


def test_a_cache_is_told_by_what_it_keeps_and_by_who_reads():
    def told(written: int = 0, *, on_gpu: bool = True, **teacher: object) -> int:
        recipe = recipe_with(distill={"teacher": {"source": "cache", **teacher}})
        return capture_bytes(recipe, recipe.distill.teacher, LLAMA, written, on_gpu=on_gpu)

    entries = ENTRY_ROWS * LLAMA.vocab * ENTRY_BYTES
    assert told() == layer_bytes(LLAMA, "bfloat16", Texts(4, 512), on_gpu=True)
    assert told(captured_while="answering") == 0
    assert told(captured_while="answering", contents="top_k") == entries
    assert told(100, on_gpu=False) - told(on_gpu=False) == 200
    assert told(2**40, on_gpu=False) - told(on_gpu=False) == 2 * MAX_SHARD_BYTES


def test_scoring_is_told_by_the_most_of_answering_replaying_and_timing():
    base = {"max_new_tokens": 8, "max_prompt_len": 64, "batch_size": 1, "latency_batch_sizes": (), "dtype": "bfloat16"}
    told = {
        name: scoring_bytes(recipe_with(eval={**base, **words}), LLAMA, LLAMA, on_gpu=True)
        for name, words in {
            "small": {},
            "answering": {"batch_size": 64},
            "replaying": {"max_new_tokens": 256},
            "timing": {"latency_batch_sizes": (64,)},
        }.items()
    }
    assert told["answering"] == decoding_bytes(LLAMA, "bfloat16", 64, 64, 8, on_gpu=True)
    assert told["replaying"] > 256 * LLAMA.vocab * REPLAY_BYTES > told["small"]
    assert told["timing"] == 64 * 72 * 2 * LLAMA.kv_bytes_per_token("bfloat16")


def test_a_processor_keeps_what_is_freed():
    assert resident(1000, on_gpu=True) == 1000
    assert resident(1000, on_gpu=False) == int(1000 * KEPT_FREE)
