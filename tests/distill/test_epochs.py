"""Several readings of the responses: each in an order of its own, the same for all sources."""

import pytest
from composer.loggers import LoggerDestination

import distill.trainer
from distill.pipeline import cache_stage
from distill.response_batches import read_responses
from distill.run import Run
from distill.train import train
from tests.distill.conftest import NUM_TRAIN

STEPS = 3  # of an epoch: batches of 4, 4 and 2


class Noted(LoggerDestination):
    """Notes which sequences each batch held, as the texts of their ids."""

    def __init__(self):
        self.batches = []

    def batch_end(self, state, logger):
        rows = zip(state.batch["input_ids"].tolist(), state.batch["attention_mask"].sum(1).tolist(), strict=True)
        self.batches.append([tuple(ids[:length]) for ids, length in rows])


@pytest.fixture
def batches_of(monkeypatch):
    """batches_of(recipe) -> the sequences of every batch it is trained on."""

    def trained(recipe):
        noted, build = Noted(), distill.trainer.build_loggers
        with monkeypatch.context() as patch:
            patch.setattr(distill.trainer, "build_loggers", lambda *given: [*build(*given), noted])
            train(recipe)
        return noted.batches

    return trained


@pytest.mark.parametrize("duration", ["3ep", "8ba"])
def test_each_epoch_reads_every_response_once_in_an_order_of_its_own(make_run, batches_of, duration):
    recipe = make_run(max_duration=duration, eval_interval="1dur", teacher={"source": "none"})
    batches = batches_of(recipe)
    train_set, _ = read_responses(Run.of(recipe))
    responses = sorted(example.input_ids for example in train_set.examples)
    assert len(responses) == NUM_TRAIN
    orders = [[row for batch in batches[first : first + STEPS] for row in batch] for first in range(0, 9, STEPS)]
    whole = [order for order in orders if len(order) == NUM_TRAIN]
    assert len(whole) == {"3ep": 3, "8ba": 2}[duration]
    assert all(sorted(order) == responses for order in whole)
    assert len({tuple(order) for order in orders}) == 3
    assert len(set(orders[2])) == len(orders[2])  # also of an epoch that is cut short


def test_the_orders_are_the_same_whatever_the_teacher(make_run, batches_of):
    found = []
    for source in ("live", "cache", "none"):
        recipe = make_run(source, max_duration="2ep", eval_interval="1dur", teacher={"source": source})
        if source == "cache":
            cache_stage(Run.of(recipe))
        found.append(batches_of(recipe))
    assert len(found[0]) == 2 * STEPS
    assert found[0] == found[1] == found[2]
