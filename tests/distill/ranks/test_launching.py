"""Commands in several processes: how many are started, by which words, and which commands refuse to be."""

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from composer.utils import get_free_tcp_port

import widedraft
from architectures.errors import UserError
from architectures.sharing import ALONE
from distill import distributed
from distill.board import PIECE_BYTES, StoreBoard
from distill.distributed import joined, meeting_place, reject_differing, require_one_folder
from distill.process import LostProcessError
from tests.rejections import rejects
from tests.sharing import by_processes


@pytest.fixture
def launched(monkeypatch):
    """The programs that a command turned into; none is started."""
    programs: list[tuple[list[str], str]] = []

    def become(_: str, words: list[str], environment: dict[str, str]) -> None:
        programs.append((words, environment["PYTHONSAFEPATH"]))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    return programs


LAUNCHER = [sys.executable, "-m", "composer", "-n"]


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["run", "r.yaml", "--processes", "3", "seed=5"], ["3", "-m", "widedraft", "run", "r.yaml", "seed=5"]),
        (["generate", "--processes=2", "r.yaml"], ["2", "-m", "widedraft", "generate", "r.yaml"]),
        (["choose", "r.yaml", "--layers", "1", "2", "--processes", "2"],
         ["2", "-m", "widedraft", "choose", "r.yaml", "--layers", "1", "2"]),
    ],
)  # fmt: skip
def test_a_command_becomes_the_launcher_of_as_many_as_it_is_told(launched, words, given):
    with pytest.raises(SystemExit):
        widedraft.main(words)
    assert launched == [([*LAUNCHER, *given], "1")]


SHARED = ["prune", "generate", "cache", "eval", "choose", "run"]
RECIPE = """
run_name: r
run_dir: {folder}/run
target: {{path: {folder}/none, placement: {placement}}}
architecture: {{layers: 2, method: first_last}}
data: {{prompts: [{{path: {folder}/none.jsonl}}]}}
distill: {{teacher: {{source: cache}}}}
"""


@pytest.fixture
def recipe_of(tmp_path):
    """The file of a recipe whose target is held so."""

    def of(placement):
        file = tmp_path / f"{placement}.yaml"
        file.write_text(RECIPE.format(folder=tmp_path, placement=placement))
        return str(file)

    return of


@pytest.mark.parametrize("command", SHARED)
@pytest.mark.parametrize("placement", ["whole", "layers"])
def test_there_is_one_process_for_every_gpu(launched, monkeypatch, recipe_of, command, placement):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    words = [command, recipe_of(placement)]
    with pytest.raises(SystemExit):
        widedraft.main(words)
    assert launched == [([*LAUNCHER, "8", "-m", "widedraft", *words], "1")]


@pytest.mark.parametrize("command", SHARED)
def test_a_spread_target_has_all_gpus_for_one_process_unless_a_number_is_named(
    launched, monkeypatch, recipe_of, capsys, command
):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    words = [command, recipe_of("whole"), "target.placement=spread"]
    assert widedraft.main(words) == 2  # its target is not there
    out, err = capsys.readouterr()
    assert out.count("target.placement is spread: ") == 1
    assert "none" in err
    assert not launched
    with pytest.raises(SystemExit):
        widedraft.main([*words, "--processes", "2"])
    assert launched == [([*LAUNCHER, "2", "-m", "widedraft", *words], "1")]


def test_a_spread_target_of_no_recipe_has_them_too(launched, monkeypatch, capsys):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    words = ["eval", "--target", "none", "--draft", "none", "--prompts", "none"]
    assert widedraft.main([*words, "--target-placement", "spread"]) == 2
    assert "GPUs" in capsys.readouterr().out
    assert not launched
    with pytest.raises(SystemExit):
        widedraft.main(words)
    assert launched[0][0][:5] == [*LAUNCHER, "8"]


