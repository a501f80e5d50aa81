"""A cache on the disk: its size, its files after a kill, what is refused, how it is read, and what it keeps.

Shape suffixes: A = response tokens, V = vocabulary entries, K = entries kept, S = tokens drawn.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from architectures.files import remove_partials
from architectures.manifest import read_manifest
from distill import cache_files, teacher_cache
from distill.chunked_loss import head_of
from distill.data.batches import collate
from distill.recipe.sections import TeacherConfig
from distill.run import LOCK_NAME
from distill.teacher import load_teacher
from distill.teacher_cache import (
    TargetReading,
    TeacherCache,
    capture_teacher,
    cut_into_shards,
    load_head,
    narrow_ids,
    sampled_rows,
    top_k_rows,
    uniform_numbers,
)
from tests.distill.teacher_cache.conftest import (
    HIDDEN,
    INPUTS,
    SAMPLES,
    TOP_K,
    finish_into,
    read_all,
    settings_for,
)
from tests.families import DECODER_ONLY
from tests.rejections import rejects
from tests.sharing import by_processes

ROOT = Path(__file__).parents[3]
TEACHERS = {"hidden": HIDDEN, "top_k": TOP_K, "samples": SAMPLES}


def contents_on_disk(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("teacher", [HIDDEN, TOP_K, SAMPLES], ids=lambda teacher: teacher.contents)
def test_a_token_takes_the_bytes_that_were_estimated(write, examples, teacher):
    folder = write(teacher)
    manifest = read_manifest(folder)
    assert manifest is not None
    for name, split in manifest["splits"].items():
        num_tokens = sum(example.num_kept for example in examples[name])
        assert split["response_tokens"] == num_tokens
        rows = sum(rows.nbytes for file in split["shards"] for rows in load_file(folder / file).values())
        assert rows == num_tokens * split["bytes_per_token"]


def test_a_cache_that_cannot_fit_is_refused_before_a_byte_is_written(write, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_cache, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(teacher_cache, "load_target", None)
    with rejects("bytes"):
        write(HIDDEN)
    assert not (tmp_path / "cache").exists()


def test_a_capture_that_continues_needs_room_for_what_is_missing(write, tmp_path, monkeypatch):
    folder = write(HIDDEN)
    lost = folder / "train-00001.safetensors"
    num_bytes = lost.stat().st_size
    lost.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(teacher_cache, "free_bytes", lambda _: num_bytes // 2)
        with rejects("bytes"):
            write(HIDDEN)
    monkeypatch.setattr(teacher_cache, "free_bytes", lambda _: num_bytes)
    write(HIDDEN)
    assert lost.stat().st_size == num_bytes


def test_more_entries_than_the_vocabulary_has_are_refused(write, tmp_path):
    with rejects("distill.teacher.k", 265, 264):
        write(TeacherConfig(source="cache", contents="top_k", k=265))
    write(TeacherConfig(source="cache", contents="top_k", k=264))


KILLED = """
import json, os, signal, sys
from pathlib import Path
from architectures.files import partial_path
from distill.data.batches import Example
from distill import teacher_cache
from distill.recipe.sections import TeacherConfig

target, examples, inputs, runs = json.loads(sys.argv[1])
examples = {name: [Example(tuple(ids), *rest) for ids, *rest in rows] for name, rows in examples.items()}
teacher_cache.MAX_SHARD_TOKENS = 40
write_tensors = teacher_cache.write_tensors

def die_in_the_third_shard(tensors, path):
    if path.name == "train-00002.safetensors":
        partial_path(path).write_text("half of a sha")
        os.kill(os.getpid(), signal.SIGKILL)
    return write_tensors(tensors, path)

teacher_cache.write_tensors = die_in_the_third_shard
for out, teacher in runs.items():  # a child each: importing torch twice would take longer than the test
    child = os.fork()
    if child == 0:
        cache = TeacherConfig.model_validate(teacher)
        settings = teacher_cache.CaptureSettings(cache, dtype="float32", seed=3, batch_size=3)
        how = {"inputs": inputs, "finish": None}
        teacher_cache.capture_teacher(Path(target), examples, Path(out), settings, **how)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@pytest.mark.usefixtures("warm")
