"""How far answers are: every step of a batch counts, not only its ends, where many answers end at once."""

from contextlib import contextmanager

import pytest

from eval.answers.traces import DecodingSettings
from eval.decoding import generate
from eval.decoding.generate import PASS_ROWS, write_traces
from eval.prompts import Prompt

ASKED = [Prompt(f"p:{n}", ({"role": "user", "content": f"say {n}"},)) for n in range(5)]


@pytest.fixture
def advances(monkeypatch):
    """(work, items) of all that is told."""
    told = []

    @contextmanager
    def progress(description, *, total, whole):
        told.append((description, total, whole))
        yield lambda work, /, *, items=1: told.append((work, items))

    monkeypatch.setattr(generate, "progress", progress)
    return told


def settings(**changes):
    return DecodingSettings(
        **{
            "max_new_tokens": 12,
            "max_prompt_len": 100,
            "temperature": 0.0,
            "top_p": 1.0,
            "batch_size": 2,
            "shard_size": 3,
            "dtype": "float32",
            "seed": 1,
            **changes,
        }
    )


def test_the_work_of_all_steps_is_that_of_all_answers(target_folder, tmp_path, advances):
    write_traces(target_folder, ASKED, tmp_path, settings(), name="eval")
    assert advances.pop(0) == ("eval answers", 5, 3 * PASS_ROWS + 5)  # of three batches
    assert sum(work for work, _ in advances) == pytest.approx(3 * PASS_ROWS + 5)
    assert sum(items for _, items in advances) == 5
    within = [work for work, items in advances if items == 0 and work > 0]
    assert len(within) > 10  # steps of 3 batches of at most 12


def test_answers_that_are_taken_from_earlier_ones_count_too(target_folder, tmp_path, advances):
    write_traces(target_folder, ASKED, tmp_path / "first", settings(), name="eval")
    advances.clear()
    write_traces(target_folder, ASKED, tmp_path / "second", settings(), name="eval", answers_from=[tmp_path / "first"])
    assert advances[1:] == [(pytest.approx(advances[0][2] / 5), 1)] * 5
