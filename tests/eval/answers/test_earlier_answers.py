"""Answers taken from earlier runs: the same as if they had been written, and refused where they could not be."""

import dataclasses
import shutil

import pytest

from architectures.errors import UserError
from eval.answers.traces import read_traces
from eval.decoding import generate as answering
from eval.decoding.generate import write_traces
from eval.prompts import Prompt
from tests.eval.answers.test_traces import GREEDY as SETTINGS

GREEDY = dataclasses.replace(SETTINGS, max_new_tokens=12, shard_size=2)
SAMPLED = dataclasses.replace(GREEDY, temperature=1.0)
WORDS = ("one", "a longer number two", "3", "four", "the fifth", "6")
ASKED = [Prompt(f"file.jsonl:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(WORDS, start=1)]
TALK = Prompt("talk.jsonl:1", ({"role": "user", "content": "first"},), ("second",))
EVERY = (TALK, *reversed(ASKED))


@pytest.fixture(scope="module")
def once(target_folder, tmp_path_factory):
    """An earlier run: four questions to train on and a conversation held out."""
    out = tmp_path_factory.mktemp("once")
    write_traces(target_folder, ASKED[:4], out, GREEDY, name="train")
    write_traces(target_folder, [TALK], out, GREEDY, name="eval")
    return out


def more(target, out, folders, *, settings=GREEDY, prompts=EVERY):
    write_traces(target, prompts, out, settings, answers_from=folders)
    return read_traces(out, "train")


@pytest.fixture
def decoded(monkeypatch):
    """The rows that the target decoded."""
    rows: list[int] = []
    real = answering.decode_steps

    def count(models, wanted, **rest):
        rows.append(len(wanted.prompts))
        return real(models, wanted, **rest)

    monkeypatch.setattr(answering, "decode_steps", count)
    return rows


def test_new_prompts_alone_are_decoded_and_nothing_else_changes(target_folder, once, tmp_path, decoded, capsys):
    whole = more(target_folder, tmp_path / "whole", [])
    assert sum(decoded) == 8
    decoded.clear()
    taken = more(target_folder, tmp_path / "taken", [once])
    assert taken == whole
    assert sum(decoded) == 2, "the two questions that are new"
    assert "train: 6 answers taken from earlier ones" in capsys.readouterr().err


def test_seed_and_batches_need_not_agree_and_an_interrupted_run_counts_as_far_as_it_came(
    target_folder, once, tmp_path, decoded
):
    partial = shutil.copytree(once, tmp_path / "partial")
    (partial / "train-00001.jsonl").unlink()
    settings = dataclasses.replace(GREEDY, seed=6, batch_size=2, shard_size=5, max_prompt_len=150)
    more(target_folder, tmp_path / "out", [partial], settings=settings)
    assert sum(decoded) == 4


def test_sampled_answers_are_taken_as_they_were_drawn(target_folder, tmp_path, decoded):
    first = tmp_path / "first"
    write_traces(target_folder, ASKED, first, SAMPLED)
    decoded.clear()
    settings = dataclasses.replace(SAMPLED, seed=99)
    again = more(target_folder, tmp_path / "again", [first], settings=settings, prompts=ASKED)
    assert again == read_traces(first, "train")
    assert decoded == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"max_new_tokens": 13}, "max_new_tokens was 12, is 13"),
        ({"temperature": 0.5}, "temperature was 0.0, is 0.5"),
        ({"dtype": "bfloat16"}, 'dtype was "float32", is "bfloat16"'),
    ],
)
def test_answers_made_otherwise_are_refused(target_folder, once, tmp_path, changed, named):
    with pytest.raises(UserError, match=r"data\.answers_from: .*its train answers were made") as refused:
        more(target_folder, tmp_path / "out", [once], settings=dataclasses.replace(GREEDY, **changed))
    assert named in str(refused.value)
    assert not (tmp_path / "out" / "settings.json").exists(), "nothing is begun"


def test_answers_of_another_target_are_refused(make_checkpoint, once, tmp_path):
    with pytest.raises(UserError, match="target was "):
        more(make_checkpoint(seed=9), tmp_path / "out", [once])


def test_folder_without_answers_is_refused(target_folder, tmp_path):
    with pytest.raises(UserError, match=r"nowhere: holds no answers\. Name the data folder of an earlier run"):
        more(target_folder, tmp_path / "out", [tmp_path / "nowhere"])
