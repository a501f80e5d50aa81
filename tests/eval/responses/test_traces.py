"""Responses on disk: what they say, and that a killed run and several processes end in the same bytes."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from architectures.files import remove_partials
from architectures.settings import Holding
from eval.chat import render_prompt, user_turn
from eval.decoding import generate as answering
from eval.decoding.generate import write_traces
from eval.decoding.sampling import DRAWS, Decoded, Limits, Sampling
from eval.decoding.speculative import plain_decode
from eval.models import load_model, load_tokenizer
from eval.prompts import Prompt
from eval.responses import (
    DecodingSettings,
    Trace,
    claim_shards,
    first_turns,
    read_traces,
    require_known_ids,
    row_location,
    write_shard,
)
from tests.conftest import stopped_by_many
from tests.eval.conftest import GREEDY
from tests.rejections import rejects
from tests.sharing import by_processes

ROOT = Path(__file__).parents[3]
SAMPLED = dataclasses.replace(GREEDY, temperature=1.5, top_p=0.95)
MIXED = dataclasses.replace(SAMPLED, temperature=(0.0, 0.7, 1.5))


def ask(*texts: str) -> list[Prompt]:
    return [Prompt(f"file.jsonl:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(texts, start=1)]


PROMPTS = ask(
    "one", "a much longer prompt number two", "3", "four", "the fifth of them", "6", "seven!", "8 8", "nine", "10"
)


def shard_bytes(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.jsonl"))}


@pytest.fixture(scope="module")
def chatty_target(make_checkpoint):
    """A target whose greedy responses end at different lengths: many tokens stop it; not to be changed."""
    return stopped_by_many(make_checkpoint(seed=1))


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, MIXED, dataclasses.replace(MIXED, batch_size=1)])
def test_traces_hold_the_targets_own_responses(chatty_target, tmp_path, settings):
    write_traces(chatty_target, PROMPTS, tmp_path, settings)
    responses = read_traces(tmp_path, "train")
    assert [trace.source for trace in responses] == [prompt.source for prompt in PROMPTS]
    assert [trace.id for trace in responses] == list(range(len(PROMPTS)))
    assert sorted(shard_bytes(tmp_path)) == [f"train-0000{i}.jsonl" for i in range(3)]
    model, tokenizer = load_model(chatty_target, dtype="float32"), load_tokenizer(chatty_target)
    stop_ids = set(model.generation_config.eos_token_id)
    for prompt, trace in zip(PROMPTS, responses, strict=True):
        assert trace.messages == prompt.messages
        assert list(trace.prompt_ids) == render_prompt(tokenizer, prompt)
        temperature = settings.temperatures[trace.id % len(settings.temperatures)]
        [decoded] = plain_decode(
            model,
            [trace.prompt_ids],
            limits=Limits(24, stop_ids),
            sampling=Sampling(temperature, settings.top_p),
            row_seeds=[answering.derive_seed(5, "train", trace.id)],
        )
        alone = decoded.token_ids
        assert trace.response_ids == alone
        assert trace.temperature == temperature
        assert trace.response == tokenizer.decode(list(alone), skip_special_tokens=True)
        assert trace.finish_reason == ("stop" if alone[-1] in stop_ids else "length")
        assert len(alone) == 24 or trace.finish_reason == "stop"
    assert {trace.finish_reason for trace in responses} == {"stop", "length"}


def test_a_response_that_runs_past_its_end_stops_the_generation(chatty_target, tmp_path):
    folder = Path(shutil.copytree(chatty_target, tmp_path / "target"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [100]}))
    generator = answering.LocalGenerator(folder, load_tokenizer(folder), GREEDY, name="train")
    [turn] = first_turns(ask("hi"))
    with rejects(folder, "eos_token_id"):
        generator.trace(turn, [1], Decoded((70, 2, 71), steps=(), prefill_s=0.0, decode_s=0.0, stopped=False))


def test_text_of_an_response_leaves_out_special_tokens(chatty_target):
    tokenizer = load_tokenizer(chatty_target)
    tokenizer.clean_up_tokenization_spaces = True  # as some tokenizer_config.json ask; it would make "it's  done."
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    generator = answering.LocalGenerator(chatty_target, tokenizer, GREEDY, name="train")
    [turn] = first_turns(ask("hi"))
    response_ids = (*tokenizer("it 's  done .")["input_ids"], 2)
    decoded = Decoded(response_ids, steps=(), prefill_s=0.0, decode_s=0.0, stopped=True)
    assert generator.trace(turn, [1], decoded) == Trace(
        0, "file.jsonl:1", turn.prompt.messages, (1,), response_ids, "it 's  done .", "stop", temperature=0.0
    )


def test_prompts_of_like_length_are_answered_together(chatty_target):
    generator = answering.LocalGenerator(chatty_target, load_tokenizer(chatty_target), GREEDY, name="train")
    read = []
    generator.model.register_forward_pre_hook(
        lambda _module, _args, kwargs: read.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    responses = list(generator.generate(first_turns(ask("x" * 40, "a", "x" * 41, "b", "x" * 42, "c"))))
    shortest = min(len(trace.prompt_ids) for trace in responses)
    assert [tuple(shape) for shape in read if shape[1] > 1] == [(3, shortest - 1), (3, shortest + 40)]
    generator.settings = dataclasses.replace(GREEDY, batch_tokens=2 * (shortest + 41))
    read.clear()
    again = generator.generate(first_turns(ask("x" * 40, "a", "x" * 41, "b", "x" * 42, "c")))
    assert sorted(again, key=lambda trace: trace.id) == sorted(responses, key=lambda trace: trace.id)
    shapes = [tuple(shape) for shape in read if shape[1] > 1]
    assert shapes == [(3, shortest - 1), (2, shortest + 39), (1, shortest + 40)]


def test_seeds_differ_by_prompt_name_and_seed():
    seeds = [answering.derive_seed(*key) for key in [(0, "train", 0), (0, "train", 1), (0, "eval", 0), (1, "train", 0)]]
    assert len(set(seeds)) == 4


def test_turns_are_answered_one_after_another(chatty_target, tmp_path):
    conversation = Prompt("talk.jsonl:1", ({"role": "user", "content": "first"},), ("second", "third"))
    write_traces(chatty_target, [conversation, *PROMPTS[:2]], tmp_path, GREEDY, name="eval")
    first, second, third, *others = read_traces(tmp_path, "eval")
    assert [trace.source for trace in (first, second, third)] == ["talk.jsonl:1", "talk.jsonl:1#2", "talk.jsonl:1#3"]
    assert [trace.id for trace in (first, second, third, *others)] == [0, 1, 2, 3, 4]
    said = ({"role": "assistant", "content": first.response}, {"role": "user", "content": "second"})
    assert second.messages == (*first.messages, *said)
    said = ({"role": "assistant", "content": second.response}, {"role": "user", "content": "third"})
    assert third.messages == (*second.messages, *said)
    assert list(third.prompt_ids) == render_prompt(load_tokenizer(chatty_target), third)
    assert [trace.source for trace in others] == ["file.jsonl:1", "file.jsonl:2"]


def test_every_turn_has_the_category_and_the_task_of_its_prompt(chatty_target, tmp_path):
    conversation = dataclasses.replace(PROMPTS[0], later_turns=("second",), category="travel", task="trips/2")
    write_traces(chatty_target, [conversation, PROMPTS[1]], tmp_path, GREEDY)
    traces = read_traces(tmp_path, "train")
    assert [trace.category for trace in traces] == ["travel", "travel", None]
    assert [trace.task for trace in traces] == ["trips/2", "trips/2", None]


def test_prompts_that_are_too_long_are_left_out_and_counted(chatty_target, tmp_path, capsys):
    prompts = ask("short", "x" * 160, "y" * 161, "short too")  # the template adds 39 tokens of one byte, or special
    num_framing = len(render_prompt(load_tokenizer(chatty_target), prompts[0])) - len("short")
    settings = dataclasses.replace(GREEDY, max_prompt_len=160 + num_framing)
    write_traces(chatty_target, prompts, tmp_path, settings)
    kept = [trace.source for trace in read_traces(tmp_path, "train")]
    assert kept == ["file.jsonl:1", "file.jsonl:2", "file.jsonl:4"]
    assert f" {160 + num_framing} " in capsys.readouterr().err


def test_a_conversation_that_grows_too_long_ends_there(chatty_target, tmp_path):
    conversation = Prompt("talk.jsonl:1", ({"role": "user", "content": "first"},), ("x" * 170, "third"))
    write_traces(chatty_target, [conversation, *PROMPTS[:1]], tmp_path, GREEDY)
    assert [(trace.id, trace.source) for trace in read_traces(tmp_path, "train")] == [
        (0, "talk.jsonl:1"),
        (3, "file.jsonl:1"),
    ]


def test_only_prompts_that_are_too_long(chatty_target, tmp_path):
    with rejects(20):
        write_traces(chatty_target, PROMPTS[:2], tmp_path / "out", dataclasses.replace(GREEDY, max_prompt_len=20))
    assert not (tmp_path / "out").exists()


def test_finished_responses_load_no_model(chatty_target, tmp_path, capsys, monkeypatch):
    write_traces(chatty_target, PROMPTS, tmp_path, GREEDY)
    before = shard_bytes(tmp_path)
    capsys.readouterr()
    monkeypatch.setattr(answering, "load_target", None)
    write_traces(chatty_target, PROMPTS, tmp_path, GREEDY)
    assert shard_bytes(tmp_path) == before
    assert capsys.readouterr().err == ""


KILLED = """
import json, os, signal, sys
from pathlib import Path
from architectures.files import partial_path
from eval import responses as shards
from eval.decoding import generate as answering
from eval.prompts import Prompt

