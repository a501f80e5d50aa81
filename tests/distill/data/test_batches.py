"""From responses to batches: what is kept, what is marked, what is counted.

Shape suffixes: B = sequences, T = tokens.
"""

import dataclasses
from itertools import chain, islice

import pytest
import torch

from distill.data.batches import Example, LengthCounts, ResponseDataset, collate
from distill.response_batches import build_dataspec, cut_padding
from eval.responses import Trace


def trace(prompt: int, response: int, start: int = 100) -> Trace:
    """A trace of so many prompt and response tokens, numbered from `start` and from `start` + 50."""
    return Trace(
        id=start,
        source=f"test:{start}",
        messages=(),
        prompt_ids=tuple(range(start, start + prompt)),
        response_ids=tuple(range(start + 50, start + 50 + response)),
        response="",
        finish_reason="stop",
    )


def dataset(*sizes: tuple[int, int], max_seq_len: int = 100) -> ResponseDataset:
    return ResponseDataset([trace(*size, start=100 * (i + 1)) for i, size in enumerate(sizes)], max_seq_len=max_seq_len)


def test_a_batch_in_full():
    batch = collate(list(dataset((2, 3), (3, 1))))
    assert batch["input_ids"].tolist() == [[100, 101, 150, 151], [200, 201, 202, 0]]
    assert batch["attention_mask"].tolist() == [[True, True, True, True], [True, True, True, False]]
    assert batch["keep"].tolist() == [[False, True, True, True], [False, False, True, False]]
    assert batch["next_ids"].tolist() == [[101, 150, 151, 152], [201, 202, 250, 0]]


def test_responses_are_cut_to_max_seq_len_and_counted():
    cut = dataset((2, 3), (4, 6), (8, 5), (9, 5), max_seq_len=8)
    assert cut.counts == LengthCounts(responses=2, response_tokens=3 + 4, cut=1, left_out=2)
    assert [len(example.input_ids) for example in cut] == [4, 7]
    assert collate([cut[1]])["keep"].sum() == 4


def test_padding_common_to_all_rows_is_cut():
    batch = collate(list(dataset((2, 3), (3, 1), (2, 1))))
    narrow = cut_padding({name: tensor_BT[1:] for name, tensor_BT in batch.items()})
    assert narrow["input_ids"].tolist() == [[200, 201, 202], [300, 301, 0]]
    assert narrow["keep"].tolist() == [[False, False, True], [False, True, False]]
    assert narrow.pop("task").shape == (2, 1)
    assert narrow.pop("prompt_len").tolist() == [[3], [2]]
    assert {tensor_BT.shape for tensor_BT in narrow.values()} == {torch.Size([2, 3])}


def turn(prompt: str, response: str) -> Trace:
    """A trace whose tokens are the letters' codes."""
    return Trace(0, "test:1", (), tuple(map(ord, prompt)), tuple(map(ord, response)), response, "stop")


def lessons(example: Example) -> list[tuple[tuple[int, ...], int]]:
    """Every (context, next token) that an example teaches."""
    batch, whole = collate([example]), (*example.input_ids, example.last_id)
    places = batch["keep"][0].nonzero().flatten().tolist()
    return [(whole[: place + 1], int(batch["next_ids"][0, place])) for place in places]


CHAT = (turn("Q:", "abc."), turn("Q:abc.Q:", "de."), turn("Q:abc.Q:de.Q:", "f."))


def test_turns_that_continue_each_other_are_one_example():
    whole = ResponseDataset.of_conversations(CHAT, max_seq_len=100)
    (example,) = whole
    text = "Q:abc.Q:de.Q:f."
    assert "".join(map(chr, (*example.input_ids, example.last_id))) == text
    assert example.spans == ((1, 5), (7, 10), (12, 14))
    assert example.num_kept == 4 + 3 + 2
    assert whole.counts == LengthCounts(responses=3, response_tokens=9, cut=0, left_out=0)
    keep = collate([example])["keep"][0].tolist()
    assert "".join(letter for letter, kept in zip(text[1:], keep, strict=True) if kept) == "abc.de.f."


@pytest.mark.parametrize("max_seq_len", [2, 3, 6, 8, 9, 11, 13, 14, 15, 100])
def test_a_conversation_teaches_what_its_turns_teach(max_seq_len):
    other = turn("Q:x.Q:", "y.")  # of another row
    rewritten = turn("Q:abc!Q:", "de.")  # the template shows the first response otherwise
    traces = (*CHAT, other, CHAT[0], rewritten)
    whole = ResponseDataset.of_conversations(traces, max_seq_len=max_seq_len)
    apart = ResponseDataset(traces, max_seq_len=max_seq_len)
    assert [lesson for one in whole for lesson in lessons(one)] == [lesson for one in apart for lesson in lessons(one)]
    assert whole.counts == apart.counts
    assert all(len(one.input_ids) < max_seq_len for one in whole)
    assert len(ResponseDataset.of_conversations(traces, max_seq_len=100)) == 4


def test_tasks_stay_with_their_examples():
    first, second = (
        dataclasses.replace(trace, source=f"{name}.jsonl:1") for name, trace in zip("ba", CHAT[:1] * 2, strict=True)
    )
    assert [one.task for one in ResponseDataset.of_conversations([first, second], max_seq_len=9)] == [1, 0]


def batches(shuffle: bool, seed: int = 17, epoch: int = 0) -> list[list[int]]:
    spec = build_dataspec(dataset(*[(2, 2)] * 10), device_batch_size=4, shuffle=shuffle, seed=seed)
    spec.dataloader.sampler.set_epoch(epoch)
    return [batch["input_ids"][:, 0].tolist() for batch in spec.dataloader]


def test_the_last_smaller_batch_is_kept():
    assert batches(shuffle=False) == [[100, 200, 300, 400], [500, 600, 700, 800], [900, 1000]]


def test_shuffling_follows_the_seed_and_the_epoch():
    first = batches(shuffle=True)
    assert first == batches(shuffle=True)
    assert sorted(chain(*first)) == sorted(chain(*batches(shuffle=False)))
    assert first != batches(shuffle=False)
    assert first != batches(shuffle=True, seed=18)
    assert first != batches(shuffle=True, epoch=1)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_together_read_what_one_process_reads(num_ranks, monkeypatch):
    whole = batches(shuffle=True)
    shares = []
    for rank in range(num_ranks):
        spec = build_dataspec(dataset(*[(2, 2)] * 10), device_batch_size=4 // num_ranks, shuffle=True, seed=17)
        sampler = spec.dataloader.sampler
        sampler.num_replicas, sampler.rank = num_ranks, rank
        sampler.num_samples = -(-10 // num_ranks)
        sampler.total_size = sampler.num_samples * num_ranks
        shares.append([batch["input_ids"][:, 0].tolist() for batch in islice(spec.dataloader, 2)])
    for step in range(2):
        assert sorted(chain(*(share[step] for share in shares))) == sorted(whole[step])


def test_the_trainer_is_told_how_to_count():
    spec = build_dataspec(dataset((2, 3), (3, 1)), device_batch_size=2, shuffle=False, seed=0)
    batch = next(iter(spec.dataloader))
    assert spec.get_num_tokens_in_batch(batch) == 7
    assert spec.get_num_tokens_in_batch(batch, token_type="loss_generating") == 4
    assert spec.get_num_samples_in_batch(batch) == 2
    halves = [spec.microbatch_transforms(half) for half in spec.split_batch(batch, 1)]
    assert [half["input_ids"].shape[1] for half in halves] == [4, 3]
