"""Streams of requests: their order, where they go on, whose curve each is of, and rows that are none."""

import json
from collections import Counter

import pytest
from pydantic import ValidationError

from architectures.errors import UserError
from eval.stream import StreamConfig, draw_index, equal_shares, open_stream, smooth_probabilities
from eval.tasks import PromptSource


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


def test_a_sharp_mix_has_equal_shares_one_set_after_another(three):
    config = StreamConfig(sources=three, mix="sharp", num_requests=8)
    assert texts(config) == ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1"]


def test_a_sharp_mix_without_a_number_takes_as_many_of_each_as_the_smallest_has(write, three):
    config = StreamConfig(sources=(three[0], write("few.jsonl", questions("d", 2))), mix="sharp")
    assert texts(config) == ["a0", "a1", "d0", "d1"]


def test_shares_add_up():
    assert equal_shares(8, 3) == [3, 3, 2]
    assert equal_shares(2, 3) == [1, 1, 0]


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_chances_of_a_smooth_mix_are_those_of_the_paper(progress):
    assert smooth_probabilities(progress, 1) == [1.0]
    assert smooth_probabilities(progress, 2) == pytest.approx([1 - progress, progress])
    three = [0.7 * progress + 0.1, 0.8 - 0.7 * progress, 0.1]
    assert smooth_probabilities(progress, 3) == pytest.approx(three)
    assert smooth_probabilities(progress, 5) == pytest.approx([*three[:2], 0.1 / 3, 0.1 / 3, 0.1 / 3])


def test_a_set_is_drawn_by_its_chance():
    assert [draw_index([3, 4, 5], [0.2, 0.0, 0.6], draw) for draw in (0.0, 0.24, 0.26, 0.99)] == [3, 3, 5, 5]
    assert [draw_index([3, 4], [0.0, 0.0], draw) for draw in (0.1, 0.6)] == [3, 4]


def test_a_smooth_mix_gives_way_from_the_first_set_to_the_second(write):
    sources = tuple(write(f"{letter}.jsonl", questions(letter, 400)) for letter in "ab")
    labels = [r.source for r in open_stream(StreamConfig(sources=sources, mix="smooth", num_requests=400), seed=3)]
    quarters = [Counter(labels[start : start + 100])["a"] for start in range(0, 400, 100)]
    expected = [87.5, 62.5, 37.5, 12.5]
    assert all(abs(found - due) < 15 for found, due in zip(quarters, expected, strict=True)), quarters  # 3 sd


def test_a_smooth_mix_takes_each_set_in_its_own_order_and_all_rows_where_no_number_is_given(three):
    found = texts(StreamConfig(sources=three, mix="smooth"))
    assert [text for text in found if text[0] == "b"] == [f"b{number}" for number in range(30)]
    assert len(found) == 90


def test_a_smooth_mix_is_that_of_its_seed(three):
    config = StreamConfig(sources=three, mix="smooth", num_requests=40)
    assert texts(config, seed=1) == texts(config, seed=1) != texts(config, seed=2)


def test_a_set_that_runs_out_leaves_its_chances_to_the_others(write, three, capsys):
    config = StreamConfig(sources=(write("few.jsonl", questions("d", 3)), three[0]), mix="smooth", num_requests=20)
    found = texts(config)
    assert len(found) == 20
    assert Counter(text[0] for text in found) == {"d": 3, "a": 17}
    assert "few" in capsys.readouterr().err


@pytest.mark.parametrize("mix", ["in_order", "sharp", "smooth"])
@pytest.mark.parametrize("start", [0, 1, 17, 39, 40])
def test_a_stream_goes_on_with_the_requests_of_an_uninterrupted_one(three, mix, start):
    config = StreamConfig(sources=three, mix=mix, num_requests=40)
    whole = list(open_stream(config, seed=7))
    assert len(whole) == 40
    assert list(open_stream(config, seed=7, start=start)) == whole[start:]


