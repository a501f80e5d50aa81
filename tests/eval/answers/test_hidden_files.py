"""A file of hidden states: written as answers end, read by anyone, and refused by name where it is damaged."""

import io

import pytest
import torch
from safetensors.torch import load_file, save_file

from architectures.errors import UserError
from eval.answers.hidden_files import HiddenFile, new_hidden_file, read_states, require_states
from eval.answers.shards import hidden_path

STATES = {3: torch.arange(8.0).view(2, 4), 1: -torch.arange(20.0).view(5, 4), 10**9: torch.ones(1, 4)}
LENGTHS = {name: len(hidden_AH) for name, hidden_AH in STATES.items()}
AGAIN = (
    "`widedraft generate RECIPE` answers its shard again; or set distill.teacher.captured_while to reading, and the "
    "target reads the answers once more."
)


@pytest.fixture
def shard(tmp_path):
    """A shard with its states beside it."""
    path = tmp_path / "train-00000.jsonl"
    path.write_text("the answers\n")
    write(path)
    return path


def write(path, states=STATES, most_answers=3):
    with new_hidden_file(path, most_answers=most_answers) as file:
        for name, hidden_AH in states.items():
            file.add(name, hidden_AH)
        file.finish(path.read_bytes())


def message(step) -> str:
    with pytest.raises(UserError) as raised:
        step()
    return str(raised.value)


def check(shard, dtype="float32", width=4, lengths=None):
    require_states(shard, lengths or LENGTHS, width=width, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_was_added_is_read_back_and_by_safetensors_itself(shard, dtype):
    states = {name: hidden_AH.to(getattr(torch, dtype)) for name, hidden_AH in STATES.items()}
    write(shard, states)
    assert hidden_path(shard).name == "train-00000.hidden.safetensors"
    found = load_file(hidden_path(shard))
    assert found.keys() == {str(name) for name in states}
    check(shard, dtype)
    for name, hidden_AH in states.items():
        assert torch.equal(found[str(name)], hidden_AH)
        assert found[str(name)].dtype == hidden_AH.dtype
        assert torch.equal(read_states(shard, name, LENGTHS[name]), hidden_AH)


def test_the_first_tokens_alone_may_be_asked_for(shard):
    assert torch.equal(read_states(shard, 1, 3), STATES[1][:3])


def test_states_go_to_the_file_when_they_are_added():
    file = io.BytesIO()
    states = HiddenFile(file, most_answers=2)
    before = len(file.getvalue())
    states.add(0, STATES[1])
    assert len(file.getvalue()) - before == STATES[1].nbytes


def test_the_longest_entries_fit_the_room_of_a_header():
    file = HiddenFile(io.BytesIO(), most_answers=1000)
    file.num_bytes = 10**14
    for name in range(1000):
        file.add(10**9 + name, torch.ones(99_999, 1)[:, :0].expand(99_999, 0))
        file.entries[str(10**9 + name)]["shape"][1] = 99_999
    file.finish(b"")


def test_nothing_is_there_where_it_could_not_be_finished(tmp_path):
    path = tmp_path / "train-00000.jsonl"
    with pytest.raises(AttributeError):
        write(path, {**STATES, 4: None})
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_missing(shard):
    hidden_path(shard).unlink()
    expected = f"{hidden_path(shard)}: not there. {AGAIN}"
    assert message(lambda: check(shard)) == message(lambda: read_states(shard, 1, 1)) == expected


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_file_that_is_cut_short(shard, length):
    hidden_path(shard).write_bytes(hidden_path(shard).read_bytes()[:length])
    for said in (message(lambda: check(shard)), message(lambda: read_states(shard, 1, 1))):
        assert said.startswith(f"{hidden_path(shard)}: damaged (")
        assert said.endswith(f"). Delete it: {AGAIN}")


def test_a_file_of_other_answers(shard):
    shard.write_text("other answers\n")
    expected = f"{hidden_path(shard)}: belongs to other answers than those in train-00000.jsonl. Delete both: {AGAIN}"
    assert message(lambda: check(shard)) == expected


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"dtype": "bfloat16"}, "F32 [2, 4] of answer 3, where BF16 [2, 4] belongs"),
        ({"width": 8}, "F32 [2, 4] of answer 3, where F32 [2, 8] belongs"),
        ({"lengths": {1: 6}}, "F32 [5, 4] of answer 1, where F32 [6, 4] belongs"),
    ],
)
def test_a_file_of_another_model(shard, asked, found):
    assert message(lambda: check(shard, **asked)) == f"{hidden_path(shard)}: holds {found}. Delete it: {AGAIN}"


def test_an_answer_that_is_not_in_it(shard):
    assert "damaged (" in message(lambda: check(shard, lengths={7: 1}))


@pytest.mark.parametrize("metadata", [None, {"format": "widedraft.hidden_states/9"}])
def test_a_file_of_another_format(shard, metadata):
    save_file({str(name): hidden_AH for name, hidden_AH in STATES.items()}, hidden_path(shard), metadata=metadata)
    said = message(lambda: check(shard))
    name = None if metadata is None else metadata["format"]
    assert said == (
        f"{hidden_path(shard)}: its format is {name!r}, this version reads 'widedraft.hidden_states/1'. "
        f"Delete it: {AGAIN}"
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_states_that_are_no_numbers(shard, value):
    states = {**STATES, 1: STATES[1].clone()}
    states[1][2, 1] = value
    write(shard, states)
    check(shard)  # which reads none
    assert torch.equal(read_states(shard, 1, 2), STATES[1][:2])
    expected = f"{hidden_path(shard)}: the states of answer 1 are not all numbers. Delete it: {AGAIN}"
    assert message(lambda: read_states(shard, 1, 3)) == expected
