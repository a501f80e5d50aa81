"""A file that is followed while it is written, on a clock of the test's own."""

import pytest

from architectures.errors import UserError
from eval.stream import POLL_S, StreamConfig, Waiting, open_stream
from eval.tasks import PromptSource


class Writer:
    """Writes the next piece each time somebody waits; its clock moves with the waiting alone."""

    def __init__(self, path, pieces):
        self.path, self.pieces, self.now_s = path, list(pieces), 0.0
        path.write_bytes(self.pieces.pop(0))

    def sleep(self, seconds):
        self.now_s += seconds
        if self.pieces:
            piece = self.pieces.pop(0)
            if callable(piece):
                piece(self.path)
            else:
                with self.path.open("ab") as file:
                    file.write(piece)

    def waiting(self, idle_s):
        return Waiting(idle_s, self.sleep, lambda: self.now_s)


@pytest.fixture
def follow(tmp_path):
    def followed(*pieces, idle_s=2.5 * POLL_S, start=0, **settings):
        path = tmp_path / "log.jsonl"
        writer = Writer(path, pieces)
        config = StreamConfig(sources=(PromptSource(path=str(path)),), follow=True, idle_s=idle_s, **settings)
        stream = open_stream(config, seed=1, start=start, waiting=writer.waiting(idle_s))
        return writer, stream

    return followed


def row(text):
    return f'{{"prompt": "{text}"}}\n'.encode()


def asked(stream):
    return [request.prompt.messages[0]["content"] for request in stream]


def test_lines_that_are_written_later_are_requests_too(follow):
    writer, stream = follow(row("a"), row("b") + row("c"), b"", row("d"))
    assert asked(stream) == ["a", "b", "c", "d"]
    assert writer.now_s == pytest.approx(3 * POLL_S + 3 * POLL_S)


def test_a_line_is_read_once_it_is_whole_even_within_a_character(follow):
    line = row("\u00e9t\u00e9")
    _, stream = follow(b"\xef\xbb\xbf" + line[:13], b"", line[13:20], line[20:])
    assert asked(stream) == ["\u00e9t\u00e9"]


def test_a_line_without_its_end_is_left_out_and_told(follow, capsys):
    _, stream = follow(row("a") + row("b")[:-1])
    assert asked(stream) == ["a"]
    assert "log.jsonl" in capsys.readouterr().err


def test_a_number_of_requests_ends_it_without_waiting(follow):
    writer, stream = follow(row("a") + row("b"), num_requests=2, idle_s=None)
    assert asked(stream) == ["a", "b"]
    assert writer.now_s == 0


def test_it_goes_on_where_it_was(follow):
    _, stream = follow(row("a") + row("b"), row("c"), start=2)
    assert [(request.number, request.prompt.source[-2:]) for request in stream] == [(2, ":3")]


def test_a_malformed_line_is_named_or_skipped(follow, tmp_path, capsys):
    _, stream = follow(row("a") + b"\n{\n", row("b"))
    with pytest.raises(UserError, match=r"log\.jsonl:3: is not valid JSON"):
        asked(stream)
    _, stream = follow(row("a") + b'\n{\n{"prompt": "\xff"}\n', row("b"), malformed="skip")
    assert asked(stream) == ["a", "b"]
    assert f"{tmp_path / 'log.jsonl'}:3" in capsys.readouterr().err


def replace_file(path):
    other = path.with_suffix(".other")
    other.write_bytes(row("a") + row("b"))
    other.replace(path)


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b""), replace_file])
def test_a_file_that_is_cut_or_replaced_is_refused(follow, change):
    _, stream = follow(row("a"), b"", change)
    with pytest.raises(UserError, match=r"log\.jsonl"):
        asked(stream)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    config = StreamConfig(sources=(PromptSource(path=str(tmp_path / "none.jsonl")),), follow=True)
    with pytest.raises(UserError, match=r"none\.jsonl"):
        next(open_stream(config, seed=1))