def test_a_field_labels_requests_and_makes_the_sets_of_a_mix(write):
    rows = [{"prompt": f"p{n}", "language": language} for n, language in enumerate(["de", "fr", "de", "fr", "it"])]
    config = StreamConfig(sources=(write("chat.jsonl", rows),), label="language", mix="sharp")
    assert [(asked(r), r.source) for r in open_stream(config, seed=1)] == [("p0", "de"), ("p1", "fr"), ("p4", "it")]


def test_a_sharp_mix_says_which_set_is_too_small(write, three, capsys):
    config = StreamConfig(sources=(write("few.jsonl", questions("d", 2)), three[0]), mix="sharp", num_requests=8)
    assert len(texts(config)) == 6
    assert "few" in capsys.readouterr().err


@pytest.mark.parametrize("malformed", ["stop", "skip"])
def test_a_source_without_a_prompt_is_refused(write, malformed):
    source = write("none.jsonl", [] if malformed == "stop" else ["{"])
    with pytest.raises(UserError, match=r"none\.jsonl: no prompts in it"):
        texts(StreamConfig(sources=(source,), malformed=malformed))


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
    for source in (PromptSource(task="c4"), PromptSource(task="c4", name="my/c4", streaming=True)):
        stream = open_stream(StreamConfig(sources=(source,), num_requests=3), seed=1)
        assert [asked(request) for request in stream] == ["page 0", "page 1", "page 2"]
        with pytest.raises(UserError, match="its rows come one by one and may be more than anyone waits for"):
            next(open_stream(StreamConfig(sources=(source,)), seed=1))
    assert wanted == [True, True]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sources": []}, "at least 1 item"),
        ({"mix": "sharp"}, "must be in_order for one source without a label, got sharp"),
        ({"follow": True, "sources": ["a.jsonl", "b.jsonl"]}, "unless sources names one file"),
        ({"follow": True, "mix": "smooth", "label": "topic"}, "must be false when mix is smooth"),
        ({"idle_s": 3.0}, "must be left out when follow is false, got 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    paths = settings.get("sources", ["a.jsonl"])
    with pytest.raises(ValidationError, match=words):
        StreamConfig(**settings | {"sources": [PromptSource(path=path) for path in paths]})
    with pytest.raises(ValidationError, match="unless sources names one file"):
        StreamConfig(sources=(PromptSource(task="gsm8k"),), follow=True)


def test_a_row_without_its_label_is_refused_or_skipped(write, capsys):
    source = write("chat.jsonl", [{"prompt": "a", "topic": 3}, {"prompt": "b"}])
    with pytest.raises(UserError, match=r"chat\.jsonl:2: has no topic"):
        texts(StreamConfig(sources=(source,), label="topic"))
    stream = open_stream(StreamConfig(sources=(source,), label="topic", malformed="skip"), seed=1)
    assert [(asked(request), request.source) for request in stream] == [("a", "3")]
    assert "chat.jsonl:2" in capsys.readouterr().err


def test_a_malformed_row_stops_the_stream_unless_such_are_skipped(write, capsys):
    source = write("p.jsonl", [{"prompt": "a"}, "{", {"prompt": 3}, {"prompt": "b"}])
    stream = open_stream(StreamConfig(sources=(source,)), seed=1)
    assert asked(next(stream)) == "a"
    with pytest.raises(UserError, match=r"p\.jsonl:2: is not valid JSON"):
        next(stream)
    stream = open_stream(StreamConfig(sources=(source,), malformed="skip"), seed=1)
    assert [(request.number, asked(request)) for request in stream] == [(0, "a"), (1, "b")]
    assert f"{source.path}:2" in capsys.readouterr().err


def test_a_stream_that_ends_early_warns(three, capsys):
    assert len(texts(StreamConfig(sources=three[:1], num_requests=31))) == 30
    assert "30 of 31" in capsys.readouterr().err
    assert texts(StreamConfig(sources=three[:1]), start=32) == []
    assert "30 of 32" in capsys.readouterr().err
    assert len(texts(StreamConfig(sources=three[:1], num_requests=30))) == 30
    assert capsys.readouterr().err == ""