target, prompts, runs = json.loads(sys.argv[1])
prompts = [Prompt(source, tuple(messages), tuple(later)) for source, messages, later in prompts]

def die_in_the_second_shard(path, rows):
    if path.name == "train-00001.jsonl":
        partial_path(path).write_text("half of a sha")
        os.kill(os.getpid(), signal.SIGKILL)
    shards.write_shard(path, rows)

answering.write_shard = die_in_the_second_shard
for out, settings in runs.items():  # a child each: importing torch twice would take longer than the test
    child = os.fork()
    if child == 0:
        answering.write_traces(Path(target), prompts, Path(out), answering.DecodingSettings(**settings))
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@pytest.mark.usefixtures("warm")
def test_killed_run_ends_in_the_same_bytes(chatty_target, tmp_path):
    prompts = [*PROMPTS, Prompt("talk.jsonl:1", ({"role": "user", "content": "first"},), ("second",))]
    runs = {"greedy": GREEDY, "sampled": SAMPLED}
    rows = [[prompt.source, prompt.messages, prompt.later_turns] for prompt in prompts]
    argument = [str(chatty_target), rows, {str(tmp_path / out): runs[out].claimed for out in runs}]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", KILLED, json.dumps(argument)], env=environment, check=True)
    for name, settings in runs.items():
        killed, whole = tmp_path / name, tmp_path / f"{name}-whole"
        write_traces(chatty_target, prompts, whole, settings)
        first_shard = killed / "train-00000.jsonl"
        assert list(shard_bytes(killed)) == [first_shard.name]
        with rejects("train-00001.jsonl"):
            read_traces(killed, "train")
        kept_since_ns = first_shard.stat().st_mtime_ns
        remove_partials(killed, mark="run.lock")  # as the next owner of a run does
        write_traces(chatty_target, prompts, killed, settings)
        assert shard_bytes(killed) == shard_bytes(whole)
        assert first_shard.stat().st_mtime_ns == kept_since_ns  # continued, not begun again
        assert not list(killed.glob("*.partial"))


