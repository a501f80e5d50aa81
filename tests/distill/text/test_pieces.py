"""Pieces of a text: found by their number, each read by one process, and the same sequences for any number of them."""

import gzip
import json
import random
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import distill.text.pieces
from architectures.errors import UserError
from distill.recipe.sections.text import TextDomain
from distill.text.pieces import FilePieces, LanePieces, open_pieces
from distill.text.sequences import DomainStream, PackedText, held_out_sequences
from distill.text.sharing import Share
from tests.distill.text.shares import by_all

T = 8  # tokens of a sequence


@pytest.fixture(scope="module")
def tokenizer(tiny_target):
    return AutoTokenizer.from_pretrained(tiny_target)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(distill.text.pieces, "PIECE_BYTES", 100)
    monkeypatch.setattr(distill.text.pieces, "ROWS_PER_PIECE", 3)
    monkeypatch.setattr(distill.text.pieces, "MOST_LANES", 4)


def texts(count: int) -> list[str]:
    """Of up to 40 letters, some none, and one longer than three pieces."""
    draw = random.Random(3)
    rows = ["".join(draw.choices("abcdefgh", k=draw.randrange(40))) for _ in range(count)]
    return [*rows[: count // 2], "x" * 330, *rows[count // 2 :]]


def jsonl(rows: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in rows)


@pytest.fixture
def domain(tmp_path):
    """domain(kind) -> rows.jsonl, rows.txt, rows.jsonl.gz, or a data set of seven files."""

    def make(kind: str, count: int = 60) -> TextDomain:
        rows = texts(count)
        if kind == "dataset":
            (tmp_path / "set").mkdir(exist_ok=True)
            for file in range(7):
                (tmp_path / "set" / f"train-{file}.jsonl").write_text(jsonl(rows[file::7]))
            return TextDomain(name="d", dataset=str(tmp_path / "set"))
        path = tmp_path / f"rows.{kind}"
        text = "\n".join(rows) if kind == "txt" else jsonl(rows)
        path.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
        return TextDomain(name="d", path=str(path))

    return make


KINDS = ("jsonl", "txt", "jsonl.gz", "dataset")


def every_piece(domain: TextDomain) -> list[str]:
    pieces, number, found, ended = open_pieces(domain), 0, [], 0
    while ended < max(1, pieces.lanes):
        read = pieces.read(number)
        number, ended = number + 1, ended + 1 if read is None else 0
        found += read or []
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_in_one_piece(domain, kind):
    found, wanted = every_piece(domain(kind)), texts(60)
    assert found == wanted if kind != "dataset" else Counter(found) == Counter(wanted)


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 100, 10_000])
@pytest.mark.parametrize("text", ["", "a", "a\n", "\n\n", "ab\r\ncd\r\n", "one\n\ntwo\nthree four\n", "é\nßß\nü"])
def test_lines_are_those_of_the_whole_file(tmp_path, monkeypatch, text, piece_bytes):
    monkeypatch.setattr(distill.text.pieces, "PIECE_BYTES", piece_bytes)
    path = tmp_path / "d.txt"
    path.write_bytes(text.encode())
    assert every_piece(TextDomain(name="d", path=str(path))) == text.splitlines()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 6])
def test_sequences_are_the_same_and_nobody_reads_all(domain, tokenizer, monkeypatch, kind, size):
    """Two, three and six processes; what each had to parse is counted."""
    source = domain(kind)
    whole = PackedText(source, tokenizer, max_seq_len=T).take(9999)
    assert len(whole) > 100
    read: dict[int, list[str]] = {}

    def parse(share: Share) -> list[list[int]]:
        text, mine = PackedText(source, tokenizer, max_seq_len=T, share=share), read.setdefault(share.rank, [])
        token_ids = text._token_ids
        text._token_ids = lambda rows: (mine.extend(rows), token_ids(rows))[1]
        return [*text.take(5), *text.take(9999)]

    for taken in by_all(size, parse):
        assert taken == whole
    counts = [len(rows) for rows in read.values()]
    assert Counter(chain(*read.values())) == Counter(texts(60))
    readers = min(size, 4) if kind == "dataset" else size  # of four lanes, a lane is one process's at least
    assert max(counts) <= 1.6 / readers * sum(counts), counts


def test_a_process_opens_only_its_own_part_of_a_file(domain, tokenizer, monkeypatch):
    """Bytes: lines that run across a border are read by both."""
    source = domain("jsonl", count=400)
    size = Path(source.path).stat().st_size
    taken: dict[int, set[int]] = {}
    lines = FilePieces._lines

    def noted(pieces, start):
        taken.setdefault(id(pieces), set()).add(start)
        return lines(pieces, start)

    monkeypatch.setattr(FilePieces, "_lines", noted)
    by_all(2, lambda share: len(PackedText(source, tokenizer, max_seq_len=T, share=share).take(9999)))
    first, second = taken.values()
    assert not first & second
    assert abs(100 * len(first) - size / 2) < 300 > abs(100 * len(second) - size / 2)


def test_lanes_that_others_read_are_not_begun(domain, tokenizer, monkeypatch):
    """Seven files in four lanes, two processes: each takes rows of two lanes."""
    lanes: dict[int, set[int]] = {}
    take = LanePieces._next

    def noted(pieces, lane):
        lanes.setdefault(id(pieces), set()).add(lane)
        return take(pieces, lane)

    monkeypatch.setattr(LanePieces, "_next", noted)
    source = domain("dataset")
    by_all(2, lambda share: len(PackedText(source, tokenizer, max_seq_len=T, share=share).take(9999)))
    assert sorted(map(sorted, lanes.values())) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_two_is_continued_by_one_and_by_three(domain, tokenizer, kind):
    """In the second epoch, the state as plain values."""
    source = domain(kind)

    def stream(share: Share | None = None) -> DomainStream:
        text = PackedText(source, tokenizer, max_seq_len=T, share=share)
        held_out_sequences(text, count=2)
        return DomainStream(text, seed=3, block_size=16)

    alone = stream()
    wanted = [alone.next_sequence() for _ in range(400)]
    assert alone.epoch > 0

    def begin(share: Share):
        of_two = stream(share)
        assert [of_two.next_sequence() for _ in range(330)] == wanted[:330]
        return of_two.state_dict()

    first, second = by_all(2, begin)
    assert first == second
    for size in (1, 3):

        def go_on(share: Share):
            other = stream(share)
            other.load_state_dict(json.loads(json.dumps(first)))
            return [other.next_sequence() for _ in range(70)]

        assert by_all(size, go_on) == [wanted[330:]] * size


def test_a_row_that_cannot_be_read_is_told_by_all(tokenizer, tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(jsonl(texts(60)) + '{"text": null}\n')

    def told(share: Share) -> str:
        with pytest.raises(UserError) as raised:
            PackedText(TextDomain(name="d", path=str(path)), tokenizer, max_seq_len=T, share=share).take(9999)
        return str(raised.value)

    [said] = set(by_all(3, told))
    assert said.startswith(f"{path}: row 62 has no text in field 'text'")


def test_the_next_block_is_read_while_the_one_before_is_used(domain, tokenizer):
    text = PackedText(domain("jsonl"), tokenizer, max_seq_len=T)
    held_out_sequences(text, count=2)
    stream = DomainStream(text, seed=3, block_size=16)
    begin, block_NT = stream.ahead.result()
    assert len(block_NT) == 16
    state = stream.state_dict()
    assert (state["piece"], state["piece_offset"]) != (begin.piece, begin.offset)  # a checkpoint begins with the former
