"""What several processes make together is what one makes, in its order."""

import pytest

from architectures.sharing import Share
from tests.sharing import by_processes

COUNTS = (1, 2, 3, 7)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("units", [0, 1, 5])
def test_every_unit_is_made_once_and_all_are_given_to_all_in_order(count, units):
    made = []

    def work(share: Share) -> list[int]:
        return share.together([made.append(unit) or unit**2 for unit in share.mine(range(units))])

    assert by_processes(count, work) == [[unit**2 for unit in range(units)]] * count
    assert sorted(made) == list(range(units))


def test_the_first_decides_once_for_all():
    decided = []

    def work(share: Share) -> object:
        return share.lead(lambda: decided.append(share.index) or "so")

    assert by_processes(3, work) == ["so"] * 3
    assert decided == [0]


def test_nobody_goes_on_before_all_have_come():
    steps = []

    def work(share: Share) -> None:
        for step in range(3):
            steps.append((step, share.index))
            share.meet()

    by_processes(3, work)
    assert [step for step, _ in steps] == sorted(step for step, _ in steps)
    assert len(steps) == 9


def test_what_all_have_read_is_forgotten():
    boards = []

    def work(share: Share) -> None:
        for _ in range(20):
            share.exchange("value")
        boards.append(share.board)

    by_processes(3, work)
    assert len(boards[0].values) <= 3  # of the last step


def test_a_mistake_of_one_ends_all():
    def work(share: Share) -> None:
        if share.index == 1:
            raise ValueError("mine")
        share.meet()

    with pytest.raises(ValueError, match="mine"):
        by_processes(2, work)
