"""Two processes that share a stream learn what one learns."""

import pytest

from distill.train import train
from tests.distill.after_training import metrics, relative_difference, weights
from tests.distill.online.conftest import records
from tests.distill.two_processes import attempt, train_by


def test_two_processes_equal_one(pair, make_online):
    """The same requests in each update, gradients weighted by what they teach, records in the order of the stream."""
    alone, together = (make_online(name, global_train_batch_size=2) for name in ("alone", "together"))
    train(alone)
    train_by(pair, together)
    assert relative_difference(weights(alone), weights(together)) < 1e-5
    found, expected = records(together), records(alone)
    assert [line["request"] for line in found] == [line["request"] for line in expected]
    assert [line["alpha"] for line in found] == pytest.approx([line["alpha"] for line in expected], abs=1e-4)
    last = [logged[max(logged)] for logged in (metrics(alone), metrics(together))]
    for name in ("online/alpha", "online/tau", "online/requests", "online/taken_back"):
        assert last[0][name] == pytest.approx(last[1][name], abs=1e-4), name


def test_an_interval_that_cannot_be_shared_is_refused(pair, make_online):
    recipe = make_online(online={"update_interval": 1}, global_train_batch_size=2)
    completed = attempt(pair, recipe)
    assert completed.returncode == 2
    assert "distill.online.update_interval" in completed.stdout + completed.stderr
