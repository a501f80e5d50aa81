"""Requests answered in a process of their own while the draft learns, killed and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from distill.online.serving import DraftInbox, Journal, LiveRequests, requests_of
from distill.run import Run
from distill.train import train
from tests.distill.online.conftest import NUM_REQUESTS
from tests.rejections import rejects

ROOT = Path(__file__).parents[3]
LIVE = {"responses": "live"}
MOST_S = 200


def lines(recipe):
    """Records without what the clock says."""
    text = (Path(recipe.run_dir) / "online" / "rank0" / "records.jsonl").read_text()
    return [
        {key: value for key, value in json.loads(line).items() if key != "seconds"}
        for line in text.splitlines()
        if line.endswith("}")
    ]


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("warm")
def test_killed_while_it_serves_it_goes_on_as_if_it_had_not_been(make_online):
    """kill -9 of both processes: each request is answered once by the same draft, and the weights are the same."""
    straight, killed = (make_online(name, online=LIVE, save_interval="2ba") for name in ("straight", "killed"))
    train(straight)
    assert [line["request"] for line in lines(straight)] == list(range(NUM_REQUESTS))
    assert [line["updates"] for line in lines(straight)] == [i // 2 for i in range(NUM_REQUESTS)]
    kill_after(5, killed)
    served = len(lines(killed))
    assert 5 <= served < NUM_REQUESTS
    train(killed)
    assert lines(killed) == lines(straight)
    one, other = (Path(each.run_dir) / "draft" / "model.safetensors" for each in (straight, killed))
    assert one.read_bytes() == other.read_bytes()


def kill_after(count, recipe):
    """Train in a process group of its own, and kill it once so many requests are served."""
    words = [sys.executable, "-m", "distill.train", str(Path(recipe.run_dir) / "recipe.yaml")]
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
    folder, until = Path(recipe.run_dir) / "online" / "rank0" / "requests", time.monotonic() + MOST_S
    while len(list(folder.glob("*.safetensors"))) < count:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(("waits", "expected"), [(True, [0, 0, 1, 1, 3]), (False, [0, 1, 1, 1, 3])])
def test_a_request_waits_for_the_update_before_it_where_it_should(monkeypatch, waits, expected):
    """Two requests an update; the drafts of updates 1 to 3 are handed over at the times given."""
    monkeypatch.setattr("distill.online.serving.load_file", lambda path: {})
    monkeypatch.setattr("threading.Thread.start", lambda self: None)
    drafts = DraftInbox(torch.nn.Identity(), (0, Path("0")), own=2 if waits else None)
    found = [drafts.newest_for(0)]
    drafts.news.put((1, Path("1")))
    if waits:
        monkeypatch.setattr(drafts.news, "empty", lambda: True)  # nothing is taken up that is not needed
    found += [drafts.newest_for(1), drafts.newest_for(2), drafts.newest_for(3)]
    drafts.news.put((2, Path("2")))
    drafts.news.put((3, Path("3")))
    monkeypatch.undo()
    monkeypatch.setattr("distill.online.serving.load_file", lambda path: {})
    found.append(drafts.newest_for(4))
    assert found == expected


def test_nobody_speaks_any_more(monkeypatch):
    monkeypatch.setattr("distill.online.serving.load_file", lambda path: {})
    monkeypatch.setattr("threading.Thread.start", lambda self: None)
    drafts = DraftInbox(torch.nn.Identity(), (0, Path("0")), own=2)
    drafts.news.put(None)
    with pytest.raises(SystemExit):
        drafts.newest_for(2)


@pytest.mark.usefixtures("warm")
def test_what_serves_reads_the_recipe_that_trains(make_online):
    """And not what another command left in the run: overrides count."""
    recipe = make_online(online=LIVE, max_duration="1ba")
    (Path(recipe.run_dir) / "recipe.yaml").write_text("# Resolved by widedraft\nnonsense\n")
    train(recipe)
    assert len(lines(recipe)) >= 2


WAITS_FOR_EVER = """
import sys, time
from pathlib import Path
import torch
from distill.online import serving as worker
worker.load_file = lambda path: {}
drafts = worker.DraftInbox(torch.nn.Identity(), (0, Path("x")))
print("waiting", flush=True)
time.sleep(600)  # as in a followed file that nobody writes to
"""


@pytest.mark.usefixtures("warm")
def test_what_waits_for_a_request_ends_with_the_training():
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS_FOR_EVER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("code", [2, 0, -9])
def test_a_process_that_ended_without_a_word_is_told(tmp_path, code):
    words = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)" if code < 0 else f"raise SystemExit({code})"
    process = subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    requests = LiveRequests(Path("r.yaml"), Journal(tmp_path, 0, 1, 2), process=process)
    with process, rejects("r.yaml", code):
        requests.take(0)


def test_a_request_that_is_too_long_or_no_prompt_ends_what_serves_it(make_online, tmp_path):
    """Before it is answered, with its place and what to do."""
    recipe = make_online(online=LIVE)
    rows = ['{"prompt": "' + "x" * 40 + '"}', '{"prompt": 7}']
    for row, named in zip(rows, ["data.max_seq_len", "prompt"], strict=True):
        (tmp_path / "first.jsonl").write_text(row + "\n")
        with rejects(named):
            next(requests_of(Run.of(recipe), first=0, world=1))
