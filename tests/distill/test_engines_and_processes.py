"""Two processes whose answers servers write: the files of one, and what is kept where a process or a server dies."""

import json

import pytest

import widedraft
from tests.distill.test_several_processes import contents, launch
from tests.eval.answer_engines.fake_server import FakeServer, GoneError, served

ANSWERS = 20
LOSING_ONE = """
import os, signal, sys
from eval.answer_engines import window
import widedraft

write, written = window.write_shard, []

def die(path, rows):
    write(path, rows)
    written.append(path)
    if os.environ["RANK"] == "1" and len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

window.write_shard = die
sys.exit(widedraft.main(sys.argv[1:]))
"""


@pytest.fixture
def recipe(tiny_target, tmp_path):
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "recipe.yaml"
    prompts.write_text("".join(json.dumps({"prompt": f"What comes after {i}?"}) + "\n" for i in range(ANSWERS)))
    file.write_text(
        f"run_name: tiny\nrun_dir: {tmp_path / 'run'}\ntarget: {{path: {tiny_target}, dtype: float32}}\n"
        "architecture: {layers: 2, method: first_last}\n"
        f"data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 4, max_new_tokens: 8, max_seq_len: 128, "
        "shard_size: 3}\ndistill: {max_duration: 2ep, global_train_batch_size: 4, precision: fp32}\n"
        "generate: {engine: endpoint, urls: ['http://127.0.0.1:1'], probe_interval: 3, retries: 0}\n"
        "eval: {num_prompts: 2, policy_prompts: 2, max_new_tokens: 8, dtype: float32}\n"
    )
    return file


def asking(server, concurrency=4):
    return f"generate.urls=[{server.url}]", f"generate.concurrency={concurrency}"


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_two_processes_write_the_files_of_one_though_a_server_and_a_process_die(recipe, tiny_target, tmp_path):
    run = tmp_path / "run"
    with served(FakeServer(tiny_target)) as server:
        assert widedraft.main(["generate", str(recipe), *asking(server)]) == 0
    alone = contents(run, "data")
    run.rename(tmp_path / "alone")

    def dies(server, number):
        if number > 14:
            raise GoneError

    with served(FakeServer(tiny_target, before=dies)) as server:
        lost = launch("generate", str(recipe), *asking(server, concurrency=2))
    assert lost.returncode == 2, lost.stderr
    said = lost.stdout + lost.stderr
    assert said.count("no connection (ProtocolError), asked once. Start the server again") == 1
    assert said.count(" that were missing are kept in ") == 1
    assert "Traceback" not in said
    kept = {path: path.stat().st_mtime_ns for path in (run / "data").glob("*-*.jsonl")}
    assert kept

    (tmp_path / "losing.py").write_text(LOSING_ONE)
    with served(FakeServer(tiny_target)) as server:
        killed = launch("generate", str(recipe), *asking(server), program=(str(tmp_path / "losing.py"),))
        assert killed.returncode not in (0, 2)
        assert killed.stderr.count("Run the same command again: what was finished is kept, and the rest is made.") == 1
        more = {path: path.stat().st_mtime_ns for path in (run / "data").glob("*-*.jsonl")}
        assert kept.items() <= more.items()
        assert len(more) >= len(kept) + 2
        server.asked.clear()
        finished = launch("generate", str(recipe), *asking(server))
        assert finished.returncode == 0, finished.stderr
        probes = sum(how["max_tokens"] > 8 for how in server.asked)
    missing = ANSWERS - sum(len(path.read_text().splitlines()) for path in more)
    assert len(server.asked) - probes == missing
    assert {path: path.stat().st_mtime_ns for path in more} == more
    assert contents(run, "data") == alone
