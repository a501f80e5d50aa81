"""Text of a domain: packed, held out at its head, read again from any place, refused by name, hostile or not."""

import gzip
import json
import os
from itertools import chain
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from architectures.pruning.importance import read_calibration_text
from distill.recipe.sections import TextConfig, TextDomain
from distill.text_data import DomainStream, PackedText, held_out_sequences, open_texts
from eval.models import load_tokenizer
from tests.rejections import rejects

T = 8  # tokens of a sequence
EOS = 2  # of the tiny tokenizer, whose other tokens are single bytes


def write_rows(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts), encoding="utf-8")
    return path


def packed(tokenizer, path: Path, **domain) -> PackedText:
    return PackedText(TextDomain(name="d", path=str(path), **domain), tokenizer, max_seq_len=T)


def numbered(count: int) -> list[str]:
    """Texts of seven characters, each with its end token exactly one sequence."""
    return [f"text{i:03d}" for i in range(count)]


@pytest.fixture
def stream(tokenizer, tmp_path):
    """stream(count) -> (the training stream of so many one-sequence texts after two held out, their texts)."""

    def make(count: int, *, seed: int = 3, block_size: int = 4) -> DomainStream:
        text = packed(tokenizer, write_rows(tmp_path / "d.jsonl", numbered(count)))
        held_out_sequences(text, count=2)
        return DomainStream(text, seed=seed, block_size=block_size)

    return make


def next_texts(stream: DomainStream, tokenizer, count: int) -> list[str]:
    return [tokenizer.decode(stream.next_sequence()[:-1]) for _ in range(count)]


def test_rows_follow_each_other_with_an_end_token_and_without_a_gap(tokenizer, tmp_path):
    path = write_rows(tmp_path / "d.jsonl", ["ab", "", "a longer text", "c"])
    sequences = packed(tokenizer, path).take(99)
    letters = tokenizer("aba longer textc")["input_ids"]
    whole = [*letters[:2], EOS, *letters[2:15], EOS, letters[15], EOS]
    assert len(whole) == 19
    assert sequences == [whole[:8], whole[8:16]]  # three tokens are left over


def test_a_plain_file_is_one_document_with_its_line_breaks(tokenizer, tmp_path):
    (tmp_path / "d.txt").write_text("one\n\ntwo\nthree four\n", encoding="utf-8")
    sequences = packed(tokenizer, tmp_path / "d.txt").take(99)
    assert tokenizer.decode(list(chain.from_iterable(sequences))) == "one\n\ntwo\nthree f"


def test_a_field_of_another_name_and_a_dataset_give_the_same(tokenizer, tmp_path):
    rows = packed(tokenizer, write_rows(tmp_path / "rows.jsonl", numbered(3))).take(9)
    assert (
        packed(tokenizer, write_rows(tmp_path / "q.jsonl", numbered(3), "question"), field="question").take(9) == rows
    )
    (tmp_path / "set").mkdir()
    write_rows(tmp_path / "set" / "train.jsonl", numbered(3))
    domain = TextDomain(name="d", dataset=str(tmp_path / "set"))
    assert PackedText(domain, tokenizer, max_seq_len=T).take(9) == rows


def test_taking_in_pieces_equals_taking_at_once(tokenizer, tmp_path):
    path = write_rows(tmp_path / "d.jsonl", ["word " * n for n in range(40)])
    whole, pieces = packed(tokenizer, path).take(999), packed(tokenizer, path)
    assert [*pieces.take(1), *pieces.take(0), *pieces.take(7), *pieces.take(999)] == whole
    assert len(whole) > 100
    assert pieces.take(1) == []


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_a_place_is_returned_to_exactly_also_by_a_new_reader(tokenizer, tmp_path, suffix):
    path = tmp_path / f"d.{suffix}"
    if suffix == "txt":
        path.write_text("".join(f"line {i}\n" for i in range(300)), encoding="utf-8")
    else:
        write_rows(path, [f"row {i}" for i in range(300)])
    text = packed(tokenizer, path)
    text.take(90)  # beyond the first call of the tokenizer
    place = text.position()
    after = text.take(50)
    text.go_to(place)
    assert text.take(50) == after
    other = packed(tokenizer, path)
    other.go_to(place)
    assert other.take(50) == after
    other.go_to(place)  # a second time: reading changes nothing in it
    assert other.take(50) == after


def test_held_out_are_the_first_sequences_and_never_trained_on(tokenizer, stream):
    trained = next_texts(stream(9), tokenizer, 3 * 7)
    assert set(trained) == set(numbered(9)[2:])


