"""Engines in environments of their own, with scripts in their place that reply as they would."""

import ast
import json
import sys
from contextlib import closing
from typing import Any, ClassVar

import pytest

from eval.engines import worker, worker_process
from eval.engines.certificate import Counted
from eval.engines.runs import run_pair
from eval.engines.worker_process import WORKER, WorkerProcess
from tests.rejections import rejects

PACKAGES = {"architectures", "distill", "eval", "widedraft"}
CONVERSATION = [{"role": "user", "content": "hi"}]


REPLY = {"prompt_ids": [[1, 2]], "ids": [[3, 4, 5]], "first_s": [0.1], "last_s": [0.5], "elapsed_s": 0.5}
STAND_IN = """
import json, sys
assert sys.argv[1] == ENGINE
kinds = {}
for line in sys.stdin:
    message, reply = json.loads(line), "0.1"
    print(line, end="", file=open(GOT, "a"))
    if message["call"] == "open":
        target, draft = (message["arguments"][0][name] for name in ("target", "draft"))
        kinds[message["engine"]] = "plain" if draft is None else "own" if draft == target else "drafted"
    elif message["call"] == "decode":
        reply = REPLIES[kinds[message["engine"]]]
    print(json.dumps(reply), flush=True)
"""


def run(engine, target, draft, *, num_prompts=1, **changes):
    """Two prompt tokens, and four new ones."""
    request = worker.EngineRequest(
        target=str(target),
        draft=str(draft),
        is_chat=True,
        num_speculative_tokens=2,
        max_model_len=9,
        dtype="float32",
        threads=2,
        **changes,
    )
    with closing(WorkerProcess(sys.executable, engine, flag="--python")) as process:
        return run_pair(engine, process.open, request, [CONVERSATION] * num_prompts, max_new_tokens=4, seed=17)


def counts(steps, proposed, accepted, by_position=None):
    return {"steps": steps, "proposed": proposed, "accepted": accepted, "by_position": by_position}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """stand_in(engine, drafted, own): the worker is a script with these counters; returns the messages it got."""

    def write(engine, drafted, own):
        replies = {"plain": counts(0, 0, 0), "drafted": drafted, "own": own}
        given = {"REPLIES": {name: REPLY | each for name, each in replies.items()}, "ENGINE": engine}
        given["GOT"] = str(tmp_path / "got")
        script = tmp_path / "worker.py"
        script.write_text("".join(f"{name} = {value!r}\n" for name, value in given.items()) + STAND_IN)
        monkeypatch.setattr(worker_process, "WORKER", script)
        return lambda: [json.loads(line) for line in (tmp_path / "got").read_text().splitlines()]

    return write


def test_an_engines_counters_become_ours(stand_in, tmp_path):
    messages = stand_in("vllm", counts(2, 4, 1, [1, 0]), counts(2, 4, 4, [2, 2]))
    done = run("vllm", tmp_path / "t", tmp_path / "d", num_prompts=2, has_own_tokenizer=True)
    assert (done.version, done.texts[0].plain_s, done.texts[0].prompt_ids) == ("0.1", 0.5, (1, 2))
    assert done.texts[0].counted == Counted(steps=2, proposed=4, accepted=1, by_position=(1, 0))
    assert done.own == Counted(steps=4, proposed=8, accepted=8, by_position=(4, 4))
    assert '"use_heterogeneous_vocab": true' in done.command
    opened = [each["arguments"][0] for each in messages() if each["call"] == "open"]
    assert [(each["draft"], each["has_own_tokenizer"]) for each in opened[1:]] == [
        (str(tmp_path / "d"), True),
        (str(tmp_path / "t"), False),
    ]
    assert {(each["max_model_len"], each["dtype"], each["threads"]) for each in opened} == {(9, "float32", 2)}
    [asked] = {json.dumps(each["arguments"]) for each in messages() if each["call"] == "decode"}
    assert json.loads(asked) == [[CONVERSATION], [{"temperature": 0.0, "max_tokens": 4}]]


def test_llama_cpp_tells_no_positions_and_its_files_name_the_dtype(stand_in, tmp_path):
    stand_in("llama.cpp", counts(1, 5, 2), counts(1, 3, 2))
    done = run("llama.cpp", tmp_path / "t-Q4_0.gguf", tmp_path / "d-F16.gguf")
    assert done.texts[0].counted == Counted(steps=1, proposed=5, accepted=2, by_position=None)
    assert done.dtype == "t-Q4_0 with d-F16"
    assert done.command.startswith("llama-server -m t-Q4_0.gguf -md d-F16.gguf --spec-type draft-simple")


@pytest.mark.parametrize("last", ["raise SystemExit('no vllm here')", "print('no vllm here', file=sys.stderr)"])
def test_an_engine_that_ends_without_an_response_failed_and_its_last_words_are_told(tmp_path, monkeypatch, last):
    script = tmp_path / "worker.py"
    monkeypatch.setattr(worker_process, "WORKER", script)
    script.write_text(f"import sys; print('loading', file=sys.stderr); {last}")
    with rejects("no vllm here"):
        run("vllm", tmp_path, tmp_path)


def test_the_worker_imports_nothing_of_this_project():
    tree = ast.parse(WORKER.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in names} & PACKAGES
    neighbours = {path.stem for path in WORKER.parent.glob("*.py")}  # first on its import path
    assert not names & neighbours


class FakeEngine:
    """Says what it was opened with and asked, and keeps the order of everything."""

    version = "7"
    calls: ClassVar = []

    def __init__(self, request):
        self.draft = request.draft
        self.calls.append(("open", self.draft))

    def decode(self, prompts, sampling) -> Any:
        [prompt] = prompts
        self.calls.append((self.draft, prompt))
        return REPLY | {"ids": [[prompt, {None: 0, "D": 1, "T": 2}[self.draft]]]} | counts(1, 2, prompt, [prompt, 0])

    def close(self):
        self.calls.append(("close", self.draft))


@pytest.fixture
def answered(monkeypatch):
    """Twelve prompts answered by FakeEngine: the run, and every call."""
    monkeypatch.setattr(FakeEngine, "calls", [])
    request = worker.EngineRequest(target="T", draft="D", num_speculative_tokens=2, max_model_len=9, dtype="float32")
    run = run_pair("vllm", FakeEngine, request, range(12), max_new_tokens=4, seed=17)
    return run, FakeEngine.calls


def test_every_prompt_is_decoded_plain_and_drafted_and_by_the_target_itself(answered):
    run, calls = answered
    assert [text.plain_ids for text in run.texts] == [(each, 0) for each in range(12)]
    assert [text.drafted_ids for text in run.texts] == [(each, 1) for each in range(12)]
    assert [text.counted.accepted for text in run.texts] == [*range(12)]
    assert [prompt for draft, prompt in calls if draft == "T"] == [*range(12)]
    assert run.own == Counted(steps=12, proposed=24, accepted=66, by_position=(66, 0))


def test_turns_change_and_the_first_texts_are_not_timed(answered):
    _, calls = answered
    assert calls[:4] == [("open", None), ("open", "D"), (None, 0), ("D", 0)]
    first = [calls[place][0] for place in range(4, 28, 2)]
    assert {None, "D"} == set(first)
    assert calls[28:31] == [("close", None), ("close", "D"), ("open", "T")]
    assert calls[-1] == ("close", "T")
