"""Answers with their states beside them: the same answers, whole shards, and the same bytes after a kill."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from architectures.errors import UserError
from architectures.files.atomic import remove_partials
from eval.answers.asked_turns import first_turns
from eval.answers.shards import hidden_path
from eval.answers.traces import DecodingSettings, read_traces
from eval.decoding import generate as answering
from eval.decoding import generate as state_keeper
from eval.decoding.generate import StateKeeper, write_traces
from eval.models.loading import load_model, load_tokenizer
from eval.prompts import Prompt

ROOT = Path(__file__).parents[3]
AS_READ = {"rtol": 1e-4, "atol": 1e-4}  # float32: a step of few rows sums in another order than a whole text does
GREEDY = DecodingSettings(
    max_new_tokens=24,
    temperature=0.0,
    top_p=1.0,
    batch_size=3,
    shard_size=4,
    max_prompt_len=200,
    seed=5,
    dtype="float32",
)
SAMPLED = dataclasses.replace(GREEDY, temperature=1.5, top_p=0.95)
TEXTS = ("one", "a much longer prompt number two", "3", "four", "the fifth of them", "6", "seven!", "8 8", "nine")
ASKED = [Prompt(f"file.jsonl:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(TEXTS, start=1)]
PROMPTS = [*ASKED, Prompt("talk.jsonl:1", ({"role": "user", "content": "first"},), ("second", "third"))]


@pytest.fixture(scope="module")
def target(make_checkpoint):
    """Whose answers end at different lengths: many tokens stop it."""
    folder = make_checkpoint(seed=1)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [2, *range(100, 264, 9)]}))
    return folder


def keep(target, out, settings=GREEDY, prompts=PROMPTS):
    write_traces(target, prompts, out, settings, answered_by=StateKeeper)
    return out


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != "settings.json"}


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_answers_are_the_same_bytes_with_their_states_and_without(target, tmp_path, settings):
    write_traces(target, PROMPTS, tmp_path / "plain", settings)
    kept, plain = files(keep(target, tmp_path / "kept", settings)), files(tmp_path / "plain")
    assert {name: content for name, content in kept.items() if name.endswith(".jsonl")} == plain
    assert kept.keys() - plain.keys() == {name.replace(".jsonl", ".hidden.safetensors") for name in plain}
    claims = [json.loads((tmp_path / name / "settings.json").read_text())["train"] for name in ("plain", "kept")]
    assert claims[1] == {**claims[0], "hidden_states": True}


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@torch.inference_mode()
def test_every_answer_of_every_turn_has_the_states_of_reading_it(target, tmp_path, settings):
    keep(target, tmp_path, settings)
    model, found = load_model(target, dtype="float32"), {}
    for path in sorted(tmp_path.glob("*.safetensors")):
        found |= load_file(path)
    answers = read_traces(tmp_path, "train")
    assert [answer.source for answer in answers[-3:]] == ["talk.jsonl:1", "talk.jsonl:1#2", "talk.jsonl:1#3"]
    assert found.keys() == {str(answer.id) for answer in answers}
    for answer in answers:
        read = model.base_model(input_ids=torch.tensor([answer.token_ids[:-1]]), use_cache=False).last_hidden_state
        torch.testing.assert_close(found[str(answer.id)], read[0, len(answer.prompt_ids) - 1 :].cpu(), **AS_READ)


def test_states_are_there_before_their_answers_and_one_batch_is_held_at_most(target, tmp_path, monkeypatch):
    order = []
    keeper = StateKeeper(target, load_tokenizer(target), GREEDY, name="train")
    monkeypatch.setattr(state_keeper, "write_text", lambda _, path: order.append(hidden_path(path).is_file()))
    answers = keeper.write(tmp_path / "train-00000.jsonl", first_turns(ASKED))
    most = [len(keeper.states.texts) for _ in answers]
    assert order == [True]
    assert len(most) == len(ASKED)
    assert max(most) == GREEDY.batch_size - 1  # the answer that has just ended is in the file
    assert not keeper.states.texts


@pytest.mark.parametrize("lost", ["train-00001.jsonl", "train-00001.hidden.safetensors"])
def test_a_shard_is_missing_if_either_file_is(target, tmp_path, monkeypatch, lost):
    before = files(keep(target, tmp_path))
    (tmp_path / lost).unlink()
    since_ns = (tmp_path / "train-00000.hidden.safetensors").stat().st_mtime_ns
    keep(target, tmp_path)
    assert files(tmp_path) == before
    assert (tmp_path / "train-00000.hidden.safetensors").stat().st_mtime_ns == since_ns
    monkeypatch.setattr(answering, "load_target", None)
    keep(target, tmp_path)  # nothing is missing


KILLED = """
import json, os, signal, sys
from pathlib import Path
from eval.answers import hidden_files
from eval.decoding import generate as answering
from eval.decoding import generate as state_keeper
from eval.prompts import Prompt

