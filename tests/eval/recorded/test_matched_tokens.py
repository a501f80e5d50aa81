"""Files of rounds: averages by hand, a test for each fault of the script they come with, and what a file cannot say."""

import random
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from architectures.errors import UserError
from eval.recorded.matched_tokens import (
    match_by_totals,
    match_with_answers,
    matched_lines,
    read_rounds,
    write_rounds,
)

LOOKAHEAD = 4
BY_HAND = [(3, 2, 4, 1), (2, 2, 5), (1, 5, 1)]
LENGTHS = [16, 14, 13]  # a prompt goes on until it has lookahead + 2 tokens less


def totals_of(matched):
    return [sum(matched[: i + 1]) for i in range(len(matched))]


@pytest.fixture
def rounds_of(tmp_path):
    def write(prompts):
        write_rounds([totals_of(matched) for matched in prompts], tmp_path / "rounds.txt")
        return read_rounds(tmp_path / "rounds.txt")

    return write


@pytest.fixture
def rounds_in(tmp_path):
    def write(text):
        (tmp_path / "rounds.txt").write_text(text, encoding="utf-8")
        return read_rounds(tmp_path / "rounds.txt")

    return write


def ways_to_match(rounds, lengths=LENGTHS):
    return match_by_totals(rounds), match_with_answers(rounds, lengths, lookahead=LOOKAHEAD)


def test_the_averages_by_hand(rounds_of):
    for matched in ways_to_match(rounds_of(BY_HAND)):
        assert matched.prompts == tuple(BY_HAND)
        assert matched.per_prompt() == pytest.approx([10 / 4, 9 / 3, 7 / 3])
        assert matched.per_data_set() == pytest.approx(2.6)


def test_the_first_round_of_a_prompt_counts(rounds_of):
    for matched in ways_to_match(rounds_of(BY_HAND)):
        assert [prompt[0] for prompt in matched.prompts] == [3, 2, 1]


def test_no_zero_is_added_to_the_last_prompt(rounds_of):
    for matched in ways_to_match(rounds_of(BY_HAND)):
        assert matched.prompts[-1] == (1, 5, 1)
        assert matched.num_rounds == 10


def test_the_last_difference_counts_once(rounds_of):
    for matched in ways_to_match(rounds_of(BY_HAND)):
        assert matched.num_tokens == 26  # the last totals, 10 + 9 + 7


def test_a_prompt_whose_first_total_equals_the_last_total_is_not_merged(rounds_of):
    """Totals rise within a prompt: each round matches at least the target's own token."""
    prompts = [(4,), (4, 3), (1, 1)]
    matched = match_by_totals(rounds_of(prompts), lookahead=4)
    assert matched.prompts == tuple(prompts)
    assert matched.doubtful_lines == (5,)


def test_a_prompt_whose_first_total_is_above_the_last_total_is_not_merged_where_answers_are_given(rounds_of):
    prompts = [(2,), (5, 4), (3,)]
    lengths = [8, 15, 9]
    rounds = rounds_of(prompts)
    assert match_with_answers(rounds, lengths, lookahead=LOOKAHEAD).prompts == tuple(prompts)
    alone = match_by_totals(rounds, lookahead=LOOKAHEAD)
    assert alone.prompts == ((2, 3, 4), (3,))  # not to be told apart, and said:
    assert alone.doubtful_lines == (2,)
    assert alone.per_data_set() == 12 / 4
    assert alone.highest_per_data_set() == 14 / 4
    page = matched_lines(alone)
    assert "NOT CERTAIN: at line 2 a prompt may begin" in page
    assert "(at most 3.50)" in page


def test_nothing_is_doubtful_where_answers_are_given(rounds_of):
    matched = match_with_answers(rounds_of(BY_HAND), LENGTHS, lookahead=LOOKAHEAD)
    assert matched.doubtful_lines == ()
    assert matched.highest_per_data_set() == matched.per_data_set()
    assert "NOT CERTAIN" not in matched_lines(matched)


