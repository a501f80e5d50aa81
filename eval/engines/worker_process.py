"""Engines of eval/engines/worker.py in a process of their own environment."""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from eval.engines.worker import EngineRequest, Reply

WORKER = Path(__file__).with_name("worker.py")
EXIT_S = 20  # for a worker to exit by itself once its input has ended
LINES_SHOWN = 12  # of a failed worker's output


class EngineLostError(UserError):
    """Raised if an engine exited, is unreachable or times out."""


class WorkerProcess:
    """Subprocess of eval/engines/worker.py.

    Args:
        flag: That `python` was given with, for errors.

    Raises:
        UserError: If there is no such Python.
    """

    def __init__(
        self, python: Path | str, engine: str, *, flag: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.python, self.numbers = str(python), count()
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # until close()
        try:
            self.process = subprocess.Popen(
                [self.python, str(WORKER), engine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env=environment,
                encoding="utf-8",
            )
        except OSError as error:
            self.log.close()
            raise UserError(f"{flag}: {self.python} could not be run ({error.strerror}).") from error

    def open(self, request: EngineRequest) -> "RemoteEngine":
        number = next(self.numbers)
        return RemoteEngine(self, number, version=self.call(number, "open", asdict(request)))

    def call(self, number: int, name: str, *arguments: Any) -> Any:
        """Return what a call of an engine returns; EngineLostError with the last lines if the worker has exited."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):  # an empty line detects a worker that has exited
            self.process.stdin.write(json.dumps({"engine": number, "call": name, "arguments": arguments}) + "\n")
            self.process.stdin.flush()
        if line := self.process.stdout.readline():
            return json.loads(line)
        self.log.seek(0)
        last = "\n".join(self.log.read().splitlines()[-LINES_SHOWN:])
        self.close()
        raise EngineLostError(f"The engine exited ({self.python}). Its last output:\n{last}")

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


@dataclass(frozen=True)
class RemoteEngine:
    """An engine of a worker.

    Attributes:
        version: Of its package.
    """

    worker: WorkerProcess
    number: int
    version: str

    def decode(self, prompts: Sequence[Any], sampling: Sequence[Mapping[str, Any]]) -> Reply:
        return self.worker.call(self.number, "decode", prompts, sampling)

    def features(self) -> dict[str, bool]:
        """Return what the engine has used so far, by name."""
        return self.worker.call(self.number, "features")

    def close(self) -> None:
        self.worker.call(self.number, "close")
