"""Which served requests a step learns, and which files are kept."""

from dataclasses import dataclass

import pytest

from distill.online.learning import RequestFeed
from distill.online.serving import Journal
from distill.recipe.sections import OnlineConfig


@dataclass
class Requests:
    """No requests, with a journal."""

    journal: Journal


@pytest.fixture(autouse=True)
def six_kept(monkeypatch):
    monkeypatch.setattr("distill.online.learning.BUFFER_SIZE", 6)


def feed_of(tmp_path, *, batches, batch_size, seed=3):
    stream = {"sources": [{"path": "x.jsonl"}]}
    online = OnlineConfig.model_validate({"stream": stream, "update_interval": 2, "steps_per_update": 1})
    feed = RequestFeed(Requests(Journal(tmp_path, 0, 1, 2)), online, seed=seed, batch_size=batch_size)
    feed.batches = batches
    return feed


def test_a_step_fills_up_with_the_newest_requests(tmp_path):
    def draw(batches, batch_size):
        return feed_of(tmp_path, batches=batches, batch_size=batch_size).draw_old(9)

    assert draw(7, 99) == [14, 15, 16, 17]  # 18 and 19 are new
    assert len(draw(7, 5)) == 3
    assert draw(7, 5) == draw(7, 5)
    assert len({tuple(draw(step, 4)) for step in range(20)}) > 1
    assert draw(0, 2) == []
    assert feed_of(tmp_path, batches=0, batch_size=8).draw_old(0) == []


def test_requests_outside_the_buffer_are_not_needed(tmp_path):
    feed = feed_of(tmp_path, batches=0, batch_size=2)
    assert [feed.first_kept(updates) for updates in (0, 3, 4, 10)] == [0, 0, 2, 14]


def test_processes_share_a_stream_without_overlap(tmp_path):
    shares = [Journal(tmp_path, rank, 2, 4) for rank in range(2)]
    assert [share.of_update(1) for share in shares] == [[4, 6], [5, 7]]
    assert sorted(n for share in shares for u in range(3) for n in share.of_update(u)) == list(range(12))
