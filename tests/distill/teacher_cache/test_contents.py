"""What a cache keeps equals what a live teacher says, and no draw depends on order or batching.

Shape suffixes: A = response tokens, V = vocabulary entries, K = entries kept, S = tokens drawn.
"""

from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from distill import cache_files, teacher_cache
from distill.chunked_loss import head_of
from distill.data.batches import collate
from distill.teacher import load_teacher
from distill.teacher_cache import (
    TargetReading,
    TeacherCache,
    capture_teacher,
    load_head,
    narrow_ids,
    sampled_rows,
    top_k_rows,
    uniform_numbers,
)
from tests.distill.teacher_cache.conftest import HIDDEN, INPUTS, SAMPLES, TOP_K, finish_into, read_all, settings_for
from tests.families import DECODER_ONLY
from tests.rejections import rejects


def live_logits(target: Path, example) -> torch.Tensor:
    """Logits_AV of the live teacher, of one example alone."""
    batch = collate([example])
    return load_teacher(target, dtype="float32", device="cpu").logits(batch["input_ids"], batch["keep"])


@pytest.mark.parametrize("model_type", DECODER_ONLY)
@pytest.mark.parametrize("tied", [True, False])
def test_head_and_hidden_state_give_the_live_logits(make_checkpoint, examples, model_type, tied):
    """Bit for bit: the same batch, the same weights, the same products."""
    if model_type in ("gpt2", "gpt_bigcode", "opt", "bloom", "gpt_neox", "phi3"):
        changes = {"num_key_value_heads": 4, "tie_word_embeddings": tied, "pad_token_id": 0}
    else:
        changes = {"tie_word_embeddings": tied}
    changes |= {"gemma2": {"final_logit_softcapping": 1.5}, "granite": {"logits_scaling": 3.0}}.get(model_type, {})
    folder = make_checkpoint(model_type=model_type, **changes)
    teacher = load_teacher(folder, dtype="bfloat16", device="cpu")
    source = TargetReading(folder, settings_for(HIDDEN, dtype="bfloat16"))
    hidden = source.hidden_states(examples["train"][:4])
    batch = collate(examples["train"][:4])
    live_AV = teacher.logits(batch["input_ids"], batch["keep"])
    for head in (load_head(folder, dtype="bfloat16", device="cpu"), head_of(source.lm)):
        assert torch.equal(head.logits(torch.cat(hidden)), live_AV)


def test_the_head_of_a_checkpoint_published_without_its_prefix(make_checkpoint):
    folder = make_checkpoint(model_type="gpt2", num_key_value_heads=4)
    expected = load_head(folder, dtype="float32", device="cpu")
    tensors = load_file(folder / "model.safetensors")
    short = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(short, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(load_head(folder, dtype="float32", device="cpu").weight_VH, expected.weight_VH)


def test_a_response_that_there_is_not_is_an_error(write):
    cache = TeacherCache(write(TOP_K), "eval")
    for wrong in (-1, len(cache)):
        with rejects(0, 3, wrong, error=IndexError):
            cache.rows(wrong)


def test_top_k_keeps_the_most_likely_tokens_and_the_mass_of_the_others(write, tiny_target, examples):
    cache = TeacherCache(write(TOP_K), "train")
    for response in (0, 5):
        logp_AV = live_logits(tiny_target, examples["train"][response]).double().log_softmax(-1)
        rows = cache.rows(response)
        expected = logp_AV.topk(5)
        assert torch.equal(rows["ids"], expected.indices)
        assert rows["log_probs"].dtype == rows["log_tail"].dtype == torch.float32
        torch.testing.assert_close(rows["log_probs"].double(), expected.values, rtol=1e-3, atol=1e-4)  # float16
        tail_A = (1 - expected.values.exp().sum(-1)).log()
        torch.testing.assert_close(rows["log_tail"].double(), tail_A, rtol=1e-4, atol=1e-4)


def test_draws_follow_the_teachers_distribution():
    """200,000 draws a token; five standard deviations of the least exact share are 0.006."""
    logits_AV = torch.tensor([[0.0, 1.0, -torch.inf, 2.0], [5.0, -torch.inf, 0.0, -torch.inf]])
    draws = 200_000
    ids_AS = sampled_rows(logits_AV, uniform_numbers(2, draws, seed=1))["ids"].long()
    for row in range(2):
        shares_V = torch.bincount(ids_AS[row], minlength=4) / draws
        torch.testing.assert_close(shares_V, logits_AV[row].softmax(-1), rtol=0, atol=0.006)
    edges = torch.tensor([[1.0, 1e-300], [1.0, 1e-300]], dtype=torch.float64)
    assert sampled_rows(logits_AV, edges)["ids"].tolist() == [[0, 3], [0, 2]]


def test_a_token_of_probability_2e_9_can_be_drawn():
    """In float32 the token before it would have used up the whole of 1."""
    one_AS = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    assert sampled_rows(torch.tensor([[0.0, -20.0]]), one_AS)["ids"].tolist() == [[0, 1]]


def test_zero_is_never_drawn(monkeypatch):
    """At 0 the first token would be drawn, also one of probability 0."""
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.zeros(*size))
    assert uniform_numbers(2, 3, seed=1).tolist() == [[1.0] * 3] * 2


