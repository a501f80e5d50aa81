"""A cached teacher: what it keeps equals what a live one says, and no draw depends on order, batching or a restart.

Shape suffixes: A = answer tokens, V = vocabulary entries, K = entries kept, S = tokens drawn.
"""

import dataclasses
import itertools
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.manifest import read_manifest
from distill.data.batches import AnswerDataset, Example, collate
from distill.losses.answer_logits import head_of
from distill.losses.sparse import alpha_bounds, top_k_kl
from distill.teacher.config import TeacherConfig
from distill.teacher.live import load_teacher
from distill.teacher_cache import capture, index, record
from distill.teacher_cache.capture import CaptureSettings, capture_teacher
from distill.teacher_cache.contents import (
    join_rows,
    load_head,
    narrow_ids,
    sampled_rows,
    top_k_rows,
    uniform_numbers,
)
from distill.teacher_cache.index import cut_into_shards
from distill.teacher_cache.reader import TeacherCache
from eval.traces import Trace

ROOT = Path(__file__).parents[3]
MAX_SEQ_LEN = 30
VOCAB = 264
OTHER_BATCH = {"rtol": 1e-5, "atol": 5e-5}  # float32: a product of more rows may sum in another order
HIDDEN = TeacherConfig(source="cache")
TOP_K = TeacherConfig(source="cache", contents="top_k", k=5)
SAMPLES = TeacherConfig(source="cache", contents="samples", num_samples=7)
INPUTS = {"target": "a", "data": "b"}


def settings_for(teacher: TeacherConfig, **changes: Any) -> CaptureSettings:
    return dataclasses.replace(CaptureSettings(teacher, dtype="float32", seed=3, batch_size=3), **changes)


def answers(count: int, seed: int) -> list[Trace]:
    generator = torch.Generator().manual_seed(seed)

    def tokens(longest: int) -> tuple[int, ...]:
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        return tuple(torch.randint(3, 259, (length,), generator=generator).tolist())

    return [Trace(i, f"test:{i}", (), tokens(20), tokens(25), "", "stop") for i in range(count)]


@pytest.fixture(scope="module")
def examples():
    sets = {"train": AnswerDataset(answers(10, 1), max_seq_len=MAX_SEQ_LEN)}
    sets["eval"] = AnswerDataset(answers(4, 2), max_seq_len=MAX_SEQ_LEN)
    assert sets["train"].counts.cut
    return {name: [with_two_answers(each) for each in dataset.examples] for name, dataset in sets.items()}


def with_two_answers(example: Example) -> Example:
    """The example with the fourth token of a longer answer as what a user says in between."""
    ((first, end),) = example.spans
    return dataclasses.replace(example, spans=((first, first + 3), (first + 4, end))) if end > first + 4 else example


@pytest.fixture
def write(tiny_target, examples, tmp_path, monkeypatch):
    """write(teacher, name of the folder) -> the folder; shards of few tokens, so that there are several."""
    monkeypatch.setattr(index, "MAX_SHARD_TOKENS", 40)

    def write(teacher: TeacherConfig, name: str = "cache", *, target: Path = tiny_target, **changes: Any) -> Path:
        settings = settings_for(teacher, **changes)
        capture_teacher(target, examples, tmp_path / name, settings, inputs=INPUTS, details={"seed": settings.seed})
        return tmp_path / name

    return write


def live_logits(target: Path, example) -> torch.Tensor:
    """Logits_AV of the live teacher, of one example alone."""
    batch = collate([example])
    return load_teacher(target, dtype="float32", device="cpu").logits(batch["input_ids"], batch["keep"])