def test_without_a_lookahead_every_rise_is_doubtful_and_nothing_bounds_it(rounds_of):
    matched = match_by_totals(rounds_of(BY_HAND))
    assert matched.doubtful_lines == (2, 3, 4, 6, 7, 9, 10)
    assert matched.highest_per_data_set() is None
    assert "give --lookahead to bound it" in matched_lines(matched)


def possible_averages(totals, lookahead):
    """The data set's average for every way of cutting the file into prompts that its lookahead allows."""
    found = []
    for cuts in product([False, True], repeat=len(totals) - 1):
        starts = [True, *cuts]
        matched = [
            total - (0 if is_start else before)
            for total, before, is_start in zip(totals, [0, *totals], starts, strict=False)
        ]
        if all(1 <= one <= lookahead + 1 for one in matched):
            found.append(sum(matched) / len(matched))
    return found


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=4))
def test_the_bounds_are_those_of_all_ways_to_read_the_file(rounds_of, prompts):
    rounds = rounds_of(prompts)
    averages = possible_averages([one.totals[0] for one in rounds], lookahead=2)
    matched = match_by_totals(rounds, lookahead=2)
    assert matched.per_data_set() == pytest.approx(min(averages))
    assert matched.highest_per_data_set() == pytest.approx(max(averages))
    assert bool(matched.doubtful_lines) == (len(averages) > 1)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_with_answers_every_prompt_is_found_again(rounds_in, seed, batch_size):
    """Batches as they are decoded: until every row has enough, none at all where the answers are too short."""
    drawn = random.Random(seed)
    lengths, prompts, lines = [], [], []
    for _ in range(6):
        length = drawn.randint(1, 12)
        rows = [[] for _ in range(batch_size)]
        while min(map(sum, rows)) < length - LOOKAHEAD - 2:
            for row in rows:
                row.append(drawn.randint(1, LOOKAHEAD + 1))
            lines.append(str([sum(row) for row in rows]))
        lengths += [length] * batch_size
        prompts += [tuple(row) for row in rows]
    rounds = rounds_in("\n".join([*lines, "[" + ", ".join(["1"] * batch_size) + "]"]))[:-1]  # never without a round
    if rounds:
        matched = match_with_answers(rounds, lengths, lookahead=LOOKAHEAD)
        last = max(i for i, prompt in enumerate(prompts) if prompt)
        assert matched.prompts == tuple(prompts[: last + 1])


def test_rows_of_a_batch_are_prompts(rounds_in):
    rounds = rounds_in("[3, 1]\n[5, 2]\n[7, 6]\n[1, 8]\n[2, 9]\n")
    assert match_by_totals(rounds).prompts == ((3, 2, 2), (1, 1, 4), (1, 1), (8, 1))
    assert match_by_totals(rounds).per_data_set() == 2.4


def test_lines_as_torch_prints_them_are_read(rounds_in):
    rounds = rounds_in(
        "tensor([3], device='cuda:0', dtype=torch.int32)\n\ntensor([5])\n[9]\ntensor([\n  10],\n  device='cuda:0')\n"
    )
    assert [one.totals for one in rounds] == [(3,), (5,), (9,), (10,)]
    assert [one.piece.line for one in rounds] == [1, 3, 4, 5]


def test_what_is_written_is_one_line_a_round(tmp_path):
    write_rounds([[3, 5], [], [2]], tmp_path / "rounds.txt")
    assert (tmp_path / "rounds.txt").read_text() == "[3]\n[5]\n[2]\n"


def test_a_prompt_without_a_round_has_no_average(rounds_of):
    matched = match_with_answers(rounds_of([(2,), (3,)]), [8, 6, 9], lookahead=LOOKAHEAD)
    assert matched.per_prompt() == [2.0, None, 3.0]
    assert "prompt 2: no round (0 tokens, 0 rounds)" in matched_lines(matched)


def test_fewer_prompts_than_answers_are_told(rounds_of):
    matched = match_with_answers(rounds_of(BY_HAND), [*LENGTHS, 30], lookahead=LOOKAHEAD)
    assert matched_lines(matched, num_answers=4).endswith("data set: 2.60 (26 tokens, 10 rounds, 3 of 4 prompts)")