def test_draws_do_not_depend_on_order_batching_or_shards(write, monkeypatch, examples):
    one, other = write(SAMPLES), write(SAMPLES, "other", batch_size=1)
    monkeypatch.setattr(teacher_cache, "MAX_SHARD_TOKENS", 1000)
    monkeypatch.setattr(teacher_cache, "ROWS_AT_ONCE", 4)
    third = write(SAMPLES, "third")
    assert len(TeacherCache(third, "train").files) == 1
    for response in range(len(examples["train"])):
        drawn = [TeacherCache(folder, "train").rows(response)["ids"] for folder in (one, other, third)]
        assert torch.equal(drawn[0], drawn[1])
        assert torch.equal(drawn[0], drawn[2])


def test_draws_depend_on_seed_split_and_response(write, examples):
    first = TeacherCache(write(SAMPLES), "train")
    second = TeacherCache(write(SAMPLES, "other", seed=4), "train")
    assert any(not torch.equal(first.rows(i)["ids"], second.rows(i)["ids"]) for i in range(10))
    uniform = [uniform_numbers(4, 3, seed=seed) for seed in (1, 1, -2)]
    assert torch.equal(uniform[0], uniform[1])
    assert not torch.equal(uniform[0], uniform[2])
    assert all(((numbers > 0) & (numbers <= 1)).all() for numbers in uniform)


def test_two_responses_alike_have_draws_of_their_own(tiny_target, examples, tmp_path):
    longest = max(examples["train"], key=lambda example: example.num_kept)
    twins = {"train": [longest, longest]}
    settings = settings_for(SAMPLES)
    how = {"inputs": INPUTS, "finish": finish_into(tmp_path)}
    capture_teacher(tiny_target, twins, tmp_path, settings, **how)
    first, second = read_all(TeacherCache(tmp_path, "train"))
    assert not torch.equal(first["ids"], second["ids"])


def test_a_token_drawn_twice_stands_there_twice(write):
    cache = TeacherCache(write(SAMPLES), "train")
    ids = [token for response in range(len(cache)) for token in cache.rows(response)["ids"].tolist()]
    assert all(len(row) == 7 and row == sorted(row) for row in ids)
    assert any(max(Counter(row).values()) > 1 for row in ids)


@pytest.mark.parametrize(("vocab", "dtype"), [(256, torch.uint8), (65536, torch.uint16), (65537, torch.int32)])
def test_ids_survive_the_smallest_type(vocab, dtype):
    ids = torch.tensor([0, vocab - 1])
    assert narrow_ids(ids, vocab).dtype == dtype
    assert narrow_ids(ids, vocab).to(torch.int64).tolist() == ids.tolist()


def test_rounded_logits_are_normalised_in_float32():
    logits_AV = torch.randn(3, 264, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows, expected = top_k_rows(logits_AV, 5), top_k_rows(logits_AV.float(), 5)
    assert all(torch.equal(rows[name], expected[name]) for name in expected)


def test_top_k_of_everything_leaves_no_tail():
    rows = top_k_rows(torch.randn(3, 6), 6)
    assert (rows["log_tail"] == -torch.inf).all()
    torch.testing.assert_close(rows["log_probs"].float().exp().sum(-1), torch.ones(3), rtol=0, atol=2e-3)


def test_caches_of_one_format_are_cut_into_shards_at_the_same_responses():
    """Shards are found by these limits again: another limit is another format."""
    assert (cache_files.FORMAT, teacher_cache.MAX_SHARD_BYTES, teacher_cache.MAX_SHARD_TOKENS) == (
        "widedraft.teacher_cache/2",
        2**28,
        2**16,
    )
