"""Exchange of values between the processes of one command, through torch's store, which rank 0 hosts.

A waiting process polls with sleeps, since the cores are needed for work. While it waits it also raises errors that
another process published, and detects processes that died silently.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from architectures.errors import UserError
from distill.process import LostProcessError

PIECE_BYTES = 2**22  # of a value: the store limits values to 8 MiB
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.2  # between two polls
BEAT_S = 5.0
SILENT_S = 180.0  # without a heartbeat, after which a process counts as lost
LAST_WORDS_S = 10.0  # rank 0 waits for the other processes, so that its store outlives their last requests
MISTAKE = "mistake"

Response = TypeVar("Response")


class StoreBoard:
    """Board (architectures.sharing) in torch's store, which all processes share."""

    def __init__(self, store: Store, index: int, count: int) -> None:
        self.store, self.index, self.count = PrefixStore("widedraft", store), index, count
        self.heard: dict[int, tuple[bytes, float]] = {}  # latest heartbeat of every process, and since when

    def put(self, name: str, value: bytes) -> None:
        """See Board."""
        pieces = [value[start : start + PIECE_BYTES] for start in range(0, len(value), PIECE_BYTES)]
        for number, piece in enumerate(pieces):
            call_store(self.store.set, f"{name}#{number}", piece)
        call_store(self.store.set, name, str(len(pieces)).encode())

    def get(self, name: str) -> bytes:
        """See Board.

        Raises:
            UserError: If another process published an error meanwhile.
            LostProcessError: If another process is gone.
        """
        pause_s, looked_s = FIRST_PAUSE_S, time.monotonic()
        while not self._has(name):
            if self._has(MISTAKE):
                raise UserError(self._read(MISTAKE).decode())
            if time.monotonic() - looked_s > BEAT_S:
                self._reject_silence()
                looked_s = time.monotonic()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return b"".join(map(self._read, self._pieces_of(name)))

    def drop(self, name: str) -> None:
        """See Board."""
        for each in [*self._pieces_of(name), name]:
            call_store(self.store.delete_key, each)

    def print_user_error(self, message: str) -> None:
        """Publish an error, which ends the other processes as soon as they wait."""
        self.store.set(MISTAKE, message)

    def leave(self) -> None:
        """Announce that this process is done; rank 0 waits up to LAST_WORDS_S for all. Ignores errors of the store."""
        until_s = time.monotonic() + LAST_WORDS_S
        try:
            left = self.store.add("left", 1)
            while self.index == 0 and left < self.count and time.monotonic() < until_s:
                time.sleep(FIRST_PAUSE_S * 10)
                left = self.store.add("left", 0)
        except torch.distributed.DistError:
            return

    def beat(self, number: int) -> None:
        self.store.set(f"beat/{self.index}", str(number))

    def _reject_silence(self) -> None:
        now_s = time.monotonic()
        for index in range(self.count):
            name = f"beat/{index}"
            beat = self._read(name) if self._has(name) else b""
            if index not in self.heard or self.heard[index][0] != beat:
                self.heard[index] = beat, now_s
            elif now_s - self.heard[index][1] > SILENT_S:
                raise LostProcessError(f"process {index} of {self.count} has not responded for {SILENT_S:.0f} s")

    def _pieces_of(self, name: str) -> list[str]:
        return [f"{name}#{number}" for number in range(int(self._read(name)))]

    def _has(self, name: str) -> bool:
        return call_store(self.store.check, [name])  # pyright: ignore[reportAttributeAccessIssue]

    def _read(self, name: str) -> bytes:
        return call_store(self.store.get, name)


def call_store(method: Callable[..., Response], *arguments: Any) -> Response:
    """Call a method of the store; raises LostProcessError if it is gone, and with it rank 0."""
    try:
        return method(*arguments)
    except torch.distributed.DistError as error:
        raise LostProcessError(str(error).splitlines()[0]) from error


class Pulse:
    """Sends a heartbeat every few seconds, from a thread."""

    def __init__(self, board: StoreBoard) -> None:
        self.board, self.ended = board, threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Pulse":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _beat(self) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            try:
                self.board.beat(number)
            except torch.distributed.DistError:
                return  # waiting calls report it
            self.ended.wait(BEAT_S)
