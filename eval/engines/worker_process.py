"""A process of eval/engines/worker.py in an engine's own environment, asked and answered in lines of JSON."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from architectures.errors import UserError

WORKER = Path(__file__).with_name("worker.py")
EXIT_S = 20  # for a worker to exit by itself once its input has ended
LINES_SHOWN = 12  # of a failed worker's output


class EngineLostError(UserError):
    """Raised if an engine exited, is unreachable or times out."""


class WorkerProcess:
    """Subprocess of eval/engines/worker.py that replies to each line of JSON with one.

    Args:
        arguments: Of the worker: its command, and what that takes.
        flag: That `python` was given with, for errors.

    Raises:
        UserError: If there is no such Python.
    """

    def __init__(
        self, python: Path | str, *arguments: str, flag: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.python = str(python)
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # until close()
        try:
            self.process = subprocess.Popen(
                [self.python, str(WORKER), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env=environment,
                encoding="utf-8",
            )
        except OSError as error:
            self.log.close()
            raise UserError(f"{flag}: {self.python} could not be run ({error.strerror}).") from error

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a message and print progress; EngineLostError with the last lines if it has exited."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):  # an empty line detects a worker that has exited
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        while line := self.process.stdout.readline():
            reply = json.loads(line)
            if "progress" not in reply:
                return reply
            print(reply["progress"], file=sys.stderr, flush=True)
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
