"""--num-threads auto in every command that has threads: what it picked is used, said and written, or it is refused."""

import json

import pytest

import widedraft
from eval.latency import threads
from eval.records.evidence import ThreadStep

TRIED = (ThreadStep(threads=1, ms=9.0), ThreadStep(threads=2, ms=4.0))
SAID = "num_threads=auto: 2 threads, by the target's step (1 thread: 9 ms, 2 threads: 4 ms)"
COMMANDS = {
    "latency": ["--batch-sizes", 1, "--contexts", 8, "--lookaheads", 1, "--repeats", 6],
    "speed": ["--lookaheads", 1, "--num-prompts", 1, "--max-new-tokens", 4],
    "compare": ["--max-new-tokens", 4],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Two threads are picked without timing anything, and evidence is taken in a moment."""
    monkeypatch.setattr(threads, "tried_threads", lambda target, batch: TRIED)
    monkeypatch.setattr(threads, "VISITS", 1)
    monkeypatch.setattr(threads, "VISIT_S", 0.0)


@pytest.fixture
def prompts_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "say hello"}\n')
    return path


def run(command, *words):
    return widedraft.main([command, *map(str, words), "--num-threads=auto", "--dtype=float32"])


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_a_pair(command, target_folder, noisy_folder, prompts_file, tmp_path, capsys):
    out = tmp_path / "out.json"
    drafts = ["--draft" if command == "compare" else "--drafts", noisy_folder]
    kept = ["--rounds" if command == "compare" else "--out", out]
    words = ["--target", target_folder, *drafts, "--prompts", prompts_file, *COMMANDS[command], *kept]
    assert run(command, *words) == 0
    printed = capsys.readouterr().out
    assert SAID in printed
    if command == "compare":
        assert json.loads(out.read_text().splitlines()[0])["threads"] == 2
        return
    written = json.loads(out.read_text())
    assert written["machine"]["threads"] == written["evidence"]["threads"] == 2
    assert [step["threads"] for step in written["evidence"]["chosen_from"]] == [1, 2]
    assert "2 threads, picked by the target's step (1 thread: 9 ms, 2 threads: 4 ms)" in printed


def test_a_policy_is_tuned_with_what_was_picked(target_folder, noisy_folder, prompts_file, tmp_path, capsys):
    draft = tmp_path / "draft"
    draft.symlink_to(noisy_folder)
    words = ["--target", target_folder, "--draft", draft, "--prompts", prompts_file, "--max-new-tokens", 6]
    try:
        assert run("lookup", *words, "--temperatures", 0, "--lookaheads", 1) == 0
        assert json.loads((noisy_folder / "lookup_policy.json").read_text())["threads"] == 2
    finally:
        (noisy_folder / "lookup_policy.json").unlink(missing_ok=True)
    assert SAID in capsys.readouterr().out


def test_an_engine_has_threads_of_its_own(target_folder, noisy_folder, capsys):
    words = [noisy_folder, "--target", target_folder, "--engine", "transformers"]
    assert run("certify", *words) == 2
    assert "--num-threads auto picks by steps that PyTorch takes in this process" in capsys.readouterr().err


def test_recorded_answers_have_no_target_to_time(noisy_folder, tmp_path, capsys):
    (tmp_path / "answers.txt").write_text("tensor([[5, 6, 7]])\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "say hello"}\n')
    words = ["--recorded", tmp_path / "answers.txt", "--prompts", tmp_path / "prompts.jsonl", "--draft", noisy_folder]
    assert widedraft.main(["eval", *map(str, words), "--out", str(tmp_path / "out"), "eval.num_threads=auto"]) == 2
    assert "eval.num_threads=auto picks by steps of the target, which is not here" in capsys.readouterr().err