def test_each_epoch_holds_every_sequence_once_in_an_order_of_its_own(tokenizer, stream):
    one = stream(12, block_size=100)
    epochs = [next_texts(one, tokenizer, 10) for _ in range(3)]
    assert [sorted(texts) for texts in epochs] == [numbered(12)[2:]] * 3
    assert len({tuple(texts) for texts in [*epochs, numbered(12)[2:]]}) == 4
    assert one.epoch == 2


def test_blocks_stay_together(tokenizer, stream):
    texts = next_texts(stream(12, block_size=4), tokenizer, 10)
    assert [sorted(texts[i : i + 4]) for i in (0, 4, 8)] == [numbered(12)[i : i + 4] for i in (2, 6, 10)]


def test_each_block_has_an_order_of_its_own(tokenizer, stream):
    numbers = [int(text[4:]) - 2 for text in next_texts(stream(34, block_size=8), tokenizer, 32)]
    assert len({tuple(number % 8 for number in numbers[i : i + 8]) for i in (0, 8, 16, 24)}) == 4


@pytest.mark.parametrize("num_before", [0, 1, 4, 5, 9, 10, 23])
def test_a_stream_continues_where_its_state_was_taken(tokenizer, stream, num_before):
    one, other = stream(12), stream(12)
    next_texts(one, tokenizer, num_before)
    state = json.loads(json.dumps(one.state_dict()))  # plain values
    after = next_texts(one, tokenizer, 25)
    next_texts(other, tokenizer, 7)
    other.load_state_dict(state)
    assert next_texts(other, tokenizer, 25) == after


def test_a_text_that_is_too_short_is_refused_by_name(tokenizer, tmp_path):
    path = write_rows(tmp_path / "d.jsonl", numbered(5))
    assert len(held_out_sequences(packed(tokenizer, path), count=4)) == 4
    with rejects("d.jsonl", "text.domains d"):
        held_out_sequences(packed(tokenizer, path), count=5)


@pytest.mark.parametrize(
    "source", [{"path": "absent.txt"}, {"dataset": "absent"}, {"path": "d.jsonl", "field": "body"}]
)
def test_text_that_cannot_be_read_is_refused_by_name(tokenizer, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("d.jsonl"), ["a"])
    with rejects(next(iter(source.values()))):
        PackedText(TextDomain(name="d", **source), tokenizer, max_seq_len=T).take(1)


def test_a_row_far_down_is_refused_by_its_number(tokenizer, tmp_path):
    path = write_rows(tmp_path / "d.jsonl", numbered(100))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"text": null}\n')
    with rejects("d.jsonl", 101):
        packed(tokenizer, path).take(999)


def test_a_tokenizer_without_an_end_token_is_refused(tiny_target, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_target)
    tokenizer.eos_token = None
    config = TextConfig(domains=[{"name": "d", "path": "d.txt"}])
    with rejects("eos_token"):
        open_texts(config, tokenizer)


def read(path, tokenizer, **settings):
    """As a training begins to read a domain."""
    domain = TextDomain(name="a", path=str(path), **settings)
    [text] = open_texts(TextConfig(domains=(domain,), max_seq_len=8), tokenizer).values()
    return held_out_sequences(text, count=1)


FILES = {
    "nested 100,000 deep": ("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"),
    "numbers": ("a.jsonl", b'{"text": 5}\n'),
    "no objects": ("a.jsonl", b'[1]\n"a"\n'),
    "half of a row": ("a.jsonl", b'{"text": "a"}\n{"te'),
    "not UTF-8": ("a.jsonl", b'{"text": "\xff"}\n'),
    "plain text that is not UTF-8": ("a.txt", b"\xff\xfe\n" * 100),
    "nothing": ("a.txt", b""),
    "no rows": ("a.jsonl", b"\n\n"),
    "not gzip": ("a.jsonl.gz", b"abc"),
    "half of gzip": ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 1000)[:40]),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", FILES)
def test_a_hostile_text_is_refused(tmp_path, tiny_target, case):
    name, content = FILES[case]
    (tmp_path / name).write_bytes(content)
    with rejects(name):
        read(tmp_path / name, load_tokenizer(tiny_target))


@pytest.mark.timeout(30)
def test_a_pipe_is_no_text(tmp_path, tiny_target):
    os.mkfifo(tmp_path / "pipe.txt")
    with rejects("pipe.txt"):
        read(tmp_path / "pipe.txt", load_tokenizer(tiny_target))
    with rejects("pipe.txt"):
        next(read_calibration_text(tmp_path / "pipe.txt"))


def test_calibration_reads_a_line_without_end_in_pieces(tmp_path):
    with (tmp_path / "sparse.txt").open("wb") as file:
        file.truncate(8 << 30)
    assert len(next(read_calibration_text(tmp_path / "sparse.txt"))) < 1_000_000
    with rejects("x" * 5000):
        next(read_calibration_text(tmp_path / ("x" * 5000)))
