"""Processes that do not come together: whose environment is half of one, whose port is taken, whom nobody meets."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from composer.utils import get_free_tcp_port

from architectures.errors import UserError
from architectures.sharing import ALONE
from distill import distributed
from distill.board import PIECE_BYTES, StoreBoard
from distill.distributed import joined, meeting_place, require_one_folder
from distill.process import LostProcessError
from tests.rejections import rejects
from tests.sharing import by_processes

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
