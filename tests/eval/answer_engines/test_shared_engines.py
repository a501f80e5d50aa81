"""Engines under several processes: who asks, how much at once, and the files of one process."""

from dataclasses import replace

import pytest

from architectures.errors import UserError
from architectures.sharing import ALONE, Share
from eval.answer_engines.answerer import engine_asked
from eval.answer_engines.clients import endpoint
from eval.answer_engines.clients.config import Asker, GenerateConfig
from eval.answer_engines.clients.offline import environment_of
from eval.decoding.answering import write_traces
from tests.eval.answer_engines.fake_server import FakeServer, GoneError, served
from tests.eval.answer_engines.test_endpoint import PROMPTS, SAMPLED, SETTINGS, asked
from tests.sharing import by_processes

OF_8 = [Share(index, 8, board=object(), per_machine=8) for index in range(8)]  # pyright: ignore[reportArgumentType]
ON_2_MACHINES = [Share(index, 8, board=object(), per_machine=4) for index in range(8)]  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 0.0)


def vllm(tensor_parallel=1):
    return GenerateConfig(engine="vllm", python="python", tensor_parallel=tensor_parallel)


def servers(concurrency):
    return GenerateConfig(engine="endpoint", urls=("http://a",), concurrency=concurrency)


@pytest.mark.parametrize("shares", [OF_8, ON_2_MACHINES])
@pytest.mark.parametrize("concurrency", [3, 8, 64, 65, 71])
def test_servers_are_asked_as_much_by_all_processes_as_by_one(shares, concurrency):
    askers = [servers(concurrency).asker(share, gpus=8) for share in shares]
    assert sum(one.at_once for one in askers if one.number is not None) == concurrency
    assert all(one.at_once for one in askers)
    shared_out_once(askers)


def shared_out_once(askers):
    units = list(range(100))
    assert sorted(unit for one in askers for unit in one.mine(units)) == units


@pytest.mark.parametrize(
    ("shares", "gpus", "tensor_parallel", "asking"),
    [
        (OF_8, 8, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        (OF_8, 8, 2, [0, 2, 4, 6]),
        (OF_8, 8, 3, [0, 3]),  # two GPUs are left, too few for a third engine
        (OF_8, 8, 8, [0]),
        (ON_2_MACHINES, 4, 2, [0, 2, 4, 6]),
        (ON_2_MACHINES, 4, 4, [0, 4]),
        (ON_2_MACHINES, 8, 8, [0, 4]),  # fewer processes than GPUs: one engine has all
        (OF_8, 0, 1, [0]),  # an engine on a processor has all its cores
        (ON_2_MACHINES, 0, 1, [0, 4]),
    ],
)
def test_as_many_processes_start_vllm_as_there_are_groups_of_gpus(shares, gpus, tensor_parallel, asking):
    askers = [vllm(tensor_parallel).asker(share, gpus=gpus) for share in shares]
    assert [index for index, one in enumerate(askers) if one.number is not None] == asking
    assert {(one.of, one.at_once) for one in askers} == {(len(asking), 64)}
    shared_out_once(askers)


def test_one_process_asks_for_everything():
    for config in (servers(5), vllm()):
        assert config.asker(Share(), gpus=8) == Asker(0, 1, config.concurrency)


LAUNCHED = {"RANK": "4", "LOCAL_RANK": "4", "WORLD_SIZE": "8", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}


@pytest.mark.parametrize(
    ("visible", "expected"), [({}, "4,5"), ({"CUDA_VISIBLE_DEVICES": "9,8,7,6,5,4,3,GPU-2"}, "5,4")]
)
def test_a_worker_has_the_gpus_of_its_processes_and_is_none_of_them(visible, expected):
    ours = {"PATH": "/bin", "RANKED": "x", **LAUNCHED, **visible}
    theirs = {"PATH": "/bin", "RANKED": "x", "CUDA_VISIBLE_DEVICES": expected}
    assert environment_of(OF_8[4], 2, ours, gpus=8) == theirs
    assert environment_of(Share(), 2, ours, gpus=8) == ours


def answer_together(count, target, out, config, settings=SETTINGS):
    def work(share):
        with engine_asked(config) as kind:
            write_traces(target, PROMPTS, out, settings, answered_by=kind, share=share)

    by_processes(count, work) if count > 1 else work(ALONE)


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("settings", [SETTINGS, replace(SAMPLED, max_new_tokens=8)], ids=["greedy", "sampled"])
def test_several_processes_write_the_files_of_one(target_folder, tmp_path, kind, settings, capsys):
    with served(FakeServer(target_folder, kind, is_deterministic=True)) as server:
        config = asked(server, checked=1.0)
        answer_together(1, target_folder, tmp_path / "alone", config, settings)
        alone = capsys.readouterr().err.splitlines()[-2]
        for count in (2, 5):  # there are three shards
            answer_together(count, target_folder, tmp_path / str(count), config, settings)
            assert files(tmp_path / str(count)) == files(tmp_path / "alone")
            told = capsys.readouterr().err
            assert alone in told
    assert ": 10 answers by " in alone


def test_what_all_processes_keep_of_a_lost_server_is_told_and_nothing_of_it_asked_again(target_folder, tmp_path):
    """The first process loses it in the last shard, while the other writes on."""

    def dies(server, _number):
        if not server.is_back and server.asked[-1]["max_tokens"] == SETTINGS.max_new_tokens:
            server.is_back = "tool_response" in server.tokenizer.decode(server.prompt)
            if server.is_back:
                raise GoneError

    out = tmp_path / "out"
    with served(FakeServer(target_folder)) as server:
        config = asked(server)
        answer_together(1, target_folder, tmp_path / "alone", config)
    with served(FakeServer(target_folder, before=dies)) as server:
        config = asked(server, retries=0).model_copy(update={"concurrency": 2})
        with pytest.raises(UserError) as raised:
            answer_together(2, target_folder, out, config)
        assert str(raised.value).startswith(f"{server.url}: no connection (ProtocolError), asked once. ")
        assert "\n2 of the 3 shards of train answers that were missing are kept in " in str(raised.value)
        server.asked.clear()
        answer_together(3, target_folder, out, config)
        assert len(server.asked) == 4 + 2  # a probe before and one behind
    assert files(out) == files(tmp_path / "alone")
