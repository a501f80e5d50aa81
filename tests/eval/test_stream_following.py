"""A file that is followed while it is written."""

import pytest

from eval.stream import POLL_S, StreamConfig, open_stream
from eval.tasks import PromptSource
from tests.rejections import rejects


@pytest.fixture
def follow(tmp_path):
    """follow(pieces, ...) -> (slept seconds, stream): the next piece is written, or called, at each sleep."""

    def followed(*pieces, num_prompts=None, start=0):
        path, slept, pieces = tmp_path / "log.jsonl", [], list(pieces)
        path.write_bytes(pieces.pop(0))

        def sleep(seconds):
            slept.append(seconds)
            piece = pieces.pop(0)
            if callable(piece):
                piece(path)
            else:
                with path.open("ab") as file:
                    file.write(piece)

        config = StreamConfig(sources=(PromptSource(path=str(path), num_prompts=num_prompts),), follow=True)
        return slept, open_stream(config, seed=1, start=start, sleep=sleep)

    return followed


def row(text):
    return f'{{"prompt": "{text}"}}\n'.encode()


def asked(stream):
    return [request.prompt.messages[0]["content"] for request in stream]


def test_lines_that_are_written_later_are_requests_too(follow):
    slept, stream = follow(row("a"), row("b") + row("c"), b"", row("d"), num_prompts=4)
    assert asked(stream) == ["a", "b", "c", "d"]
    assert slept == [POLL_S] * 3


def test_a_line_is_read_once_it_is_whole_even_within_a_character(follow):
    line = row("\u00e9t\u00e9")
    _, stream = follow(b"\xef\xbb\xbf" + line[:13], b"", line[13:20], line[20:], num_prompts=1)
    assert asked(stream) == ["\u00e9t\u00e9"]


def test_it_continues_where_it_was(follow):
    _, stream = follow(row("a") + row("b"), row("c"), num_prompts=3, start=2)
    assert [(request.number, request.prompt.source[-2:]) for request in stream] == [(2, ":3")]


def replace_file(path):
    other = path.with_suffix(".other")
    other.write_bytes(row("a") + row("b"))
    other.replace(path)


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b""), replace_file])
def test_a_file_that_is_truncated_or_replaced_is_rejected(follow, change):
    _, stream = follow(row("a"), b"", change)
    with rejects("log.jsonl"):
        asked(stream)