def test_a_killed_capture_ends_in_the_same_bytes(write, tiny_target, examples, tmp_path):
    rows = {name: [dataclasses.astuple(one) for one in some] for name, some in examples.items()}
    runs = {str(tmp_path / name): teacher.model_dump() for name, teacher in TEACHERS.items()}
    argument = json.dumps([str(tiny_target), rows, INPUTS, runs])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", KILLED, argument], env=environment, check=True)
    for name, teacher in TEACHERS.items():
        killed, whole = tmp_path / name, write(teacher, f"{name}-whole")
        done = ["train-00000.safetensors", "train-00001.safetensors"]
        assert list(contents_on_disk(killed)) == done
        with rejects("widedraft cache RECIPE"):
            TeacherCache(killed, "train")
        since_ns = [(killed / file).stat().st_mtime_ns for file in done]
        remove_partials(killed, mark=LOCK_NAME)  # as the next owner of the run does
        write(teacher, name)
        assert files(killed) == files(whole)
        assert [(killed / file).stat().st_mtime_ns for file in done] == since_ns  # continued, not begun again
        assert told(killed) == told(whole)


def interrupt(monkeypatch, file, capture, *how):
    """Leave a capture that was killed before it wrote a file."""
    write_tensors = teacher_cache.write_tensors

    def stop(tensors, path):
        if path.name == file:
            raise MemoryError("killed")
        return write_tensors(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(teacher_cache, "write_tensors", stop)
        with pytest.raises(MemoryError):
            capture(*how)


def test_a_finished_capture_loads_no_model(write, monkeypatch, tmp_path):
    before = contents_on_disk(write(SAMPLES))
    monkeypatch.setattr(teacher_cache, "load_target", None)
    assert contents_on_disk(write(SAMPLES)) == before


def test_a_part_of_a_cache_from_other_inputs_is_refused_by_name(write, monkeypatch, tmp_path):
    interrupt(monkeypatch, "train-00002.safetensors", write, SAMPLES)
    before = contents_on_disk(tmp_path / "cache")
    monkeypatch.setitem(INPUTS, "target", "other")
    with rejects("target"):
        write(SAMPLES)
    monkeypatch.setitem(INPUTS, "target", "a")
    assert contents_on_disk(tmp_path / "cache") == before
    write(SAMPLES)
    monkeypatch.setitem(INPUTS, "data", "other")
    with rejects("data"):
        write(SAMPLES)


def test_a_file_that_was_lost_is_found_at_opening_and_written_again(write, tmp_path, monkeypatch):
    folder = write(HIDDEN)
    before = contents_on_disk(folder)
    for damage in ("lost", "short", "index"):
        shard = folder / ("train-index.safetensors" if damage == "index" else "train-00001.safetensors")
        shard.write_bytes(shard.read_bytes()[:-1])
        if damage == "lost":
            shard.unlink()
        with rejects(shard.name):
            TeacherCache(folder, "train")
        assert cache_files.ill_sized_files(folder) == [shard.name]
        assert contents_on_disk(write(HIDDEN)) == before


def test_a_cache_that_is_being_mended_counts_as_unfinished(write, tmp_path, monkeypatch):
    folder = write(SAMPLES)
    before = contents_on_disk(folder)
    (folder / "train-00002.safetensors").unlink()
    interrupt(monkeypatch, "train-00002.safetensors", write, SAMPLES)
    assert read_manifest(folder) is None
    assert contents_on_disk(write(SAMPLES)) == before


def test_verification_names_every_file_that_is_not_as_it_was_written(write):
    folder = write(SAMPLES)
    assert cache_files.verify_files(folder) == len(contents_on_disk(folder))
    for name in ("eval-00000.safetensors", "train-00001.safetensors"):
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)
    TeacherCache(folder, "train")  # sizes are right
    with rejects("eval-00000.safetensors", "train-00001.safetensors"):
        cache_files.verify_files(folder)


def test_a_shard_damaged_after_opening_is_named(write):
    cache = TeacherCache(write(HIDDEN), "train")
    shard = cache.folder / cache.files[0]
    shard.write_bytes(b"0" * 100)
    with rejects("train-00000.safetensors"):
        cache.rows(0)