def contents_on_disk(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_head_and_hidden_state_give_the_live_logits(make_checkpoint, examples, model_type, tied):
    """Bit for bit: the same batch, the same weights, the same products."""
    if model_type in ("gpt2", "opt", "bloom", "gpt_neox", "phi3"):
        changes = {"num_key_value_heads": 4, "tie_word_embeddings": tied, "pad_token_id": 0}
    else:
        changes = {"tie_word_embeddings": tied}
    changes |= {"final_logit_softcapping": 1.5} if model_type == "gemma2" else {}
    folder = make_checkpoint(model_type=model_type, **changes)
    teacher = load_teacher(folder, dtype="bfloat16", device="cpu")
    capturer = capture.Capturer(folder, settings_for(HIDDEN, dtype="bfloat16"))
    hidden = capturer.hidden_states(examples["train"][:4])
    batch = collate(examples["train"][:4])
    live_AV = teacher.logits(batch["input_ids"], batch["keep"])
    for head in (load_head(folder, dtype="bfloat16", device="cpu"), head_of(capturer.lm)):
        assert torch.equal(head.logits(torch.cat(hidden)), live_AV)


def test_the_head_of_a_checkpoint_published_without_its_prefix(make_checkpoint):
    folder = make_checkpoint(model_type="gpt2", num_key_value_heads=4)
    expected = load_head(folder, dtype="float32", device="cpu")
    tensors = load_file(folder / "model.safetensors")
    short = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(short, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(load_head(folder, dtype="float32", device="cpu").weight_VH, expected.weight_VH)


def test_cached_hidden_states_give_the_live_logits_in_the_order_of_the_keep_mask(write, tiny_target, examples):
    cache = TeacherCache(write(HIDDEN), "train")
    assert len(cache.files) > 2
    head = load_head(tiny_target, dtype="float32", device="cpu")
    chosen = [7, 0, 9, 3]
    rows = join_rows([cache.rows(answer) for answer in chosen])
    batch = collate([examples["train"][answer] for answer in chosen])
    live_AV = load_teacher(tiny_target, dtype="float32", device="cpu").logits(batch["input_ids"], batch["keep"])
    torch.testing.assert_close(head.logits(rows["hidden"]), live_AV, **OTHER_BATCH)


def test_every_answer_has_a_row_for_each_of_its_tokens(write, examples):
    folder = write(TOP_K)
    for name in ("train", "eval"):
        cache = TeacherCache(folder, name)
        assert len(cache) == len(examples[name])
        for answer, example in enumerate(examples[name]):
            assert {len(rows) for rows in cache.rows(answer).values()} == {example.num_kept}
    for wrong in (-1, len(examples["eval"])):
        with pytest.raises(IndexError, match=f"answer must be from 0 to 3, got {wrong}"):
            TeacherCache(folder, "eval").rows(wrong)


def test_held_out_answers_are_hidden_states_whatever_is_trained_on(write):
    folder = write(SAMPLES)
    assert TeacherCache(folder, "train").contents == "samples"
    assert TeacherCache(folder, "eval").contents == "hidden"
    assert set(TeacherCache(folder, "eval").rows(0)) == {"hidden"}


def test_top_k_keeps_the_most_likely_tokens_and_the_mass_of_the_others(write, tiny_target, examples):
    cache = TeacherCache(write(TOP_K), "train")
    for answer in (0, 5):
        logp_AV = live_logits(tiny_target, examples["train"][answer]).double().log_softmax(-1)
        rows = cache.rows(answer)
        expected = logp_AV.topk(5)
        assert torch.equal(rows["ids"], expected.indices)
        assert rows["log_probs"].dtype == rows["log_tail"].dtype == torch.float32
        torch.testing.assert_close(rows["log_probs"].double(), expected.values, rtol=1e-3, atol=1e-4)  # float16
        tail_A = (1 - expected.values.exp().sum(-1)).log()
        torch.testing.assert_close(rows["log_tail"].double(), tail_A, rtol=1e-4, atol=1e-4)


def test_a_cached_teacher_is_its_own_best_student_and_bounds_alpha(write, tiny_target, examples):
    rows = TeacherCache(write(TOP_K), "train").rows(2)
    teacher_AV = live_logits(tiny_target, examples["train"][2])
    loss_A = top_k_kl(teacher_AV, rows["ids"], rows["log_probs"], rows["log_tail"])
    torch.testing.assert_close(loss_A, torch.zeros_like(loss_A), rtol=0, atol=1e-5)  # log-probabilities are float16
    least_A, greatest_A = alpha_bounds(teacher_AV, rows["ids"], rows["log_probs"], rows["log_tail"])
    assert (greatest_A > 0.998).all()
    assert (least_A < 1).all()


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
    monkeypatch.setattr(index, "MAX_SHARD_TOKENS", 1000)
    monkeypatch.setattr(capture, "ROWS_AT_ONCE", 4)
    third = write(SAMPLES, "third")
    assert len(TeacherCache(third, "train").files) == 1
    for answer in range(len(examples["train"])):
        drawn = [TeacherCache(folder, "train").rows(answer)["ids"] for folder in (one, other, third)]
        assert torch.equal(drawn[0], drawn[1])
        assert torch.equal(drawn[0], drawn[2])


def test_draws_depend_on_seed_split_and_answer(write, examples):
    first = TeacherCache(write(SAMPLES), "train")
    second = TeacherCache(write(SAMPLES, "other", seed=4), "train")
    assert any(not torch.equal(first.rows(i)["ids"], second.rows(i)["ids"]) for i in range(10))
    uniform = [uniform_numbers(4, 3, seed=seed) for seed in (1, 1, -2)]
    assert torch.equal(uniform[0], uniform[1])
    assert not torch.equal(uniform[0], uniform[2])
    assert all(((numbers > 0) & (numbers <= 1)).all() for numbers in uniform)


def test_two_answers_alike_have_draws_of_their_own(tiny_target, examples, tmp_path):
    longest = max(examples["train"], key=lambda example: example.num_kept)
    twins = {"train": [longest, longest]}
    capture_teacher(tiny_target, twins, tmp_path / "twins", settings_for(SAMPLES), inputs=INPUTS, details={})
    first, second = read_all(TeacherCache(tmp_path / "twins", "train"))
    assert not torch.equal(first["ids"], second["ids"])


def test_a_token_drawn_twice_stands_there_twice(write):
    cache = TeacherCache(write(SAMPLES), "train")
    ids = [token for answer in range(len(cache)) for token in cache.rows(answer)["ids"].tolist()]
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


@pytest.mark.parametrize("teacher", [HIDDEN, TOP_K, SAMPLES], ids=lambda teacher: teacher.contents)
def test_a_token_takes_the_bytes_that_were_estimated(write, examples, teacher, capsys):
    folder = write(teacher)
    said = capsys.readouterr().err
    manifest = read_manifest(folder)
    assert manifest is not None
    for name, split in manifest["splits"].items():
        num_tokens = sum(example.num_kept for example in examples[name])
        assert split["answer_tokens"] == num_tokens
        rows = sum(rows.nbytes for file in split["shards"] for rows in load_file(folder / file).values())
        assert rows == num_tokens * split["bytes_per_token"]
        line = f"{name}: {num_tokens} answer tokens of {len(examples[name])} answers, {split['contents']}, "
        assert f"{line}{split['bytes_per_token']} bytes a token: " in said


def test_a_cache_that_cannot_fit_is_refused_before_a_byte_is_written(write, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(capture, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(capture, "load_model", None)
    with pytest.raises(UserError, match=r"cache: the teacher cache needs 0\.0 MiB, the disk has 0\.0 MiB free\. Make"):
        write(HIDDEN)
    assert not (tmp_path / "cache").exists()
    assert "free" in capsys.readouterr().err


def test_a_capture_that_continues_needs_room_for_what_is_missing(write, tmp_path, monkeypatch):
    folder = write(HIDDEN)
    lost = folder / "train-00001.safetensors"
    num_bytes = lost.stat().st_size
    lost.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(capture, "free_bytes", lambda _: num_bytes // 2)
        with pytest.raises(UserError, match="the disk has"):
            write(HIDDEN)
    monkeypatch.setattr(capture, "free_bytes", lambda _: num_bytes)
    write(HIDDEN)
    assert lost.stat().st_size == num_bytes


def test_more_entries_than_the_vocabulary_has_are_refused(write, tmp_path):
    with pytest.raises(
        UserError, match=r"distill\.teacher\.k must be at most the target's vocab_size, got 265 and 264"
    ):
        write(TeacherConfig(source="cache", contents="top_k", k=265))
    write(TeacherConfig(source="cache", contents="top_k", k=264))


KILLED = """
import json, os, signal, sys
from pathlib import Path
from distill.data.batches import Example
from distill.teacher_cache import capture, index
from distill.teacher.config import TeacherConfig

target, examples, inputs, runs = json.loads(sys.argv[1])
examples = {name: [Example(tuple(ids), *rest) for ids, *rest in rows] for name, rows in examples.items()}
index.MAX_SHARD_TOKENS = 40
write_tensors = capture.write_tensors

def die_in_the_third_shard(tensors, path):
    if path.name == "train-00002.safetensors":
        path.with_name(path.name + ".partial").write_text("half of a sha")
        with (path.parent / "capture.jsonl").open("a") as journal:
            journal.write('{"name": "train-000')
        os.kill(os.getpid(), signal.SIGKILL)
    return write_tensors(tensors, path)

capture.write_tensors = die_in_the_third_shard
for out, teacher in runs.items():  # a child each: importing torch twice would take longer than the test
    child = os.fork()
    if child == 0:
        settings = capture.CaptureSettings(TeacherConfig(**teacher), dtype="float32", seed=3, batch_size=3)
        capture.capture_teacher(Path(target), examples, Path(out), settings, inputs=inputs, details={})
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@pytest.mark.slow
def test_a_killed_capture_ends_in_the_same_bytes(write, tiny_target, examples, tmp_path):
    teachers = {"hidden": HIDDEN, "top_k": TOP_K, "samples": SAMPLES}
    rows = {name: [dataclasses.astuple(one) for one in some] for name, some in examples.items()}
    runs = {str(tmp_path / name): teacher.model_dump() for name, teacher in teachers.items()}
    argument = json.dumps([str(tiny_target), rows, INPUTS, runs])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", KILLED, argument], env=environment, check=True)
    for name, teacher in teachers.items():
        killed, whole = tmp_path / name, write(teacher, f"{name}-whole")
        done = ["train-00000.safetensors", "train-00001.safetensors"]
        assert list(contents_on_disk(killed)) == done
        with pytest.raises(UserError, match=r"holds no finished teacher cache\. Run `widedraft cache RECIPE`"):
            TeacherCache(killed, "train")
        since_ns = [(killed / file).stat().st_mtime_ns for file in done]
        write(teacher, name)
        assert contents_on_disk(killed) == contents_on_disk(whole)
        assert [(killed / file).stat().st_mtime_ns for file in done] == since_ns  # continued, not begun again
        assert sorted(path.name for path in killed.iterdir()) == sorted(path.name for path in whole.iterdir())
        ours, theirs = read_manifest(killed), read_manifest(whole)
        assert ours is not None
        assert theirs is not None
        assert {**ours, "provenance": None} == {**theirs, "provenance": None}


def interrupt(monkeypatch, write, teacher=SAMPLES):
    """Leave a capture that stopped after its second shard."""

    class Stopped(Exception):  # noqa: N818  # nobody's mistake
        pass

    write_tensors = capture.write_tensors

    def stop(tensors, path):
        if path.name == "train-00002.safetensors":
            raise Stopped
        return write_tensors(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(capture, "write_tensors", stop)
        with pytest.raises(Stopped):
            write(teacher)


def test_a_shard_damaged_between_two_sessions_is_found_by_its_checksum_and_named(write, tmp_path, monkeypatch, capsys):
    interrupt(monkeypatch, write)
    shard = tmp_path / "cache" / "train-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    capsys.readouterr()
    write(SAMPLES)
    assert f"{shard}: missing or damaged; it is written again" in capsys.readouterr().err
    assert contents_on_disk(tmp_path / "cache") == contents_on_disk(write(SAMPLES, "whole"))


def test_a_finished_capture_loads_no_model(write, monkeypatch, tmp_path):
    before = contents_on_disk(write(SAMPLES))
    monkeypatch.setattr(capture, "load_model", None)
    assert contents_on_disk(write(SAMPLES)) == before


def test_a_part_of_a_cache_from_other_inputs_is_refused_by_name(write, monkeypatch, tmp_path):
    interrupt(monkeypatch, write)
    before = contents_on_disk(tmp_path / "cache")
    monkeypatch.setitem(INPUTS, "target", "other")
    expected = r"cache was begun from another target than the recipe now asks for\. Choose another run_name, or delete"
    with pytest.raises(UserError, match=expected):
        write(SAMPLES)
    monkeypatch.setitem(INPUTS, "target", "a")
    assert contents_on_disk(tmp_path / "cache") == before
    write(SAMPLES)
    monkeypatch.setitem(INPUTS, "data", "other")
    with pytest.raises(UserError, match="begun from another data than"):
        write(SAMPLES)


def test_a_file_that_was_lost_is_found_at_opening_and_written_again(write, tmp_path, monkeypatch):
    folder = write(HIDDEN)
    before = contents_on_disk(folder)
    for damage in ("lost", "short", "index"):
        shard = folder / ("train-index.safetensors" if damage == "index" else "train-00001.safetensors")
        shard.write_bytes(shard.read_bytes()[:-1])
        if damage == "lost":
            shard.unlink()
        with pytest.raises(UserError, match=rf"{shard.name}: missing, or not as long as it was written; 1 such file"):
            TeacherCache(folder, "train")
        assert record.ill_sized_files(folder) == [shard.name]
        assert contents_on_disk(write(HIDDEN)) == before


def test_a_cache_that_is_being_mended_counts_as_unfinished(write, tmp_path, monkeypatch):
    folder = write(SAMPLES)
    before = contents_on_disk(folder)
    (folder / "train-00002.safetensors").unlink()
    interrupt(monkeypatch, write)
    assert read_manifest(folder) is None
    assert contents_on_disk(write(SAMPLES)) == before


def test_a_part_of_a_cache_of_another_format_is_refused(write, tmp_path, monkeypatch):
    """Its shards may be cut elsewhere."""
    interrupt(monkeypatch, write)
    monkeypatch.setattr(record, "FORMAT", "widedraft.teacher_cache/3")
    with pytest.raises(UserError, match=r"its format is 'widedraft\.teacher_cache/2', this version reads 'widedraft\."):
        write(SAMPLES)


def test_verification_names_every_file_that_is_not_as_it_was_written(write):
    folder = write(SAMPLES)
    assert record.verify_files(folder) == len(contents_on_disk(folder))
    for name in ("eval-00000.safetensors", "train-00001.safetensors"):
        content = bytearray((folder / name).read_bytes())
        content[-1] ^= 1
        (folder / name).write_bytes(content)
    TeacherCache(folder, "train")  # sizes are right
    with pytest.raises(UserError, match=r"as they were written: eval-00000\.safetensors, train-00001\.safetensors\. D"):
        record.verify_files(folder)


def test_a_shard_damaged_after_opening_is_named(write):
    cache = TeacherCache(write(HIDDEN), "train")
    shard = cache.folder / cache.files[0]
    shard.write_bytes(b"0" * 100)
    with pytest.raises(
        UserError, match=r"train-00000\.safetensors: damaged \(.*\)\. Delete it and run `widedraft cache"
    ):
        cache.rows(0)


def test_another_format_or_split_is_refused(write):
    folder = write(HIDDEN)
    with pytest.raises(UserError, match="holds no test answers, but train, eval"):
        TeacherCache(folder, "test")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("teacher_cache/2", "teacher_cache/0"))
    with pytest.raises(UserError, match=r"its format is 'widedraft\.teacher_cache/0', this version reads 'widedraft\."):
        TeacherCache(folder, "train")


def test_rows_of_other_answers_are_refused(write, examples):
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
        with pytest.raises(UserError, match="its train rows belong to other answers than those in the data folder"):
            cache.require_examples(changed)


def test_manifest_says_what_the_cache_is(write):
    folder = write(TOP_K)
    manifest = read_manifest(folder)
    assert manifest is not None
    assert sorted(path.name for path in folder.iterdir()) == sorted(["manifest.json", *manifest["files"]])
    assert (manifest["stage"], manifest["inputs"], manifest["seed"]) == ("cache", INPUTS, 3)
    assert manifest["splits"]["train"]["k"] == 5
    assert "k" not in manifest["splits"]["eval"]
    assert manifest["provenance"]["versions"]["torch"]


def read_all(cache: TeacherCache) -> list[dict[str, torch.Tensor]]:
    return [cache.rows(answer) for answer in range(len(cache))]


class Rows(torch.utils.data.Dataset):
    def __init__(self, cache: TeacherCache):
        self.cache = cache

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, answer: int) -> dict[str, torch.Tensor]:
        return self.cache.rows(answer)


def test_workers_read_what_the_process_itself_reads(write):
    cache = TeacherCache(write(TOP_K), "train")
    loader = DataLoader(Rows(cache), batch_size=4, num_workers=1, collate_fn=join_rows, multiprocessing_context="fork")
    expected = join_rows(read_all(cache))
    pickled = pickle.dumps(cache)  # as a spawned worker gets it
    assert len(pickled) < 5000
    for whole in (join_rows(list(loader)), join_rows(read_all(pickle.loads(pickled)))):
        assert whole.keys() == expected.keys()
        assert all(torch.equal(whole[name], expected[name]) for name in whole)


def test_reading_leaves_no_file_open(write):
    cache = TeacherCache(write(HIDDEN), "train")
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = read_all(cache)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(kept) == len(cache)


@pytest.mark.parametrize(("token_bytes", "expected"), [(1, 4), (2**25, 4), (2**30, 6)])
def test_shards_are_cut_by_tokens_and_by_bytes(monkeypatch, token_bytes, expected):
    """Room for 8 tokens by either limit; a longer answer has a shard of its own."""
    monkeypatch.setattr(index, "MAX_SHARD_TOKENS", 8)
    num_kept = [3, 5, 1, 20, 2, 2]
    shards = cut_into_shards("train", num_kept, token_bytes=token_bytes)
    assert len(shards) == expected
    assert [answer for shard in shards for answer in shard.answers] == list(range(6))
    assert [shard.file for shard in shards[:2]] == ["train-00000.safetensors", "train-00001.safetensors"]
    if expected == 4:
        assert [list(shard.answers) for shard in shards] == [[0, 1], [2], [3], [4, 5]]
    lengths = list(itertools.accumulate(num_kept, initial=0))
    where = index.Index(lengths, [*(shard.answers.start for shard in shards), 6])
    assert len(where) == 6
    assert where.place(5) == (expected - 1, slice(2, 4) if expected == 4 else slice(0, 2))
