"""Processes that meet in torch's store: what they read, how they hear of a mistake, and whom they miss."""

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from torch.distributed import TCPStore

from architectures.sharing import Share
from distill import board as boards
from distill.board import MISTAKE, Pulse, StoreBoard
from distill.process import LostProcessError
from tests.rejections import rejects


class Stores:
    """Two clients of one server."""

    def __init__(self) -> None:
        how = {"wait_for_workers": False, "use_libuv": False}  # as distill.distributed.STORE
        self.server = TCPStore("127.0.0.1", 0, 2, is_master=True, **how)
        self.client = TCPStore("127.0.0.1", self.server.port, 2, is_master=False, **how)

    def boards(self) -> tuple[StoreBoard, StoreBoard]:
        return StoreBoard(self.server, 0, 2), StoreBoard(self.client, 1, 2)


KEPT: list[Stores] = []  # a store that is let go of closes its sockets later on, perhaps those of a newer one


@pytest.fixture
def stores() -> Stores:
    KEPT.append(Stores())
    return KEPT[-1]


def both(*works: Callable[[], object]) -> list[object]:
    """What two threads find out, at the same time."""
    found: dict[int, object] = {}

    def run(index: int) -> None:
        found[index] = works[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[index] for index in range(len(works))]


def test_values_are_exchanged_whatever_their_size(stores, monkeypatch):
    monkeypatch.setattr(boards, "PIECE_BYTES", 7)
    shares = [Share(index, 2, board) for index, board in enumerate(stores.boards())]
    for value in (b"", b"1234567", bytes(100)):
        assert both(*(partial(share.exchange, value) for share in shares)) == [[value, value]] * 2
    values = both(*(lambda share=share: share.exchange("of " + str(share.index)) for share in shares))
    assert values == [["of 0", "of 1"]] * 2


def test_who_waits_hears_of_a_mistake(stores):
    mine, theirs = stores.boards()
    theirs.print_user_error("data.seed must be")
    with rejects("data.seed"):
        mine.get("never said")
    assert mine.store.get(MISTAKE) == b"data.seed must be"


def test_who_waits_notices_a_process_that_says_nothing_any_more(stores, monkeypatch):
    monkeypatch.setattr(boards, "BEAT_S", 0.01)
    monkeypatch.setattr(boards, "SILENT_S", 0.05)
    mine, theirs = stores.boards()
    theirs.beat(1)
    with rejects(2, error=LostProcessError), Pulse(mine):
        mine.get("never said")


def test_a_process_that_works_for_long_is_waited_for(stores, monkeypatch):
    monkeypatch.setattr(boards, "BEAT_S", 0.01)
    monkeypatch.setattr(boards, "SILENT_S", 0.5)
    mine, theirs = stores.boards()

    def work_for_long() -> None:
        with Pulse(theirs):
            time.sleep(0.8)
            theirs.put("late", b"it is")

    def wait() -> bytes:
        with Pulse(mine):
            return mine.get("late")

    assert both(work_for_long, wait)[1] == b"it is"


def test_waiting_takes_no_core(stores):
    mine, theirs = stores.boards()
    before_s = time.process_time()

    def say_late() -> None:
        time.sleep(1)
        theirs.put("late", b"")

    both(lambda: mine.get("late"), say_late)
    assert time.process_time() - before_s < 0.2


def test_the_first_ends_when_all_have_what_they_ask_for(stores):
    mine, theirs = stores.boards()
    left: list[str] = []

    def leave(board: StoreBoard, wait_s: float) -> None:
        time.sleep(wait_s)
        left.append(f"{board.index} begins")
        board.leave()
        left.append(f"{board.index} has left")

    both(lambda: leave(mine, 0), lambda: leave(theirs, 0.3))
    assert left.index("0 has left") > left.index("1 begins")


def test_a_store_that_is_gone_is_a_lost_process(stores):
    mine, theirs = stores.boards()
    del stores.server, mine
    with pytest.raises(LostProcessError):
        theirs.get("other")
