"""Engines in environments of their own, with scripts in their place that reply as they would."""

import ast
import json
import sys
from typing import ClassVar

import pytest

from eval.engines import worker, worker_process
from eval.engines.runs import Counted, run_external
from eval.engines.worker_process import WORKER
from tests.rejections import rejects

PACKAGES = {"architectures", "distill", "eval", "widedraft"}
CONVERSATION = [{"role": "user", "content": "hi"}]


def run(engine, target, draft, **draft_settings):
    """Two prompt tokens, and four new ones."""
    request = {
        "target": str(target),
        "draft": str(draft),
        "conversations": [CONVERSATION],
        "is_chat": True,
        "num_speculative_tokens": 2,
        "max_new_tokens": 4,
        "max_model_len": 9,
        "dtype": "float32",
        "threads": 2,
        "seed": 17,
        "draft_settings": draft_settings,
    }
    return run_external(engine, sys.executable, request)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """stand_in(engine, response): the worker is a script that writes the response, and keeps the request."""

    def write(engine, response):
        script = tmp_path / "worker.py"
        script.write_text(
            "import json, sys\n"
            f"assert sys.argv[1:3] == ['certify', {engine!r}]\n"
            f"response = json.loads({json.dumps(json.dumps(response))})\n"
            f"open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.readline())\n"
            "print(json.dumps({'progress': '1 of 1'}))\n"
            "print(json.dumps(response))\n"
        )
        monkeypatch.setattr(worker_process, "WORKER", script)

    return write


def vllm_text(ids, accepted):
    counters = {"drafts": 2, "draft_tokens": 4, "accepted_tokens": sum(accepted), "accepted_tokens_per_pos": accepted}
    return {"prompt_ids": [1, 2], "ids": ids, "elapsed_s": 0.5, "counters": counters}


def test_vllms_counters_become_ours(stand_in, tmp_path):
    text = {"plain": vllm_text([3, 4, 5], [0, 0]), "drafted": vllm_text([3, 4, 5], [1, 0])}
    own = [vllm_text([], [2, 2])]
    stand_in("vllm", {"version": "0.32.0", "texts": [text], "own": own})
    done = run("vllm", tmp_path, tmp_path, use_heterogeneous_vocab=True)
    assert (done.version, done.texts[0].counted.by_position, done.own.accepted) == ("0.32.0", (1, 0), 4)
    assert '"use_heterogeneous_vocab": true' in done.command
    got = json.loads((tmp_path / "got").read_text())
    assert (got["max_model_len"], got["conversations"]) == (9, [CONVERSATION])


def test_llama_cpp_tells_no_positions_and_steps_follow_from_the_text(stand_in, tmp_path):
    plain = {"prompt_ids": [1], "ids": [3, 4, 5, 6], "elapsed_s": 0.5, "proposed": 0, "accepted": 0}
    drafted = {**plain, "proposed": 5, "accepted": 2}
    response = {"version": "1", "texts": [{"plain": plain, "drafted": drafted}], "own": [drafted] * 2}
    stand_in("llama.cpp", response)
    files = (tmp_path / "t-Q4_0.gguf", tmp_path / "d-F16.gguf")
    done = run("llama.cpp", *files)
    counted = done.texts[0].counted
    assert (counted.steps, counted.proposed, counted.accepted, counted.by_position) == (1, 5, 2, None)
    assert (done.own.steps, done.own.accepted) == (2, 4)
    assert done.dtype == "t-Q4_0 with d-F16"
    assert done.command.startswith("llama-server -m t-Q4_0.gguf -md d-F16.gguf --spec-type draft-simple")


def test_openvinos_steps_are_what_each_run_of_the_target_gave(stand_in, tmp_path):
    plain = {"prompt_ids": [1], "ids": [3, 4, 5, 6, 7, 8], "elapsed_s": 0.5, "given": []}
    drafted = {**plain, "given": [1, 3, 1, 1]}  # the prompt's token; two kept, none, and none with room for none
    text = {"plain": plain, "drafted": drafted}
    full = {**plain, "given": [1, 3, 2]}  # the last step has room for one proposal
    stand_in("openvino", {"version": "1", "texts": [text], "own": [full]})
    done = run("openvino", tmp_path, tmp_path)
    assert done.texts[0].counted == Counted(steps=3, proposed=3, accepted=2, by_position=(1, 1))
    assert done.own == Counted(steps=2, proposed=3, accepted=3, by_position=(2, 1))
    got = json.loads((tmp_path / "got").read_text())
    assert (got["dtype"], got["threads"]) == ("float32", 2)


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

    calls: ClassVar = []

    def __init__(self, request, draft):
        self.draft = draft
        self.calls.append(("open", draft))

    def decode(self, messages):
        self.calls.append((self.draft, messages))
        return {"draft": self.draft, "messages": messages}

    def close(self):
        self.calls.append(("close", self.draft))


@pytest.fixture
def answered(monkeypatch):
    """Twelve prompts answered by FakeEngine: the response, and every call."""
    monkeypatch.setattr(FakeEngine, "calls", [])
    request = {"target": "T", "draft": "D", "conversations": [f"prompt {each}" for each in range(12)], "seed": 17}
    return worker.decode_all(FakeEngine, request), FakeEngine.calls


def test_every_prompt_is_decoded_plain_and_drafted_and_by_the_target_itself(answered):
    response, _ = answered
    prompts = [f"prompt {each}" for each in range(12)]
    assert [text["plain"] for text in response["texts"]] == [{"draft": None, "messages": each} for each in prompts]
    assert [text["drafted"]["draft"] for text in response["texts"]] == ["D"] * 12
    assert response["own"] == [{"draft": "T", "messages": each} for each in prompts]


def test_turns_change_and_the_first_texts_are_not_timed(answered):
    _, calls = answered
    assert calls[:4] == [("open", None), ("open", "D"), (None, "prompt 0"), ("D", "prompt 0")]
    first = [calls[place][0] for place in range(4, 28, 2)]
    assert {None, "D"} == set(first)
    assert calls[28:31] == [("close", None), ("close", "D"), ("open", "T")]
    assert calls[-1] == ("close", "T")