target, prompts, settings, runs = json.loads(sys.argv[1])
prompts = [Prompt(source, tuple(messages), tuple(later)) for source, messages, later in prompts]
write_text, add = state_keeper.write_text, hidden_files.HiddenFile.add

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_between_states_and_answers(text, path):
    write_text(text, path) if path.name == "train-00000.jsonl" else die()

def die_among_states(file, answer, hidden):
    add(file, answer, hidden) if answer != 6 else die()

for out, moment in runs.items():  # a child each: importing torch twice would take longer than the test
    child = os.fork()
    if child == 0:
        if moment == "between":
            state_keeper.write_text = die_between_states_and_answers
        else:
            hidden_files.HiddenFile.add = die_among_states
        kind, settings = state_keeper.StateKeeper, answering.DecodingSettings(**settings)
        answering.write_traces(Path(target), prompts, Path(out), settings, answered_by=kind)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""


@pytest.mark.usefixtures("warm")
def test_a_killed_run_ends_in_the_same_bytes(target, tmp_path):
    runs = {str(tmp_path / moment): moment for moment in ("among", "between")}
    rows = [[prompt.source, prompt.messages, prompt.later_turns] for prompt in PROMPTS]
    argument = json.dumps([str(target), rows, SAMPLED.claimed, runs])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", KILLED, argument], env=environment, check=True)
    whole, first = files(keep(target, tmp_path / "whole", SAMPLED)), "train-00000"
    for out, moment in runs.items():
        left = {"settings.json", f"{first}.jsonl", f"{first}.hidden.safetensors"}
        left |= {"train-00001.hidden.safetensors"} if moment == "between" else set()
        found = {path.name for path in Path(out).iterdir()}
        assert left <= found
        assert all(name.endswith(".partial") for name in found - left)
        remove_partials(Path(out), mark="run.lock")  # as the next owner of a run does
        keep(target, Path(out), SAMPLED)
        assert files(Path(out)) == whole


def test_answers_written_without_states_are_not_given_any(target, tmp_path):
    write_traces(target, ASKED, tmp_path, GREEDY)
    with pytest.raises(UserError) as raised:
        keep(target, tmp_path, prompts=ASKED)
    assert str(raised.value) == (
        f"{tmp_path}: its train answers were written without their hidden states, which "
        "distill.teacher.captured_while=answering asks for. Set it to reading: the target then reads these answers "
        "once more. Or choose another run_name, or delete this folder to write them again."
    )


def test_answers_written_with_states_are_answers_like_any(target, tmp_path, monkeypatch):
    keep(target, tmp_path)
    before = files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(answering, "load_target", None)
        write_traces(target, PROMPTS, tmp_path, GREEDY)
    (tmp_path / "train-00001.jsonl").unlink()
    write_traces(target, PROMPTS, tmp_path, GREEDY)
    keep(target, tmp_path)
    assert files(tmp_path) == before


def test_answers_from_which_something_may_be_made_never_change(target, tmp_path):
    """Another machine's rounding, here another answer put in the place of one."""
    keep(target, tmp_path)
    path = tmp_path / "train-00001.jsonl"
    path.write_text(path.read_text().replace("file.jsonl:5", "file.jsonl:55"))
    before = path.read_bytes()
    hidden_path(path).unlink()
    with pytest.raises(UserError, match=rf"{path}: answered again for hidden states that are missing, and otherwise"):
        keep(target, tmp_path)
    assert path.read_bytes() == before
    assert not hidden_path(path).exists()


def test_a_target_whose_states_are_no_numbers_is_refused(target, tmp_path, monkeypatch):
    load = answering.load_target

    def overflowing(folder, *, dtype, holding):
        model = load(folder, dtype=dtype, holding=holding)
        model.base_model.norm.weight.data[3] = torch.inf
        return model

    monkeypatch.setattr(answering, "load_target", overflowing)
    with pytest.raises(UserError, match=r"file\.jsonl:\d: not all of the target's hidden states of its answer are num"):
        keep(target, tmp_path)
    assert not list(tmp_path.glob("train-*"))
