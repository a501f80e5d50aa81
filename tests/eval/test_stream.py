"""Streams of requests: their order, where they go on, whose curve each is of, and rows that are none."""

import json
from collections import Counter

import pytest
from pydantic import ValidationError

from eval.stream import POLL_S, StreamConfig, open_stream, smooth_probabilities
from eval.tasks import PromptSource
from tests.rejections import rejects


def asked(request):
    return request.prompt.messages[0]["content"]


@pytest.fixture
def write(tmp_path):
    """Writes rows, or lines as they are, and returns the source of them."""

    def written(name, rows, **settings):
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return PromptSource(path=str(path), **settings)

    return written


def questions(letter, count, **fields):
    return [{"question": f"{letter}{number}", **fields} for number in range(count)]


@pytest.fixture
def three(write):
    return [write(f"{letter}.jsonl", questions(letter, 30)) for letter in "abc"]


def texts(config, seed=1, start=0):
    return [asked(request) for request in open_stream(config, seed=seed, start=start)]


def test_requests_come_in_order_numbered_and_labelled_by_task_or_file(write):
    config = StreamConfig(
        sources=(write("few.jsonl", questions("a", 2)), write("math.jsonl", questions("b", 1), task="gsm8k"))
    )
    found = [(request.number, asked(request), request.source) for request in open_stream(config, seed=1)]
    assert found == [(0, "a0", "few"), (1, "a1", "few"), (2, "b0", "gsm8k")]


def test_a_sharp_mix_takes_as_many_of_each_as_the_smallest_has(write, three):
    config = StreamConfig(sources=(three[0], write("few.jsonl", questions("d", 2))), mix="sharp")
    assert texts(config) == ["a0", "a1", "d0", "d1"]


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_chances_of_a_smooth_mix_are_those_of_the_paper(progress):
    assert smooth_probabilities(progress, 2) == pytest.approx([1 - progress, progress])
    three = [0.7 * progress + 0.1, 0.8 - 0.7 * progress, 0.1]
    assert smooth_probabilities(progress, 3) == pytest.approx(three)
    assert smooth_probabilities(progress, 5) == pytest.approx([*three[:2], 0.1 / 3, 0.1 / 3, 0.1 / 3])


def test_a_smooth_mix_gives_way_from_the_first_set_to_the_second(write):
    sources = tuple(write(f"{letter}.jsonl", questions(letter, 400)) for letter in "ab")
    labels = [r.source for r in open_stream(StreamConfig(sources=sources, mix="smooth"), seed=3)]
    quarters = [Counter(labels[start : start + 200])["a"] for start in range(0, 800, 200)]
    expected = [175, 125, 75, 25]
    assert all(abs(found - due) < 21 for found, due in zip(quarters, expected, strict=True)), quarters  # 3 sd


def test_a_smooth_mix_takes_each_set_in_its_own_order_and_all_rows_where_no_number_is_given(three):
    found = texts(StreamConfig(sources=three, mix="smooth"))
    assert [text for text in found if text[0] == "b"] == [f"b{number}" for number in range(30)]
    assert len(found) == 90


@pytest.mark.parametrize("mix", ["in_order", "sharp", "smooth"])
@pytest.mark.parametrize("start", [0, 1, 17, 89, 90])
def test_a_stream_goes_on_with_the_requests_of_an_uninterrupted_one(three, mix, start):
    config = StreamConfig(sources=three, mix=mix)
    whole = list(open_stream(config, seed=7))
    assert len(whole) == 90
    assert list(open_stream(config, seed=7, start=start)) == whole[start:]


@pytest.mark.parametrize("rows", [[], [""]])
def test_a_source_without_a_prompt_is_refused(write, rows):
    with rejects("none.jsonl:"):
        texts(StreamConfig(sources=(write("none.jsonl", rows),)))


def test_a_data_set_that_is_streamed_is_read_as_far_as_the_stream_goes(monkeypatch):
    import datasets

    wanted = []

    def endless(*_, **settings):
        wanted.append(settings["streaming"])
        number = 0
        while True:
            yield {"text": f"page {number}"}
            number += 1

    monkeypatch.setattr(datasets, "load_dataset", endless)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    for source in (PromptSource(task="c4"), PromptSource(task="c4", name="my/c4")):
        few = source.model_copy(update={"num_prompts": 3})
        stream = open_stream(StreamConfig(sources=(few,)), seed=1)
        assert [asked(request) for request in stream] == ["page 0", "page 1", "page 2"]
    assert wanted == [True, True]
    with rejects("num_prompts"):
        next(open_stream(StreamConfig(sources=(PromptSource(task="c4"),)), seed=1))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sources": []}, "sources 1"),
        ({"mix": "sharp"}, "mix in_order sharp"),
        ({"follow": True, "sources": ["a.jsonl", "b.jsonl"]}, "follow sources"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, named):
    paths = settings.get("sources", ["a.jsonl"])
    with rejects(*named.split(), error=ValidationError):
        StreamConfig(**settings | {"sources": [PromptSource(path=path) for path in paths]})
    with rejects("follow", "sources", error=ValidationError):
        StreamConfig(sources=(PromptSource(task="gsm8k"),), follow=True)


def test_a_malformed_row_stops_the_stream(write):
    source = write("p.jsonl", [{"prompt": "a"}, "{", {"prompt": "b"}])
    stream = open_stream(StreamConfig(sources=(source,)), seed=1)
    assert asked(next(stream)) == "a"
    with rejects("p.jsonl:2:"):
        next(stream)


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


def texts_of(stream):
    return [request.prompt.messages[0]["content"] for request in stream]


def test_lines_that_are_written_later_are_requests_too(follow):
    slept, stream = follow(row("a"), row("b") + row("c"), b"", row("d"), num_prompts=4)
    assert texts_of(stream) == ["a", "b", "c", "d"]
    assert slept == [POLL_S] * 3


def test_a_line_is_read_once_it_is_whole_even_within_a_character(follow):
    line = row("\u00e9t\u00e9")
    _, stream = follow(b"\xef\xbb\xbf" + line[:13], b"", line[13:20], line[20:], num_prompts=1)
    assert texts_of(stream) == ["\u00e9t\u00e9"]


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
        texts_of(stream)
