"""--profile of `widedraft speed`: one round, its parts named, whatever is decoded and however steps are run."""

import gzip
import json
from functools import partial

import pytest

import widedraft
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import speculative_decode
from eval.decoding.texts import Limits, Speculation
from eval.profiling.figures import named_spans, recorded_span
from eval.speed.profiled_round import PARTS, NamedRounds, profile_round
from eval.speed.ways import Setup
from eval.steps import compiled
from eval.steps.compiled import CompiledSteps
from eval.steps.row_step import forward
from eval.steps.sequencer import open_sequencer
from tests.eval.decoding.test_compiled import needs_compiler

LOOKAHEAD, LAYERS_OF_TARGET = 3, 4
FILES = {"round.pt.trace.json.gz", "round.memory.json", "round.memory.png", "round.txt"}
ATTENTION = "aten::scaled_dot_product_attention"  # once a layer of every step


@pytest.fixture
def profiled(target, noisy_draft, prompts, tmp_path):
    """profiled(batch, temperature, opener) -> the Profile, and the events of its trace."""

    def profile(batch=1, temperature=0.0, opener=open_sequencer, models=(target, noisy_draft)):
        setup = Setup(models[0], {"draft": models[1]}, Limits(24), Sampling(temperature), opener=opener)
        found = profile_round(
            setup, models[1], LOOKAHEAD, prompts[:batch], row_seeds=list(range(batch)), folder=tmp_path
        )
        return found, events_of(found.files[0])

    return profile


def events_of(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if "cat" in event]


def within(events, name, span):
    return sum(event["name"] == name and span.start <= event["ts"] < span.end for event in events)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_trace_is_of_one_round_without_the_prompts(profiled, batch, temperature):
    found, events = profiled(batch, temperature)
    drafting, verifying, *accepting = named_spans(events, PARTS)
    assert [drafting.name, verifying.name, *(span.name for span in accepting)] == [
        "draft",
        "verify",
        *["accept"] * (1 + batch),  # the rule, and each text
    ]
    layers_of_draft = LAYERS_OF_TARGET  # it is the target with noise
    assert within(events, ATTENTION, drafting) == LOOKAHEAD * layers_of_draft
    assert within(events, ATTENTION, verifying) == LAYERS_OF_TARGET
    assert within(events, ATTENTION, recorded_span(events)) == (LOOKAHEAD + 1) * LAYERS_OF_TARGET
    assert sum(found.parts_ms.values()) <= found.ms
    assert found.gpu_busy_share is None


def test_labels_leave_a_compiled_step_whole(profiled, monkeypatch):
    """Every step is one call of the compiled function, which no label is within."""
    calls = []

    def step(model, *arguments, **keywords):
        calls.append(arguments)
        return forward(model, *arguments, **keywords)

    monkeypatch.setattr(compiled, "compiled_forward", lambda _model: step)
    monkeypatch.setattr(compiled.shutil, "which", lambda name: name)
    _, events = profiled(4, opener=CompiledSteps())
    assert within(events, ATTENTION, recorded_span(events)) == (LOOKAHEAD + 1) * LAYERS_OF_TARGET
    assert calls


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(900)  # of which a C++ compiler takes nearly all
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_compiled_steps_are_profiled(small_pair, temperature, tmp_path):
    setup = Setup(small_pair[0], {}, Limits(24), Sampling(temperature), opener=CompiledSteps())
    found = profile_round(setup, small_pair[1], LOOKAHEAD, [[1]], row_seeds=[0], folder=tmp_path)
    events = events_of(found.files[0])
    assert {span.name for span in named_spans(events, PARTS)} == set(PARTS)
    assert found.files[0].exists()


def test_models_that_take_one_text_at_a_time_are_profiled_with_the_first(translators, profiled):
    found, events = profiled(4, models=translators)
    assert [span.name for span in named_spans(events, PARTS)] == ["draft", "verify", "accept", "accept"]
    assert found.ms > 0


