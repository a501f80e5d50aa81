"""Which cells there are, and who goes on."""

from math import ceil

import pytest

from benchmarks.minutes.cells import CONFIGURATIONS, Cell, Configuration, Plan, Way, stages

MOST_CELLS = 60
PLAN = Plan(CONFIGURATIONS, (3.0, 6.0, 12.0), (1, 2, 3), finalists=6, final_minutes=12.0)


def best_last(cells):
    return list(reversed(cells))


def test_the_better_third_goes_on_and_the_best_get_every_seed():
    found = list(stages(PLAN, best_last))
    assert [len(stage.cells) for stage in found] == [19, 7, 3, 18]
    first, second, third, last = ([cell.configuration for cell in stage.cells] for stage in found)
    assert second == list(reversed(first))[:7]
    assert third == list(reversed(second))[:3]
    order = [*reversed(third), *list(reversed(second))[3:]]  # who has gone further stands first
    runners_up = [each for each in reversed(second) if each not in third]
    assert last[:6] == [*reversed(third), *runners_up][:6]
    assert len(set(order)) == 7
    assert {cell.minutes for cell in found[-1].cells} == {12.0}
    assert sorted({cell.seed for cell in found[-1].cells}) == [1, 2, 3]
    assert {cell.seed for stage in found[:-1] for cell in stage.cells} == {1}


def test_all_of_it_is_within_the_bound_and_no_cell_is_made_twice():
    cells = [cell for stage in stages(PLAN, best_last) for cell in stage.cells]
    assert len({cell.name for cell in cells}) == len(set(cells)) == 19 + 7 + 3 + 18 - 3 <= MOST_CELLS


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10])
def test_a_third_is_rounded_up(count):
    few = Plan(CONFIGURATIONS[:count], (1.0, 2.0), (1,), finalists=2, final_minutes=2.0)
    sizes = [len(stage.cells) for stage in stages(few, best_last)]
    assert sizes == [count, ceil(count / 3), min(2, count)]


def test_names_tell_configurations_apart_and_are_file_names():
    names = [each.name for each in CONFIGURATIONS]
    assert len(set(names)) == len(names)
    assert not [name for name in names if set(name) & set("/ \\:*?")]
    assert Cell(CONFIGURATIONS[0], 3, 2).name == f"{names[0]}-3min-seed2"


def test_a_cell_knows_its_phases():
    tokens, cached = Way("none", ("cross_entropy",)), Way("cache", ("forward_kl", "cross_entropy"))
    both = Configuration(cached, 4, 2048, epochs=3, before=tokens)
    assert both.phases == (tokens, cached)
    assert both.name == "none-cross_entropy-then-cache-forward_kl+cross_entropy-4layers-2048-3ep"
    assert Configuration(cached, 4).phases == (cached,)
    assert cached.words == [
        "distill.teacher.source=cache",
        "distill.loss=[{name: forward_kl}, {name: cross_entropy}]",
    ]