def test_answers_that_fill_no_batch_are_never_decoded(rounds_in):
    rounds = rounds_in("[3, 4]\n")
    assert match_with_answers(rounds, [9, 9, 9], lookahead=LOOKAHEAD).prompts == ((3,), (4,))
    with pytest.raises(UserError, match="round 2 begins a prompt behind the last that is decoded of 3 answers"):
        match_with_answers(rounds_in("[3, 4]\n[3, 3]\n"), [9, 9, 9], lookahead=LOOKAHEAD)


@pytest.mark.parametrize(
    ("prompts", "lengths", "message"),
    [
        ([*BY_HAND, (2,)], LENGTHS, "11: round 11 begins a prompt behind the last that is decoded of 3 answers"),
        (BY_HAND[:2], [16, 20], "7: round 7 is the last, but prompt 2, begun at line 5, goes on until 14 tokens"),
        ([(3, 6, 2)], [16], r"2: round 2 goes from \[3\] to \[9\], but a round matches 1 to lookahead \+ 1 = 5 tokens"),
        ([(6,)], [12], r"1: round 1 goes from \[0\] to \[6\]"),
        (BY_HAND, [17, 14, 13], "5: round 5 begins a prompt, but prompt 1, begun at line 1, goes on until 11 tokens"),
        ([(1,), (1, 1)], [8], "2: round 2 begins a prompt, but prompt 1, begun at line 1, goes on until 2 tokens"),
    ],
)
def test_rounds_of_other_answers_are_refused_by_line(rounds_of, prompts, lengths, message):
    with pytest.raises(UserError, match=rf"rounds\.txt:{message}"):
        match_with_answers(rounds_of(prompts), lengths, lookahead=LOOKAHEAD)


def test_rows_of_a_batch_have_answers_of_one_length(rounds_in):
    with pytest.raises(
        UserError, match=r"rounds\.txt:1: round 1 begins a batch of 2 prompts, .* have \[9, 10\] tokens"
    ):
        match_with_answers(rounds_in("[3, 4]\n"), [9, 10], lookahead=LOOKAHEAD)


def test_a_round_beyond_the_lookahead_is_refused_without_answers_too(rounds_of):
    with pytest.raises(UserError, match=r"rounds\.txt:7: round 7 goes from \[4\] to \[9\]"):
        match_by_totals(rounds_of(BY_HAND), lookahead=3)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[3]\n[5\n[9]\n", 2, "round 2 has brackets that are not balanced"),
        ("[3]\nprompt 2\n[5]\n", 2, "round 2 has another form: 'prompt 2'"),
        ("tensor([[3]])", 1, "round 1 has another form: 'tensor([[3]])'"),
        ("tensor([3]\n[4]", 1, "round 1 has brackets that are not balanced"),
        ("[3])", 1, "round 2 has brackets that are not balanced"),
        ("[3]\n\n[]\n", 3, "round 2 is empty"),
        ("[3]\n[4.5]\n", 2, "round 2 holds '4.5', which is no whole number >= 0"),
        ("[3]\n[4, 5]\n", 2, "round 2 has 2 rows, but the first has 1"),
        ("[0]\n", 1, "round 1 goes from [0] to [0], but a round matches 1 or more tokens"),
    ],
)
def test_mistakes_name_file_line_and_round(tmp_path, rounds_in, text, line, message):
    with pytest.raises(UserError) as caught:
        match_by_totals(rounds_in(text))
    assert str(caught.value).startswith(f"{tmp_path / 'rounds.txt'}:{line}: {message}")


def test_the_table_has_a_line_a_prompt(rounds_of):
    assert matched_lines(match_with_answers(rounds_of(BY_HAND), LENGTHS, lookahead=LOOKAHEAD)).splitlines() == [
        "matched tokens a round, the target's own included",
        "prompt 1: 2.50 (10 tokens, 4 rounds)",
        "prompt 2: 3.00 (9 tokens, 3 rounds)",
        "prompt 3: 2.33 (7 tokens, 3 rounds)",
        "data set: 2.60 (26 tokens, 10 rounds, 3 prompts)",
    ]