def test_what_is_named_is_decoded_as_it_is_without_names(target, noisy_draft, prompts, profiled, monkeypatch):
    texts = []
    plain = partial(speculative_decode, target, noisy_draft, limits=Limits(24), sampling=Sampling(1.0))
    expected = plain(prompts[:4], speculation=Speculation(LOOKAHEAD), row_seeds=range(4))
    emit = NamedRounds.emit

    def remember(batch, text, *more, **named):
        texts.append(text)
        return emit(batch, text, *more, **named)

    monkeypatch.setattr(NamedRounds, "emit", remember)
    profiled(4, 1.0)
    assert len(texts) == 5 * 4
    for text in texts:
        assert tuple(text.emitted) == expected[text.index].token_ids[: len(text.emitted)]
        assert len(text.rounds) == 5


def test_files_say_what_was_recorded(profiled, tmp_path):
    found, events = profiled(2)
    assert {path.name for path in found.files} == {path.name for path in tmp_path.iterdir()} == FILES
    record = json.loads((tmp_path / "round.memory.json").read_text())
    cpu = record["devices"]["cpu"]
    assert cpu["peak_bytes"] == max(cpu["allocated_bytes"]) == found.peak_bytes["cpu"] > 0
    assert len(cpu["ms"]) == len(cpu["allocated_bytes"])
    assert 0 <= min(cpu["ms"]) <= max(cpu["ms"]) <= found.ms
    assert {part["name"] for part in record["parts"]} == set(PARTS)
    assert (tmp_path / "round.memory.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "round.txt").read_text()
    assert found.describe() in table
    assert found.top_operation in table
    assert found.top_operation not in {*PARTS, "ProfilerStep#1"}
    assert found.top_operation in {event["name"] for event in events}


def test_an_older_profile_is_replaced_and_nothing_else(profiled, tmp_path):
    for name in ("round.txt", "notes.txt"):
        (tmp_path / name).write_text("older")
    profiled()
    assert (tmp_path / "notes.txt").read_text() == "older"
    assert (tmp_path / "round.txt").read_text() != "older"
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "notes.txt"}


def run_speed(*words):
    return widedraft.main(["speed", *map(str, words)])


FEW = ("--num-prompts", 2, "--max-new-tokens", 10, "--num-threads", 1)


@pytest.mark.parametrize("more", [("--lookaheads", 1), ("--lookaheads", 1, 6, "--batch-size", 2, "--temperature", 1)])
def test_the_command_profiles_the_first_lookahead_after_everything(
    target_folder, noisy_folder, tmp_path, capsys, more, monkeypatch
):
    folder, order = tmp_path / "made" / "here", []
    for name in ("eval.speed.measure.take_turns", "eval.speed.profiled_round.profile_round"):
        module, function = name.rsplit(".", 1)
        real = getattr(__import__(module, fromlist=[function]), function)
        monkeypatch.setattr(
            name, lambda *given, _name=function, _real=real, **more: (order.append(_name), _real(*given, **more))[1]
        )
    words = ("--target", target_folder, "--drafts", noisy_folder, *FEW, *more)
    assert run_speed(*words, "--profile", folder) == 0
    assert order == ["take_turns", "profile_round"]
    printed = capsys.readouterr().out
    assert f"{folder}: a round of draft at lookahead 1: " in printed
    assert {path.name for path in folder.iterdir()} == FILES
    assert all(name in printed for name in FILES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lookaheads", 2, 1), "--profile records round 5 at lookahead 2, and --max-new-tokens 10 may end before it"),
        (("--lookaheads", 1), "is a file. Name a folder."),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_anything_is_read(tmp_path, capsys, words, message):
    (tmp_path / "x").write_text("")
    given = ("--target", "nowhere", "--drafts", "nowhere", *FEW, *words, "--profile", tmp_path / "x")
    assert run_speed(*given) == 2
    assert message in capsys.readouterr().err
