"""Answers as text of tensors: written as torch does, read as torch and people write them, and what is refused."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from architectures.errors import UserError
from eval.recorded.ground_truth import block_text, read_ground_truth, write_ground_truth


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "truth.txt"

    def write(text):
        path.write_text(text, encoding="utf-8")
        return path

    return write


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=st.lists(st.lists(st.integers(0, 151935), min_size=1, max_size=60).map(tuple), min_size=1, max_size=5))
def test_what_is_written_is_read_back(tmp_path, answers):
    write_ground_truth(answers, tmp_path / "truth.txt")
    assert read_ground_truth(tmp_path / "truth.txt") == answers


def test_more_tokens_than_torch_prints_are_written_whole(tmp_path):
    write_ground_truth([range(5000)], tmp_path / "truth.txt")
    assert read_ground_truth(tmp_path / "truth.txt") == [tuple(range(5000))]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 10, 11, 12, 13, 24, 25, 1000])
@pytest.mark.parametrize("largest", [9, 99, 31999, 151935])
def test_a_block_is_what_torch_prints(length, largest):
    answer = [i % largest for i in range(length - 1)] + [largest]
    assert block_text(answer) == str(torch.tensor([answer]))


def test_the_published_example_is_read(text_file):
    """The two blocks in the format's own description, with torch's padding and line breaks."""
    path = text_file(
        "tensor([[  518, 799, 596, 18873,  1265,   322,  1510,   372,  1283,   304,   596,\n"
        "          7875, 29991, 2]])\n"
        "tensor([[  518, 10568, 29962,  1522,  2924, 29889,   518, 10568, 29962,  1522,\n"
        "          1176,   681, 29889,   518, 10568, 29962,  1522,   752,   465,   291]])\n"
    )
    first, second = read_ground_truth(path)
    assert first == (518, 799, 596, 18873, 1265, 322, 1510, 372, 1283, 304, 596, 7875, 29991, 2)
    assert (len(second), second[0], second[-1]) == (20, 518, 291)


def test_a_device_and_a_number_type_are_passed_over(text_file):
    path = text_file("tensor([[1, 2]], device='cuda:0')\ntensor([[3]], device='cuda:0',\n       dtype=torch.int32)\n")
    assert read_ground_truth(path) == [(1, 2), (3,)]


def test_blocks_may_share_a_line_or_leave_some_empty(text_file):
    assert read_ground_truth(text_file("\n tensor([[1]]) tensor([[2]])\n\n\ntensor([[0]])")) == [(1,), (2,), (0,)]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            "tensor([[1, 2]]\ntensor([[3]])\n",
            1,
            "block 1 has brackets that are not balanced (2 '[', 2 ']', 1 '(', 0 ')')",
        ),
        (
            "tensor([[3]])\n\ntensor([[1, 2])\n",
            3,
            "block 2 has brackets that are not balanced (2 '[', 1 ']', 1 '(', 1 ')')",
        ),
        ("tensor([[1]])\ntensor([[1,\n 2.5]])\n", 3, "block 2 holds '2.5', which is no whole number >= 0"),
        ("tensor([[1,\n\n  two, 3]])\n", 3, "block 1 holds 'two', which is no whole number >= 0"),
        ("tensor([[1, -100]])", 1, "block 1 holds '-100', which is no whole number >= 0"),
        ("tensor([[1, 2\n 3]])", 1, "block 1 holds '2 3', which is no whole number >= 0"),
        ("tensor([[1, 2,]])", 1, "block 1 holds '', which is no whole number >= 0"),
        ("tensor([[1]])\ntensor([[1, 2,  ..., 8, 9]])", 2, "block 2 is elided ('...')"),
        ("tensor([[1]])\ntensor([[ ]])", 2, "block 2 is empty"),
        ("tensor([[1,\n 2,\n 3]])\ntensor([[]])", 4, "block 2 is empty"),
        ("tensor([[1, 2], [3, 4]])", 1, "block 1 has another form: 'tensor([[1, 2], [3, 4]])'"),
        ("tensor([1, 2])", 1, "block 1 has another form: 'tensor([1, 2])'"),
        ("tensor([[1]])\nloading weights\ntensor([[2]])", 2, "block 2 has another form: 'loading weights'"),
        ("tensor([[1]])\n]", 2, "block 2 has brackets that are not balanced"),
        ("tensor([[1]])\ntensor([[1, 2,", 2, "block 2 is cut short: the file ends within it. Take the whole file"),
        ("tensor([[1]])\n\ntensor([[1,\n  2]\n", 3, "block 2 is cut short: the file ends within it"),
        ("tensor([[1]])\ntensor([[1, 2]], device='cu", 2, "block 2 is cut short: the file ends within it"),
        ("tensor([[1, 2]])\ntensor([[5,\n 7,\n 8]])", 4, "block 2 holds 8, but the draft's vocab_size is 8"),
    ],
)
def test_mistakes_name_file_line_and_block(text_file, text, line, message):
    path = text_file(text)
    with pytest.raises(UserError) as caught:
        read_ground_truth(path, vocab_size=8)
    assert str(caught.value).startswith(f"{path}:{line}: {message}")


def test_the_last_id_of_a_vocabulary_is_in_it(text_file):
    assert read_ground_truth(text_file("tensor([[7]])"), vocab_size=8) == [(7,)]


def test_an_elided_tensor_is_told_how_to_print_whole(text_file):
    with pytest.raises(UserError, match=r"torch\.set_printoptions\(threshold=10\*\*9\)"):
        read_ground_truth(text_file(str(torch.arange(2000)[None])))


def test_files_without_a_block_or_that_are_no_text_are_refused(tmp_path, text_file):
    for text in ("", " \n\n"):
        with pytest.raises(UserError, match="holds no block"):
            read_ground_truth(text_file(text))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read_ground_truth(tmp_path / "binary")
    with pytest.raises(UserError, match="cannot be read"):
        read_ground_truth(tmp_path / "none")