def settings_changes() -> list[Any]:
    values = {
        "max_new_tokens": 25,
        "temperature": 0.5,
        "top_p": 0.9,
        "batch_size": 2,
        "shard_size": 5,
        "max_prompt_len": 201,
        "seed": 6,
        "dtype": "bfloat16",
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "served_model": "target-fp8",
    }
    # Where the target is held is no claim.
    assert {*values, "holding", "batch_tokens"} == {field.name for field in dataclasses.fields(DecodingSettings)}
    return list(values.items())


@pytest.mark.parametrize(("name", "value"), settings_changes())
def test_changed_setting_is_refused_with_both_values(chatty_target, tmp_path, name, value):
    write_traces(chatty_target, PROMPTS[:2], tmp_path, SAMPLED)
    left_out = name in ("min_p", "repetition_penalty", "served_model")  # if none
    old = "null" if left_out else json.dumps(getattr(SAMPLED, name))
    with rejects(name, old, json.dumps(value)):
        write_traces(chatty_target, PROMPTS[:2], tmp_path, dataclasses.replace(SAMPLED, **{name: value}))


def test_a_target_in_fewer_bits_is_another_and_one_held_elsewhere_is_not(chatty_target, tmp_path):
    write_traces(chatty_target, PROMPTS[:2], tmp_path, GREEDY)
    before = shard_bytes(tmp_path)
    write_traces(chatty_target, PROMPTS[:2], tmp_path, dataclasses.replace(GREEDY, holding=Holding("layers")))
    with rejects("bits", 4):
        write_traces(chatty_target, PROMPTS[:2], tmp_path, dataclasses.replace(GREEDY, holding=Holding(bits=4)))
    assert shard_bytes(tmp_path) == before


