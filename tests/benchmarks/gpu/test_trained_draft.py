"""A draft trained at size tiny, and what a training run is planned from."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from architectures.manifest import read_manifest
from benchmarks.gpu import trained_draft
from benchmarks.gpu.stage import Setting, SkippedError
from benchmarks.gpu.trained_draft import (
    TRAINING,
)
from eval.responses import read_traces
from tests.rejections import rejects

pytestmark = pytest.mark.usefixtures("trainings_begin_at_once")
PROMPTS = Path(__file__).parents[3] / "recipes" / "prompts" / "quickstart.jsonl"
FULL, TINY = TRAINING["full"], TRAINING["tiny"]


@pytest.fixture(scope="module")
def setting(tiny_target, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    return Setting(torch.device("cpu"), "tiny", tiny_target, PROMPTS, work, work, time.monotonic() + 300)


@pytest.fixture(scope="module")
def found(setting):
    return trained_draft.trained_draft(setting, TINY)


def test_a_draft_is_trained(setting, found):
    assert (found.row["what"], found.row["layers"]) == ("trained", TINY.layers)
    assert found.row["epochs"] == found.row["batches"] * TINY.trained_together / found.row["prompts"]
    assert (read_manifest(found.draft) or {})["finished"] is True


def test_prompts_measured_on_were_not_trained_on(setting, found):
    held_out = found.held_out()
    learned = {trace.prompt_ids for trace in read_traces(setting.work / "draft" / "data", "train")}
    assert len(held_out) == TINY.num_eval_prompts
    assert not {tuple(ids) for ids in held_out} & learned


def test_what_the_target_wrote_itself_is_not_measured_on(setting, found, monkeypatch):
    traces = read_traces(setting.work / "draft" / "data", "eval")
    its_own = [replace(traces[0], source="self-written:1"), *traces[1:]]
    monkeypatch.setattr(trained_draft, "read_traces", lambda *_: its_own)
    held_out = found.held_out()
    assert held_out == [list(trace.prompt_ids) for trace in traces[1:]]


def test_a_later_call_takes_the_draft_that_is_there(setting, found, monkeypatch):
    monkeypatch.setattr(trained_draft, "train_now", lambda *_: pytest.fail("trained again"))
    less_time = replace(setting, deadline_s=time.monotonic() + 5)
    assert trained_draft.trained_draft(less_time, TINY).row == found.row | {"kept": True}


def test_a_broken_target_skips_the_item(setting, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"vocab_size": 264}')
    with rejects(target, error=SkippedError):
        trained_draft.trained_draft(replace(setting, target=target, work=tmp_path / "work"), TINY)
