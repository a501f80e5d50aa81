"""The picture of docs/example shows the figures of its table."""

from pathlib import Path

import pytest

from benchmarks.example_picture import RESULTS, SETS, SHOWN, picture, speeds
from eval.pages.verdict import with_interval

PAGE = Path(__file__).parents[2] / "docs" / "example" / "README.md"


@pytest.mark.parametrize("name", SETS)
def test_every_speed_that_is_drawn_stands_in_the_table(name):
    told = PAGE.read_text(encoding="utf-8")
    measured = speeds(RESULTS / SETS[name])
    assert list(measured) == list(SHOWN)
    assert not [each for each in measured.values() if with_interval(each, times=True) not in told]


def test_it_is_a_picture_below_100_kilobytes():
    drawn = picture()
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) < 100_000
