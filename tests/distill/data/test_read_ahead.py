"""Batches that are made ahead: the same, in the same order, made by another thread, which ends with the epoch."""

import threading
from itertools import islice

import pytest
import torch
from composer.utils import dist
from torch.utils.data import DataLoader, Dataset

from architectures.errors import UserError
from distill.data.batches import ResponseDataset
from distill.response_batches import BATCHES_AHEAD, ReadAhead, build_dataspec
from tests.distill.after_training import assert_equal
from tests.distill.conftest import random_responses
from tests.rejections import rejects

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
