"""From responses to batches: what is kept, marked and counted, how wide rows are, and who makes them ahead.

Shape suffixes: B = sequences, T = tokens.
"""

import dataclasses
import threading
from functools import partial
from itertools import chain, islice

import pytest
import torch
from composer.utils import dist
from torch.utils.data import DataLoader, Dataset

from architectures.errors import UserError
from distill.chunked_loss import ResponseLogits
from distill.data.batches import Example, LengthCounts, ResponseDataset, balanced_layout, cheapest_layout, collate
from distill.response_batches import BATCHES_AHEAD, ReadAhead, build_dataspec, cut_padding, padding_multiple
from distill.train import train
from eval.responses import Trace
from tests.architectures.conftest import FAMILY_SETTINGS, perturb
from tests.distill.after_training import assert_equal, metrics
from tests.distill.conftest import random_responses
from tests.distill.data.test_packing import LENGTHS, batch_of, build, loss_and_gradient, rows_computed
from tests.rejections import rejects


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


def test_the_trainer_is_told_how_to_count():
    spec = build_dataspec(dataset((2, 3), (3, 1)), device_batch_size=2, shuffle=False, seed=0)
    batch = next(iter(spec.dataloader))
    assert spec.get_num_tokens_in_batch(batch) == 7
    assert spec.get_num_tokens_in_batch(batch, token_type="loss_generating") == 4
    assert spec.get_num_samples_in_batch(batch) == 2
    halves = [spec.microbatch_transforms(half) for half in spec.split_batch(batch, 1)]
    assert [half["input_ids"].shape[1] for half in halves] == [4, 3]


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])  # full attention, a window, both
def test_padding_changes_neither_loss_nor_gradients(make_checkpoint, family, packing):
    settings = {**FAMILY_SETTINGS[family], "num_hidden_layers": 2}
    folders = [perturb(make_checkpoint(seed=seed, model_type=family, **settings)) for seed in (1, 2)]
    batch = batch_of()
    in_float64 = partial(build, *folders, dtype="float64")  # what differs is no rounding
    loss, gradient = loss_and_gradient(in_float64(packing=False), batch, 3)
    model, found = in_float64(packing=packing, multiple=8), []
    fit = partial(cut_padding, multiple=8)
    shapes = rows_computed(model.student.lm, lambda: found.extend(loss_and_gradient(model, batch, 3, fit)))
    assert {width % 8 for _, width in shapes} == {0}
    assert found[0] == pytest.approx(loss, rel=1e-6)
    assert (found[1] - gradient).norm() < 1e-6 * gradient.norm()


def test_a_micro_batch_is_cut_and_padded_to_a_multiple_and_never_beyond_the_longest():
    batch = batch_of() | {"teacher_hidden": torch.ones(len(LENGTHS), 20, 4)}
    widths = {fit: cut_padding(batch, multiple=fit, longest=31)["input_ids"].shape[1] for fit in (1, 8, 16, 64)}
    assert widths == {1: 30, 8: 31, 16: 31, 64: 31}
    narrow = cut_padding({name: each[2:4] for name, each in batch.items()}, multiple=16, longest=31)
    assert narrow["input_ids"].shape == (2, 16)
    assert narrow["teacher_hidden"].shape == (2, 16, 4)  # of responses no longer than their sequences
    wide = cut_padding(batch, multiple=64)
    assert [wide[name].shape[1] for name in ("input_ids", "attention_mask", "keep", "next_ids")] == [64] * 4
    assert (wide["teacher_hidden"].shape, wide["task"].shape) == ((7, 20, 4), (7, 1))
    for name in ("input_ids", "attention_mask", "keep", "next_ids"):
        assert torch.equal(wide[name][:, :30], batch[name])
        assert not wide[name][:, 30:].any()


def test_a_cut_response_keeps_its_rows_where_the_batch_is_padded():
    """A cache's rows are of the longest response in the batch, which no width of a multiple is shorter than."""
    batch = collate([Example((1, 2, 3), 4, ((0, 3),)), Example((1, 2), 4, ((0, 2),))])
    batch["teacher_hidden"] = torch.arange(6).view(2, 3)
    assert torch.equal(cut_padding(batch, multiple=8)["teacher_hidden"], batch["teacher_hidden"])