def test_changed_target_template_and_prompts_are_refused_by_name(chatty_target, make_checkpoint, tmp_path):
    write_traces(chatty_target, PROMPTS[:2], tmp_path, GREEDY)
    before = shard_bytes(tmp_path)
    with rejects("prompts"):
        write_traces(chatty_target, PROMPTS[1:3], tmp_path, GREEDY)
    with rejects("target"):
        write_traces(make_checkpoint(seed=99), PROMPTS[:2], tmp_path, GREEDY)
    chatty_target = shutil.copytree(chatty_target, tmp_path / "changed")
    template = chatty_target / "chat_template.jinja"
    template.write_text(template.read_text().replace("user", "User"))
    template.write_text(template.read_text() + " ")
    with rejects("template"):
        write_traces(chatty_target, PROMPTS[:2], tmp_path, GREEDY)
    assert shard_bytes(tmp_path) == before


def test_names_in_one_folder_have_their_own_settings(chatty_target, tmp_path):
    write_traces(chatty_target, PROMPTS[:2], tmp_path, GREEDY, name="eval")
    write_traces(chatty_target, PROMPTS[2:5], tmp_path, SAMPLED, name="train")
    assert len(read_traces(tmp_path, "eval")) == 2
    assert len(read_traces(tmp_path, "train")) == 3
    with rejects("draws", "temperature"):
        write_traces(chatty_target, PROMPTS[:2], tmp_path, SAMPLED, name="eval")


def test_sampled_responses_say_how_random_numbers_were_drawn(chatty_target, tmp_path):
    """So that no folder mixes those of two ways; greedy responses know none."""
    write_traces(chatty_target, PROMPTS[:2], tmp_path, GREEDY, name="eval")
    write_traces(chatty_target, PROMPTS[:2], tmp_path, SAMPLED)
    path = tmp_path / "settings.json"
    claims = json.loads(path.read_text())
    assert "draws" not in claims["eval"]["settings"]
    assert claims["train"]["settings"].pop("draws") == DRAWS
    path.write_text(json.dumps(claims))
    with rejects("draws"):
        write_traces(chatty_target, PROMPTS[:2], tmp_path, SAMPLED)