def test_a_recipe_that_is_wrong_is_told_before_processes_are_started(launched, monkeypatch, capsys):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    assert widedraft.main(["run", "missing.yaml"]) == 2
    assert "missing.yaml" in capsys.readouterr().err
    assert not launched


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "missing.yaml", "--processes", "1"],
        ["cache", "missing.yaml", "--verify"],
        ["eval", "--recorded", "missing", "--draft", "missing"],
        ["distill", "missing.yaml"],  # whose training has processes of its own
        ["check", "missing.yaml"],
    ],
)
def test_what_one_process_does_is_started_once(launched, monkeypatch, words, capsys):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    assert widedraft.main(words) == 2
    assert not launched
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("world", "words", "refused"),
    [
        (2, ["report", "r"], "2 processes"),
        (2, ["check", "r.yaml"], "widedraft check"),
        (2, ["cache", "r.yaml", "--verify"], "widedraft cache"),
        (2, ["run", "r.yaml", "--processes", "2"], "--processes"),
        (1, ["cache", "r.yaml", "--verify", "--processes", "2"], "--processes"),
        (1, ["eval", "--recorded", "a", "--draft", "b", "--processes", "2"], "--processes"),
        (1, ["run", "r.yaml", "--processes", "0"], "--processes"),
    ],
)
def test_what_processes_cannot_share_is_refused(launched, monkeypatch, capsys, world, words, refused):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    assert widedraft.main(words) == 2
    assert refused in capsys.readouterr().err
    assert not launched


def test_processes_that_differ_are_told_of_the_first_keys():
    same = {"seed": "17", "data.batch_size": "8"}
    reject_differing("recipe", [same, same, dict(same)])
    with rejects(0, 2, 3, "more", "seed", 17, 18):
        reject_differing("recipe", [same, same, {**same, "seed": "18", "more": "a" * 64}])


# Processes that do not come together: half an environment, a port that is taken, no one to meet

WHOLE = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500", "MASTER_ADDR": "127.0.0.1"}

STORES: list[StoreBoard] = []  # see KEPT of test_board.py


@pytest.fixture
def environment(monkeypatch):
    """environment(**changed) sets what a launcher sets; None is left out."""

    def put(**changed):
        for name, value in {**WHOLE, **changed}.items():
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"RANK": None}, "RANK WORLD_SIZE 2"),
        ({"RANK": "2"}, "RANK WORLD_SIZE 2"),
        ({"MASTER_PORT": "abc"}, "MASTER_PORT abc"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR"),
    ],
)
def test_half_an_environment_of_a_launcher_is_refused(environment, changed, named):
    environment(**changed)
    with rejects(*named.split()), joined():
        pass


def test_a_port_that_is_taken_is_said(environment):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # as torch's store listens
        taken.listen()
        port = taken.getsockname()[1]
        environment(MASTER_PORT=str(port))
        with rejects(port):
            meeting_place(0, 2)


def test_large_values_pass_through_the_store_that_they_meet_in(environment):
    """By libuv, torch's default, it lost connections in 7 of 12 trials with such values, and in 4 of 5 runs."""
    environment(MASTER_PORT=str(get_free_tcp_port()))
    with ThreadPoolExecutor(2) as threads:
        boards = [StoreBoard(store, index, 2) for index, store in enumerate(threads.map(meeting_place, (0, 1), (2, 2)))]
        STORES.extend(boards)
        for number in range(8):
            value = bytes([number]) * (3 * PIECE_BYTES)
            put = threads.submit(boards[0].put, str(number), value)
            assert boards[1].get(str(number)) == value
            put.result()


def test_nobody_came_is_no_mistake_of_the_recipe(environment, monkeypatch):
    """Kubernetes ends a job for good where a pod says 2, which is of mistakes; this one it has to start again."""
    monkeypatch.setattr(distributed, "MEETING_S", 0.2)
    environment(MASTER_PORT=str(get_free_tcp_port()))
    with rejects(0, 2, error=LostProcessError):
        meeting_place(0, 2)


def test_processes_that_see_one_folder_leave_nothing_in_it(tmp_path):
    by_processes(3, lambda share: require_one_folder(share, tmp_path))
    require_one_folder(ALONE, tmp_path / "absent")
    assert not list(tmp_path.iterdir())


def test_folders_of_the_same_name_on_two_machines_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "SEEN_S", 0.0)
    told = []

    def work(share):
        folder = tmp_path / ("other" if share.index == 2 else "first")
        folder.mkdir(exist_ok=True)
        with pytest.raises(UserError) as caught:
            require_one_folder(share, folder)
        told.append(str(caught.value))

    by_processes(3, work)
    assert len(told) == 3
    assert all("process 2 of" in each for each in told)
    assert not list(tmp_path.glob("*/*"))
