"""Answers that several processes write are those of one, byte for byte, and a lost process costs its shard only."""

import dataclasses
import json
from pathlib import Path

import pytest

from eval.decoding import generate as answering
from eval.decoding.generate import write_traces
from eval.prompts import Prompt
from tests.eval.answers.test_traces import GREEDY, PROMPTS, SAMPLED
from tests.sharing import by_processes

TALK = Prompt("talk.jsonl:1", ({"role": "user", "content": "first"},), ("second", "third"))
EVERY = [TALK, *PROMPTS]
SMALL = dataclasses.replace(GREEDY, shard_size=2)


@pytest.fixture(scope="module", params=["llama", "t5"])
def target(request, make_checkpoint, make_translator):
    """Whose answers end at different lengths: many tokens stop it."""
    folder = (make_translator if request.param == "t5" else make_checkpoint)(seed=1)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [2, *range(100, 264, 9)]}))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("count", [2, 9])  # of processes; there are 6 shards
@pytest.mark.parametrize("settings", [SMALL, dataclasses.replace(SAMPLED, shard_size=2)], ids=["greedy", "sampled"])
def test_several_processes_write_the_files_of_one(target, tmp_path, count, settings):
    alone, together = tmp_path / "alone", tmp_path / "together"
    write_traces(target, EVERY, alone, settings)
    by_processes(count, lambda share: write_traces(target, EVERY, together, settings, share=share))
    assert files(together) == files(alone)


def test_each_shard_is_written_by_one_process_and_each_process_writes_some(target, tmp_path, monkeypatch):
    written: list[tuple[int, str]] = []
    write = answering.write_shard

    def work(share):
        def note(path, rows):
            written.append((share.index, path.name))
            write(path, rows)

        monkeypatch.setattr(answering, "write_shard", note)
        write_traces(target, EVERY, tmp_path, SMALL, share=share)

    by_processes(2, work)
    assert sorted(name for _, name in written) == sorted(path.name for path in tmp_path.glob("*.jsonl"))