TALK = Prompt("talk.jsonl:1", ({"role": "user", "content": "first"},), ("second", "third"))
EVERY = [TALK, *PROMPTS]
GREEDY_SHORT, SAMPLED_SHORT = (
    dataclasses.replace(each, shard_size=2, max_new_tokens=10) for each in (GREEDY, SAMPLED)
)  # 6 shards


@pytest.fixture(scope="module", params=["llama", "t5"])
def target(request, make_checkpoint, make_translator):
    """Whose responses end at different lengths: many tokens stop it."""
    return stopped_by_many((make_translator if request.param == "t5" else make_checkpoint)(seed=1))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def alone(target, tmp_path_factory):
    """What one process writes with these settings."""

    @cache
    def write(settings):
        out = tmp_path_factory.mktemp("alone")
        write_traces(target, EVERY, out, settings)
        return files(out)

    return write


@pytest.mark.parametrize(
    ("count", "settings"), [(2, SAMPLED_SHORT), (9, GREEDY_SHORT)], ids=["two sampled", "more than shards, greedy"]
)
def test_several_processes_write_the_files_of_one(target, alone, tmp_path, monkeypatch, count, settings):
    """Each shard is written by one process, and as many processes write as there are shards for."""
    expected, write, written = alone(settings), answering.write_shard, []

    def note(path, rows):
        written.append((threading.get_ident(), path.name))
        write(path, rows)

    monkeypatch.setattr(answering, "write_shard", note)
    by_processes(count, lambda share: write_traces(target, EVERY, tmp_path, settings, share=share))
    assert files(tmp_path) == expected
    names = [path.name for path in tmp_path.glob("*.jsonl")]
    assert sorted(name for _, name in written) == sorted(names)
    assert len({thread for thread, _ in written}) == min(count, len(names))


ASKED = ({"role": "user", "content": "why"},)


def test_a_row_is_found_in_its_shard(tmp_path):
    paths = claim_shards(tmp_path, "train", {}, num_shards=3)
    for path, count in zip(paths, (2, 1, 2), strict=True):
        write_shard(path, [{}] * count)
    assert [row_location(tmp_path, "train", row) for row in range(5)] == [
        f"{tmp_path}/train-0000{shard}.jsonl:{line}" for shard, line in ((0, 1), (0, 2), (1, 1), (2, 1), (2, 2))
    ]


@pytest.mark.parametrize(("prompt", "response"), [((1, 12), (2,)), ((1, 2), (3, 12))])
def test_prompts_and_responses_count_and_the_smallest_model_is_named(tmp_path, prompt, response):
    paths = claim_shards(tmp_path, "eval", {}, num_shards=2)
    rows = [Trace(0, "p:1", ASKED, (1,), (2,), "", "stop"), Trace(1, "p:2", ASKED, prompt, response, "", "stop")]
    for path, trace in zip(paths, rows, strict=True):
        write_shard(path, [dataclasses.asdict(trace)])
    ids = [trace.token_ids for trace in read_traces(tmp_path, "eval")]
    models = {tmp_path / "large": 20, tmp_path / "small": 12, tmp_path / "larger": 30}
    require_known_ids(ids, tmp_path, "eval", {**models, tmp_path / "small": 13})
    with rejects("eval-00001.jsonl:1:", 12, tmp_path / "small", "vocab_size"):
        require_known_ids(ids, tmp_path, "eval", models)


def test_a_prompt_whose_tokens_the_target_has_no_rows_for_is_refused_by_row(make_checkpoint, tmp_path):
    target = make_checkpoint(num_hidden_layers=1, vocab_size=258)  # its tokenizer has 259 tokens
    prompts = [Prompt(f"p.jsonl:{n}", (user_turn(text),)) for n, text in ((1, "plain"), (2, "\u00ed"))]
    write_traces(target, prompts[:1], tmp_path / "known", GREEDY)
    with rejects("p.jsonl:2:", target, "vocab_size", 258):
        write_traces(target, prompts, tmp_path / "unknown", GREEDY)