def test_packed_rows_are_as_wide_as_a_multiple_where_that_is_the_cheapest():
    assert [balanced_layout(LENGTHS, 4, multiple).width for multiple in (1, 8, 32)] == [30, 32, 32]
    layout = cheapest_layout([3, 3, 3, 24], 24, flops_per_token=lambda _: 1, multiple=8)
    assert layout is not None
    assert (layout.num_rows, layout.width) == (1, 40)
    assert cheapest_layout([3, 3, 24], 24, flops_per_token=lambda _: 1, multiple=64) is not None
    assert cheapest_layout([20, 24], 24, flops_per_token=lambda _: 1, multiple=64) is None  # 64 slots for 48


def test_only_a_gpu_pads(monkeypatch):
    assert padding_multiple() == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert padding_multiple() == 64


@pytest.mark.parametrize("packing", [False, True])
def test_a_recipe_trains_and_evaluates_on_few_widths(make_run, monkeypatch, packing):
    """And on nothing else: its losses are those without."""
    last_hidden, widths, losses = ResponseLogits.last_hidden, {1: set(), 8: set()}, {}
    for multiple, met in widths.items():

        def seen(self, ids_BT, position_ids_BT, *, met=met):
            met.add(ids_BT.shape[1])
            return last_hidden(self, ids_BT, position_ids_BT)

        monkeypatch.setattr(ResponseLogits, "last_hidden", seen)
        for module in ("response_batches", "trainer"):
            monkeypatch.setattr(f"distill.{module}.padding_multiple", lambda multiple=multiple: multiple)
        recipe = make_run(f"by{multiple}", max_duration="3ba", packing=packing)
        train(recipe)
        records = metrics(recipe).values()
        losses[multiple] = [record[name] for record in records for name in record if name.startswith("loss")]
    assert {width for width in widths[8] if width % 8} <= {recipe.data.max_seq_len}
    assert len(widths[8]) < len(widths[1])
    assert len(losses[1]) >= 3
    assert losses[8] == pytest.approx(losses[1], rel=1e-5)


MOST_S = 30.0


@pytest.fixture
def responses():
    return ResponseDataset(random_responses(23, seed=1), max_seq_len=30)


def epochs(loader, sampler, count: int = 3) -> list:
    found = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        found.append(list(loader))
    return found


def test_the_same_batches_in_the_same_order_and_the_same_random_state(responses):
    found, states = [], []
    for loader_class in (DataLoader, ReadAhead):
        torch.manual_seed(5)
        sampler = dist.get_sampler(responses, shuffle=True, seed=7)
        loader = loader_class(responses, batch_size=4, sampler=sampler, collate_fn=responses.collate)
        found.append(epochs(loader, sampler))
        states.append(torch.get_rng_state())
    for plain, ahead in zip(*found, strict=True):
        assert len(plain) == len(ahead) == 6
        for one, other in zip(plain, ahead, strict=True):
            assert_equal(one, other)
    assert torch.equal(*states)
    assert not torch.equal(found[1][0][0]["input_ids"], found[1][1][0]["input_ids"])


def test_training_and_evaluation_read_ahead(responses):
    for shuffle in (True, False):
        spec = build_dataspec(responses, device_batch_size=4, shuffle=shuffle, seed=1)
        assert isinstance(spec.dataloader, ReadAhead)
        assert len(spec.dataloader) == 6


class Noted(Dataset[int]):
    """Numbers, and by which thread each was asked for; number `bad` cannot be read."""

    def __init__(self, bad: int = -1):
        self.bad, self.asked, self.enough = bad, {}, threading.Event()

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        self.asked[index] = threading.current_thread().name
        if index == self.bad:
            raise UserError("the file is damaged")
        if len(self.asked) == 1 + BATCHES_AHEAD:
            self.enough.set()
        return index


def test_the_next_ones_are_made_before_they_are_asked_for_and_no_more():
    numbers = Noted()
    batches = iter(ReadAhead(numbers, batch_size=1))
    next(batches)
    assert numbers.enough.wait(MOST_S)
    assert list(numbers.asked) == [0, 1, 2]
    assert set(numbers.asked.values()) == {"batches_0"}
    assert [int(batch) for batch in batches] == list(range(1, 9))


def test_what_goes_wrong_is_raised_where_its_batch_is_asked_for():
    batches = iter(ReadAhead(Noted(bad=2), batch_size=1))
    assert [int(batch) for batch in islice(batches, 2)] == [0, 1]
    with rejects("damaged"):
        next(batches)


def test_an_epoch_that_is_broken_off_leaves_no_thread():
    before = threading.active_count()
    batches = iter(ReadAhead(Noted(), batch_size=1))
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before
