"""Responses that several processes write are those of one, byte for byte, and a lost process costs its shard only."""

import dataclasses
import json
import threading
from functools import cache
from pathlib import Path

import pytest

from eval.decoding import generate as answering
from eval.decoding.generate import write_traces
from eval.prompts import Prompt
from tests.eval.responses.test_traces import GREEDY, PROMPTS, SAMPLED
from tests.sharing import by_processes

TALK = Prompt("talk.jsonl:1", ({"role": "user", "content": "first"},), ("second", "third"))
EVERY = [TALK, *PROMPTS]
GREEDY_SHORT, SAMPLED_SHORT = (
    dataclasses.replace(each, shard_size=2, max_new_tokens=10) for each in (GREEDY, SAMPLED)
)  # 6 shards


@pytest.fixture(scope="module", params=["llama", "t5"])
def target(request, make_checkpoint, make_translator):
    """Whose responses end at different lengths: many tokens stop it."""
    folder = (make_translator if request.param == "t5" else make_checkpoint)(seed=1)
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [2, *range(100, 264, 9)]}))
    return folder


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
