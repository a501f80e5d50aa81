"""Responses of engines are those of our own decoding, in the same shards; another model's are rejected."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from architectures.errors import UserError
from architectures.sharing import ALONE, Share
from eval.config import GenerateConfig
from eval.decoding.generate import write_traces
from eval.engines import external_generate
from eval.engines.external_generate import engine_part, responses_by, worker_environment
from eval.prompts import Prompt
from eval.responses import read_traces
from tests.eval.conftest import GREEDY
from tests.eval.engines.fake_server import FakeServer, served
from tests.rejections import rejects
from tests.sharing import by_processes

SETTINGS = replace(GREEDY, max_new_tokens=8, batch_size=4, shard_size=3)
SAMPLED = replace(SETTINGS, temperature=1.0, top_p=0.9, max_new_tokens=24)
SYSTEM = {"role": "system", "content": "Be short."}
PROMPTS = [
    *(Prompt(f"f:{i}", ({"role": "user", "content": f"say {i}"},)) for i in range(6)),
    Prompt("f:6", ({"role": "user", "content": "first"},), ("second", "third")),
    Prompt("f:7", (SYSTEM, {"role": "user", "content": '<tool_response>{"a": 1}</tool_response>'})),
]
MIXED = replace(SAMPLED, temperature=(0.0, 0.7))
NUM_RESPONSES = 10
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])


@pytest.fixture(scope="module")
def own_folder(target_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    write_traces(target_folder, PROMPTS, folder, SETTINGS)
    return folder


@pytest.fixture
def own(own_folder):
    return shards(own_folder)


@pytest.fixture(autouse=True)
def few_retries(monkeypatch):
    monkeypatch.setattr(external_generate, "MAX_RETRIES", 2)


def shards(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("train-*.jsonl"))}


def endpoint(*servers, **changes):
    settings = {"concurrency": 4, **changes}
    return GenerateConfig(engine="endpoint", urls=tuple(server.url for server in servers), **settings)


def write(target, out, config, settings=SETTINGS, share=ALONE):
    with responses_by(config) as kind:
        write_traces(target, PROMPTS, out, settings, generated_by=kind, share=share)


def rejected(target, out, config, settings=SETTINGS):
    with pytest.raises(UserError) as raised:
        write(target, out, config, settings)
    assert shards(out) == {}
    return str(raised.value)


@KINDS
def test_greedy_responses_are_the_bytes_of_our_own_decoding(target_folder, tmp_path, own, kind, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with served(FakeServer(target_folder, kind)) as first, served(FakeServer(target_folder, kind)) as second:
        write(target_folder, tmp_path, endpoint(first, second))
        assert first.keys | second.keys == {"Bearer secret"}
        assert len(first.requests) == len(second.requests) == NUM_RESPONSES / 2
        for settings in first.requests:  # what is left out a server takes from generation_config.json
            assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"} <= set(settings)
            assert settings["stop_token_ids"] == [2]
    assert shards(tmp_path) == own
    assert "0 of " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "settings", "count"), [("vllm", SETTINGS, 2), ("sglang", SAMPLED, 5), ("vllm", MIXED, 2)]
)
def test_several_processes_write_the_files_of_one(target_folder, tmp_path, kind, settings, count):
    settings, alone, together = replace(settings, max_new_tokens=8), tmp_path / "alone", tmp_path / "together"
    with served(FakeServer(target_folder, kind)) as server:
        write(target_folder, alone, endpoint(server), settings)
        by_processes(count, lambda share: write(target_folder, together, endpoint(server), settings, share))
    assert shards(together) == shards(alone)


def test_sglang_may_leave_the_stop_token_out(target_folder, tmp_path, own):
    def trim(response):
        if response["meta_info"]["finish_reason"]["type"] == "stop":
            response["output_ids"].pop()

    with served(FakeServer(target_folder, "sglang", tamper=trim)) as server:
        write(target_folder, tmp_path, endpoint(server))
    assert shards(tmp_path) == own


@pytest.mark.parametrize("end_ids", [{2}, set()], ids=["same", "none"])
def test_llama_cpp_stops_as_its_file_says(target_folder, tmp_path, own, end_ids):
    with served(FakeServer(target_folder, "llamacpp", end_ids=frozenset(end_ids))) as server:
        write(target_folder, tmp_path, endpoint(server))
        neutral = {"repeat_penalty": 1.0, "min_p": 0.0, "top_p": 1.0, "top_k": 0, "temperature": 0.0}
        assert all(neutral.items() <= settings.items() for settings in server.requests)
    assert shards(tmp_path) == own


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_text_without_token_ids_is_rejected(target_folder, tmp_path, kind):
    def remove(response):
        response.pop("output_ids", None)
        response.pop("tokens", None)
        for choice in response.get("choices", ()):
            del choice["token_ids"]

    with served(FakeServer(target_folder, kind, tamper=remove)) as server:
        assert server.url in rejected(target_folder, tmp_path, endpoint(server))


@pytest.mark.parametrize("settings", [replace(SETTINGS, max_new_tokens=16), SAMPLED], ids=["greedy", "sampled"])
def test_other_weights_are_rejected(target_folder, noisy_folder, tmp_path, settings):
    with served(FakeServer(noisy_folder)) as server:
        assert server.url in rejected(target_folder, tmp_path, endpoint(server), settings)


def test_another_temperature_is_rejected(target_folder, tmp_path):
    with served(FakeServer(target_folder, temperature=2.0)) as server:
        rejected(target_folder, tmp_path, endpoint(server), replace(SAMPLED, top_p=1.0, temperature=0.5))


def test_too_many_near_ties_are_rejected(target_folder, noisy_folder, tmp_path, monkeypatch):
    """As of quantised weights: each gap is small, and there are many."""
    monkeypatch.setattr(external_generate, "TIE_FACTOR", 1e9)
    with served(FakeServer(noisy_folder)) as server:
        rejected(target_folder, tmp_path, endpoint(server))


@pytest.mark.parametrize(
    "change",
    [
        lambda choice: choice["token_ids"].__setitem__(0, 264),  # beyond the vocabulary
        lambda choice: choice["token_ids"].pop(),
        lambda choice: choice["token_ids"].clear(),
        lambda choice: choice.update(finish_reason="stop", token_ids=[*choice["token_ids"][:-1], 5]),
        lambda choice: choice["token_ids"].__setitem__(0, 2),  # goes on after a stop token
    ],
)
def test_what_the_target_cannot_have_written_is_rejected(target_folder, tmp_path, change):
    with served(FakeServer(target_folder, tamper=lambda response: change(response["choices"][0]))) as server:
        assert server.url in rejected(target_folder, tmp_path, endpoint(server))


def test_a_busy_server_is_asked_again(target_folder, tmp_path, own):
    with served(FakeServer(target_folder, statuses=[503, 429])) as server:
        write(target_folder, tmp_path / "out", endpoint(server, concurrency=1))
        assert shards(tmp_path / "out") == own
        server.statuses = [400]
        assert f"f:0: {server.url}: HTTP 400" in rejected(
            target_folder, tmp_path / "other", endpoint(server, concurrency=1)
        )


def test_one_of_two_servers_may_die(target_folder, tmp_path, own, capsys):
    with served(FakeServer(target_folder, max_requests=2)) as first, served(FakeServer(target_folder)) as second:
        write(target_folder, tmp_path, endpoint(first, second))
        assert first.url in capsys.readouterr().err
    assert shards(tmp_path) == own


def test_a_run_goes_on_where_its_server_died(target_folder, tmp_path, own, monkeypatch):
    monkeypatch.setattr(external_generate, "BATCH_FACTOR", 1)
    with served(FakeServer(target_folder, max_requests=7)) as server, rejects(server.url):
        write(target_folder, tmp_path, endpoint(server, concurrency=1))
    kept = shards(tmp_path)
    assert 0 < len(kept) < len(own)
    with served(FakeServer(target_folder)) as server:
        write(target_folder, tmp_path, endpoint(server))
        assert len(server.requests) == NUM_RESPONSES - sum(rows.count(b"\n") for rows in kept.values())
    assert shards(tmp_path) == own


def test_what_a_server_must_be(target_folder, tmp_path):
    with served(FakeServer(target_folder, max_model_len=207)) as server:
        assert "208" in rejected(target_folder, tmp_path, endpoint(server))
    with served(FakeServer(target_folder, models=("tiny", "large"))) as server:
        assert "generate.model" in rejected(target_folder, tmp_path, endpoint(server))
        write(target_folder, tmp_path, endpoint(server, model="tiny"))
    assert server.url in rejected(target_folder, tmp_path / "gone", endpoint(server))


@pytest.fixture
def vllm(tmp_path, monkeypatch, target_folder, own_folder):
    """vllm(max_batches) is a recipe's section; the fake vLLM has our own responses."""
    package = tmp_path / "environment" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(Path(__file__).with_name("fake_vllm.py").read_text())
    (package / "platforms.py").write_text("class current_platform:\n    is_cpu = staticmethod(lambda: True)\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("FAKE_VLLM", str(tmp_path / "prepared.json"))
    responses = {json.dumps(trace.prompt_ids): trace.response_ids for trace in read_traces(own_folder, "train")}

    def config(max_batches=100, **changes):
        prepared = {"responses": responses, "max_batches": max_batches}
        (tmp_path / "prepared.json").write_text(json.dumps(prepared))
        return GenerateConfig(engine="vllm", python=sys.executable, **changes)

    return config


def test_vllm_generates_the_bytes_of_our_own_decoding(target_folder, tmp_path, own, vllm):
    loaded = tmp_path / "prepared.loaded"
    write(target_folder, tmp_path / "out", vllm())
    assert shards(tmp_path / "out") == own
    settings = {"dtype": "float32", "max_num_seqs": 64, "tensor_parallel_size": 1, "gpu_memory_utilization": 0.7}
    settings |= {"max_model_len": 208, "model": str(target_folder.resolve()), "generation_config": "vllm"}
    assert settings.items() <= json.loads(loaded.read_text()).items()
    loaded.unlink()
    write(target_folder, tmp_path / "out", vllm())
    assert not loaded.exists()  # nothing was missing


def test_vllm_that_ends_is_quoted_and_complete_shards_are_kept(target_folder, tmp_path, own, vllm, monkeypatch):
    monkeypatch.setattr(external_generate, "BATCH_FACTOR", 1)
    with rejects("out of memory"):
        write(target_folder, tmp_path / "out", vllm(max_batches=2, concurrency=3))
    assert len(shards(tmp_path / "out")) == 2
    assert shards(tmp_path / "out").items() <= own.items()
    assert "no such devices" in rejected(target_folder, tmp_path / "other", vllm(tensor_parallel=2))
    no_python = vllm().model_copy(update={"python": "/nowhere/python"})
    assert "generate.python" in rejected(target_folder, tmp_path / "other", no_python)


OF_8 = [Share(index, 8, board=object(), per_machine=8) for index in range(8)]  # pyright: ignore[reportArgumentType]
ON_2_MACHINES = [Share(index, 8, board=object(), per_machine=4) for index in range(8)]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("shares", "gpus", "tensor_parallel", "generating"),
    [
        (OF_8, 8, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        (OF_8, 8, 3, [0, 3]),  # two GPUs are left, too few for a third engine
        (OF_8, 8, 8, [0]),
        (ON_2_MACHINES, 4, 2, [0, 2, 4, 6]),
        (ON_2_MACHINES, 8, 8, [0, 4]),  # fewer processes than GPUs: one engine has all
        (OF_8, 0, 1, [0]),  # an engine on a CPU has all its cores
        (ON_2_MACHINES, 0, 1, [0, 4]),
    ],
)
def test_vllm_runs_once_for_every_group_of_gpus(shares, gpus, tensor_parallel, generating):
    config = GenerateConfig(engine="vllm", python="python", tensor_parallel=tensor_parallel)
    files = [Path(str(number)) for number in range(100)]
    parts = [engine_part(config, share, files, gpus=gpus) for share in shares]
    assert [index for index, part in enumerate(parts) if part] == generating
    assert sorted(file for part in parts for file in part) == sorted(files)


@pytest.mark.parametrize(
    ("visible", "expected"), [({}, "4,5"), ({"CUDA_VISIBLE_DEVICES": "9,8,7,6,5,4,3,GPU-2"}, "5,4")]
)
def test_a_worker_has_the_gpus_of_its_processes_and_is_none_of_them(visible, expected):
    launched = {"RANK": "4", "LOCAL_RANK": "4", "WORLD_SIZE": "8", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    ours = {"PATH": "/bin", "RANKED": "x", **launched, **visible}
    theirs = {"PATH": "/bin", "RANKED": "x", "CUDA_VISIBLE_DEVICES": expected}
    assert worker_environment(OF_8[4], 2, ours, gpus=8) == theirs
    assert worker_environment(Share(), 2, ours, gpus=8) == ours
