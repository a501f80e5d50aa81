"""An engine's process responses, fails and ends as it should; vLLM itself is a stub, but in the slow test."""

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu import vllm_engine
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.vllm_engine import PYTHON, Engine, EngineError, NoDraft, running
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "models" / "SmolLM2-135M-Instruct"
PROMPTS = [[5, 6, 7], [8, 9]]
STUB = """
import os, subprocess, sys, time
from types import SimpleNamespace as Some

__version__ = "0.0.1"


class SamplingParams:
    def __init__(self, **kwargs):
        self.__dict__ = kwargs


class LLM:
    def __init__(self, **kwargs):
        print("Using FLASH_ATTN attention backend out of some. Using FlashAttention version 3")
        sys.stdout.flush()
        self.kwargs, self.drafts = kwargs, 0
        if kwargs.get("broken"):
            raise ValueError("no such model")
        time.sleep(kwargs.get("sleep", 0))
        if kwargs.get("child"):
            child = subprocess.Popen(["sleep", "600"])
            open(os.environ["LOG"].replace("parent.log", "child.pid"), "w").write(str(child.pid))
        self.llm_engine = Some(vllm_config=Some(
            compilation_config=Some(cudagraph_mode=Some(name="FULL")),
            scheduler_config=Some(async_scheduling=True), use_v2_model_runner=False))

    def generate(self, prompts, params, use_tqdm):
        if params.max_tokens > 50:
            os._exit(3)
        steps = params.max_tokens - 1
        self.drafts += len(prompts) * steps // 2
        return [Some(metrics=Some(first_token_ts=1.0, last_token_ts=3.0),
                     outputs=[Some(token_ids=[1] * params.max_tokens)]) for _ in prompts]

    def get_metrics(self):
        if not self.kwargs.get("speculative_config"):
            return []
        name = "vllm:spec_decode_"
        return [Some(name=name + "num_drafts", value=self.drafts),
                Some(name=name + "num_accepted_tokens", value=2 * self.drafts),
                Some(name=name + "num_accepted_tokens_per_pos", values=[2 * self.drafts, 0]),
                Some(name="vllm:other", value=1)]
"""


@pytest.fixture
def logs(tmp_path, monkeypatch):
    (tmp_path / "vllm.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(PYTHON, sys.executable)
    return tmp_path


def test_an_engine_reports_its_facts_and_decodes(logs):
    speculative = {"plain": {}, "draft k=1": {"speculative_config": {"method": "ngram"}}}
    with running(speculative, logs) as engines:
        for engine in engines.values():
            facts = engine.reply(30)
            assert facts.pop("start_s") < 30
            assert facts == {
                "vllm": "0.0.1",
                "cudagraph_mode": "FULL",
                "async_scheduling": True,
                "v2_model_runner": False,
                "attention": "FLASH_ATTN 3",
            }
        plain, draft = (engine.decode(PROMPTS, 9, 30) for engine in engines.values())
        again = engines["draft k=1"].decode(PROMPTS, 5, 30)
    assert (plain["decode_s"], plain["steps"], plain["drafts"]) == (2.0, 8, 0)
    assert plain["token_ids"] == [[1] * 9] * 2
    assert (draft["steps"], draft["drafts"], draft["accepted"]) == (4.0, 8, 16)
    assert draft["accepted_per_position"] == [16, 0]
    assert (again["drafts"], again["accepted_per_position"]) == (4, [8, 0])  # of this call only
    assert all(engine.process.returncode == 0 for engine in engines.values())
    assert {path.name for path in logs.glob("*.log")} == {"plain.log", "draft-k-1.log"}


def test_an_engine_that_fails_says_why(logs):
    engine = Engine("broken one", {"broken": True}, logs)
    with rejects("broken one", "ValueError", "no such model", "Traceback", error=EngineError):
        engine.reply(30)
    engine.stop()


def test_an_engine_whose_process_ends_is_reported(logs):
    engine = Engine("gone", {}, logs)
    engine.reply(30)
    with rejects("gone", error=EngineError):
        engine.decode(PROMPTS, 99, 30)
    with rejects("gone", error=EngineError):
        engine.decode(PROMPTS, 9, 30)
    engine.stop()
    assert engine.process.returncode == 3


def test_an_engine_that_hangs_is_given_up_and_killed(logs, monkeypatch):
    monkeypatch.setattr(vllm_engine, "STOP_S", 0.2)
    engine, start_s = Engine("slow", {"sleep": 600}, logs), time.monotonic()
    with rejects("slow", error=EngineError):
        engine.reply(0.5)
    engine.stop()
    assert time.monotonic() - start_s < 30
    assert engine.process.returncode < 0


def test_what_an_engine_started_ends_with_it(logs):
    engine = Engine("parent", {"child": True}, logs)
    engine.reply(30)
    child = int((logs / "child.pid").read_text())
    engine.stop()
    until_s = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until_s


def test_draft_tokens_that_cost_nothing():
    config = type("Config", (), {"speculative_config": type("Speculative", (), {"num_speculative_tokens": 3})})
    assert NoDraft(config).propose([[7], [], [8, 9]], None, None, slot_mappings=None) == [[1] * 3, [], [1] * 3]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_vllm_item_runs_in_vllm_on_a_cpu(tmp_path):
    """`make test-engines`: versions, step costs, and the benchmark and certificate of a pair."""
    if PYTHON not in os.environ or not TARGET.is_dir():
        pytest.skip(f"{PYTHON} names no Python, or {TARGET} is not there: make test-engines")
    folders = {"target": TARGET, "out": tmp_path / "out", "keep": tmp_path / "keep"}
    words = ["--size", "tiny", *(word for name in folders for word in (f"--{name}", str(folders[name])))]
    assert main([*words, "--only", "vllm", "vllm_steps", "pair", "pair_certificate"]) == 0
    [file] = (tmp_path / "out").glob("*.json")
    stages = json.loads(file.read_text())["stages"]
    assert {stage["status"] for stage in stages.values()} == {"done"}
    steps = stages["vllm_steps"]["rows"]
    assert len(steps) == 10  # plain, and k = 1 and 2 with and without a draft, at two batch sizes
    assert all(row["step_ms"] > 0 and row["tokens_per_step"] >= 1 for row in steps)
    cells = [(row["method"], row["concurrency"], row["num_speculative_tokens"]) for row in stages["pair"]["rows"]]
    ways = ("plain decoding", 0), ("draft", 3), ("prompt lookup", 3)
    assert sorted(cells) == sorted((way, concurrency, k) for way, k in ways for concurrency in (1, 2))
    used, *findings = stages["pair_certificate"]["rows"]
    assert "prefix caching" in used["exercised"]
    failed = [row["law"] for row in findings if not row["holds"]]
    assert failed[0] == "enough"  # eight tokens
    assert all("sampled" in law for law in failed[1:])  # vLLM 0.32 on a CPU: docs/library_bugs.md