def test_another_format_or_split_is_refused(write):
    folder = write(HIDDEN)
    with rejects("test"):
        TeacherCache(folder, "test")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("teacher_cache/2", "teacher_cache/0"))
    with rejects("teacher_cache/0"):
        TeacherCache(folder, "train")


def test_rows_of_other_responses_are_refused(write, examples):
    cache = TeacherCache(write(HIDDEN), "train")
    cache.require_examples(examples["train"])
    first, *others = examples["train"]
    (start, middle), later = first.spans
    for changed in (
        others,
        [dataclasses.replace(first, spans=((start, middle + 1), later)), *others],
        [dataclasses.replace(first, spans=((start + 1, middle + 1), later)), *others],  # as many rows
        [dataclasses.replace(first, input_ids=(*first.input_ids[:-1], 3)), *others],
        [*others, first],
    ):
        with rejects("train"):
            cache.require_examples(changed)


def test_reading_leaves_no_file_open(write):
    cache = TeacherCache(write(HIDDEN), "train")
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = read_all(cache)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(kept) == len(cache)


@pytest.mark.parametrize(("token_bytes", "expected"), [(1, 4), (2**25, 4), (2**30, 6)])
def test_shards_are_cut_by_tokens_and_by_bytes(monkeypatch, token_bytes, expected):
    """Room for 8 tokens by either limit; a longer response has a shard of its own."""
    monkeypatch.setattr(teacher_cache, "MAX_SHARD_TOKENS", 8)
    num_kept = [3, 5, 1, 20, 2, 2]
    shards = cut_into_shards("train", num_kept, token_bytes=token_bytes)
    assert len(shards) == expected
    assert [response for shard in shards for response in shard.responses] == list(range(6))
    assert [shard.file for shard in shards[:2]] == ["train-00000.safetensors", "train-00001.safetensors"]
    if expected == 4:
        assert [list(shard.responses) for shard in shards] == [[0, 1], [2], [3], [4, 5]]
    lengths = list(itertools.accumulate(num_kept, initial=0))
    where = teacher_cache.Index(lengths, [*(shard.responses.start for shard in shards), 6])
    assert len(where) == 6
    assert where.locate(5) == (expected - 1, slice(2, 4) if expected == 4 else slice(0, 2))


@pytest.fixture
def shared(write, tiny_target, examples, tmp_path):
    """shared(teacher, name, count) -> the folder, written by so many processes; a fixture of `write`'s shards."""

    def work(teacher, name, count):
        out, settings = tmp_path / name, settings_for(teacher)

        def capture_share(share):
            finish = finish_into(out, seed=settings.seed)
            how = {"inputs": INPUTS, "finish": finish, "share": share}
            capture_teacher(tiny_target, examples, out, settings, **how)

        by_processes(count, capture_share)
        return out

    return work


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def told(folder):
    return {**(read_manifest(folder) or {}), "provenance": None}


@pytest.mark.parametrize("name", TEACHERS)
@pytest.mark.parametrize("count", [2, 3, 20])
def test_several_processes_write_the_cache_of_one(write, shared, name, count):
    alone, together = write(TEACHERS[name], "alone"), shared(TEACHERS[name], "together", count)
    assert len([file for file in files(alone) if file.startswith("train")]) > 3
    assert files(together) == files(alone)
    assert told(together) == told(alone)


def test_shards_of_a_lost_process_are_kept(write, shared, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_cache, "MAX_SHARD_TOKENS", 25)  # at least four shards
    alone, lost = write(TOP_K, "alone"), tmp_path / "lost"
    interrupt(monkeypatch, "train-00003.safetensors", shared, TOP_K, "lost", 2)
    kept = {path.name: path.stat().st_mtime_ns for path in lost.glob("train-*.safetensors")}
    assert "train-00001.safetensors" in kept  # the second process wrote it, and lost the fourth
    shared(TOP_K, "lost", 3)
    assert {name: (lost / name).stat().st_mtime_ns for name in kept} == kept
    assert files(lost) == files(alone)
    assert told(lost) == told(alone)


# Contents: what a live teacher says, and draws that depend on no order or batching


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
