"""Exactly as many ids as asked for, the right ones; and every list that is none is refused with the reason."""

import json
from collections import Counter
from itertools import combinations, pairwise

import pytest

from architectures.shapes import NAMED_SHAPES
from architectures.vocabulary import (
    DraftVocabulary,
    Tokens,
    VocabularyConfig,
    coverage,
    ids_by_count,
    list_file,
    read_list,
    requested_size,
    require_fitting,
    with_requested_head,
    write_draft_vocabulary,
)
from tests.rejections import rejects

TOKENS = Tokens(
    ids=frozenset(range(20)), special=frozenset({0, 1}), single_bytes=frozenset({5, 6}), ends=frozenset({1})
)


@pytest.mark.parametrize("size", range(4, 21))
def test_exactly_as_many_ids_as_asked_for_with_all_that_are_always_kept(size):
    ids = ids_by_count({9: 5, 3: 7, 0: 1, 25: 99, 11: 5}, TOKENS, size)
    assert len(ids) == len(set(ids)) == size
    assert list(ids) == sorted(ids)
    assert TOKENS.always <= set(ids) <= TOKENS.ids  # 25 is padding, however often it was said


def test_the_most_frequent_come_first_then_the_lowest_unsaid():
    counts = {9: 5, 3: 7, 11: 5, 4: 0}
    order = [set(ids_by_count(counts, TOKENS, size)) for size in range(4, 11)]
    added = [min(after - before) for before, after in pairwise(order)]
    assert added == [3, 9, 11, 2, 4, 7]


def test_more_ids_cover_more_and_none_covers_as_much_as_the_most_frequent():
    counts = Counter({number: (number * 7) % 13 for number in range(20)})
    shares = [coverage(ids_by_count(counts, TOKENS, size), counts) for size in range(4, 21)]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    others = ({*TOKENS.always, *more} for more in combinations(sorted(TOKENS.ids - TOKENS.always), 3))
    assert coverage(ids_by_count(counts, TOKENS, 7), counts) == max(coverage(ids, counts) for ids in others)


@pytest.mark.parametrize(("size", "bound"), [(3, 4), (21, 20)])
def test_a_size_that_cannot_be_had_is_refused(size, bound):
    with rejects("architecture.vocabulary.size", bound, size):
        ids_by_count({}, TOKENS, size)


@pytest.mark.parametrize("size", [32000, 40000])
def test_a_size_that_is_no_cut_is_refused(size):
    with rejects("architecture.vocabulary.size", 32000, size):
        requested_size(VocabularyConfig(size=size), 32000)
    assert requested_size(VocabularyConfig(size=31999), 32000) == 31999


def test_the_draft_has_a_head_of_its_own():
    tied = NAMED_SHAPES["wide-829m"].shape
    draft = with_requested_head(tied, VocabularyConfig(size=4096))
    assert (draft.head_vocab, draft.tied, draft.vocab) == (4096, False, tied.vocab)
    assert draft.parameters() == tied.parameters() + 4096 * tied.hidden
    assert with_requested_head(tied, None) == tied
    assert with_requested_head(draft, VocabularyConfig(size=4096)) == draft
    with rejects(2048, 4096):
        with_requested_head(draft, VocabularyConfig(size=2048))


@pytest.fixture
def write(tmp_path):
    """write(value) -> the path of a JSON file with it."""

    def path_of(value) -> str:
        (tmp_path / "ids.json").write_text(value if isinstance(value, str) else json.dumps(value))
        return str(tmp_path / "ids.json")

    return path_of


def test_a_list_is_taken_as_it_is_from_its_beginning(write):
    path = write([9, 1, 3, 0])
    assert read_list(path, None) == (9, 1, 3, 0)
    assert read_list(path, 2) == (9, 1)
    assert requested_size(VocabularyConfig.model_validate({"from": path}), 20) == 4
    assert requested_size(VocabularyConfig.model_validate({"from": path, "size": 3}), 20) == 3
    require_fitting((9, 1), TOKENS, list_file(path), list_file(path))  # neither bytes nor special tokens need be there


@pytest.mark.parametrize("named", ["folder", "file"])
def test_the_ids_of_a_draft_are_taken_whole(tmp_path, named):
    write_draft_vocabulary(DraftVocabulary(ids=(1, 4, 9), vocab_size=20), tmp_path)
    path = str(tmp_path if named == "folder" else tmp_path / "draft_vocabulary.json")
    assert read_list(path, None) == read_list(path, 3) == (1, 4, 9)
    assert list_file(path) == tmp_path / "draft_vocabulary.json"
    with rejects("architecture.vocabulary.size"):
        read_list(path, 2)


NO_LISTS = {
    "empty": [],
    "negative": [1, -3],
    "twice": [1, 4, 4, 9, 9],
    "a fraction": [1, 2.5],
    "text": ["1"],
    "true": [True],
    "no JSON": "1, 2",
    "another object": {"ids": [1]},
    "ids of a draft that do not ascend": {"ids": [3, 1], "vocab_size": 9},
}


@pytest.mark.parametrize("case", NO_LISTS)
def test_what_is_no_list_of_ids_is_refused(write, case):
    path = write(NO_LISTS[case])
    with rejects(path):
        read_list(path, None)


def test_fewer_ids_than_asked_for_no_file_and_a_folder_of_something_else_are_refused(write, tmp_path):
    for origin in (write([1, 2]), "anwsers", str(tmp_path)):
        with rejects(origin, "architecture.vocabulary"):
            read_list(origin, 3)


@pytest.mark.parametrize(("ids", "named"), [((1, 20, 30), [20, 30]), ((0, 2), [1])])
def test_a_list_that_does_not_fit_the_target_is_refused(tmp_path, ids, named):
    with rejects(named):
        require_fitting(ids, TOKENS, tmp_path / "ids.json", tmp_path / "target")
