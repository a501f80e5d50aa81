"""vLLM without a server: a worker of ours in vLLM's own environment, which writes all texts that it is asked for."""

import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import torch

from architectures.errors import UserError
from architectures.sharing import Share
from eval.answer_engines.clients.config import GenerateConfig
from eval.answer_engines.clients.exchange import Asked, EngineLostError, Reply, Served
from eval.answer_engines.clients.interfaces import sampling_words
from eval.engine_runs.worker import LINES_SHOWN

WORKER = Path(__file__).parents[2] / "engine_runs" / "workers" / "vllm_answers_worker.py"
VISIBLE = "CUDA_VISIBLE_DEVICES"
LAUNCHED = re.compile(r"((LOCAL|GROUP|ROLE|NODE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+")
GO_SECONDS = 20  # that a worker gets to end by itself, once its input has ended
Line = dict[str, Any]


@dataclass
class OfflineVllm:
    """A worker, and who waits for which of its texts.

    Attributes:
        process: Of the worker.
        served: What it says of itself.
        said: The file of what it prints.
        python: Of its environment, for messages.
    """

    process: subprocess.Popen[str]
    served: Served
    said: IO[str]
    python: str
    waiting: dict[str, SimpleQueue[Line | None]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_gone: bool = False

    @property
    def where(self) -> str:
        return f"vLLM of {self.python}"

    def ask(self, asked: Asked) -> Reply:
        """See exchange.Server."""
        box: SimpleQueue[Line | None] = SimpleQueue()
        with self.lock:
            name = str(len(self.waiting))
            self.waiting[name] = box
            if not self.is_gone:
                write_line(self.process, request(name, asked))
        told = None if self.is_gone else box.get()
        if told is None:
            raise self.lost()
        return Reply(tuple(told["token_ids"]), told["stopped"], told["text"], told["num_prompt_tokens"])

    def rendered(self, messages: Sequence[dict[str, str]]) -> None:
        """See exchange.Server: it has the target's own folder, and renders nothing."""

    def listen(self) -> None:
        """Hand each text to who waits for it, until the worker has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.waiting[told["id"]].put(told)
        with self.lock:
            self.is_gone = True
            for box in self.waiting.values():
                box.put(None)

    def lost(self) -> EngineLostError:
        return EngineLostError(f"vLLM ended ({self.python}). Mend what it said last:\n{last_words(self.said)}")


def write_line(process: subprocess.Popen[str], value: Line) -> None:
    """Tell the worker something; one that has ended is found out by its silence."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(value) + "\n")
        process.stdin.flush()
    except OSError:
        return


def request(name: str, asked: Asked) -> Line:
    """A text as the worker is asked for it."""
    how = {
        "max_tokens": asked.max_new_tokens,
        "stop_token_ids": list(asked.stop_ids),
        **({} if asked.sampling.is_greedy else {"seed": asked.seed}),
        **sampling_words(asked.sampling, all_ids=0),
    }
    return {"id": name, "prompt_ids": list(asked.prompt_ids), "how": how}


def last_words(said: IO[str]) -> str:
    said.seek(0)
    return "\n".join(said.read().splitlines()[-LINES_SHOWN:])


@contextmanager
def offline_vllm(
    target: Path, config: GenerateConfig, share: Share, *, dtype: str, longest: int
) -> Iterator[OfflineVllm]:
    """The target loaded in vLLM, for as long as the block lasts.

    Args:
        target: Its folder.
        config: Names the Python, and how the target is divided.
        share: Of the process, whose GPU is the first that the worker has.
        dtype: Number type.
        longest: Tokens of prompt and answer together at most.

    Raises:
        UserError: If there is no such Python.
        EngineLostError: If it has no vLLM, or that does not load the target; what it said last is told.
    """
    python = str(config.python)
    own = environment_of(share, config.tensor_parallel, os.environ, gpus=torch.cuda.device_count())
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        started(python, said, own) as process,
    ):
        first = {
            "target": str(target.resolve()),
            "dtype": dtype,
            "max_model_len": longest,
            "max_num_seqs": config.concurrency,
            "tensor_parallel": config.tensor_parallel,
            "gpu_memory_utilization": config.gpu_memory_utilization,
        }
        write_line(process, first)
        assert process.stdout is not None
        line = process.stdout.readline()
        version = json.loads(line)["version"] if line else ""
        engine = OfflineVllm(process, Served("vllm", version, longest), said, python)
        if not line:
            raise engine.lost()
        threading.Thread(target=engine.listen, daemon=True).start()
        yield engine


def environment_of(share: Share, tensor_parallel: int, ours: Mapping[str, str], *, gpus: int) -> dict[str, str]:
    """Variables of a worker: of several processes none that say who is who among them, and each other GPUs.

    Args:
        share: Of the process that starts it.
        tensor_parallel: GPUs of the worker.
        ours: Variables of that process.
        gpus: That it sees.
    """
    if share.count == 1:
        return dict(ours)
    own = {name: value for name, value in ours.items() if not LAUNCHED.fullmatch(name)}
    if gpus:
        visible = ours.get(VISIBLE, "").split(",") if ours.get(VISIBLE) else list(map(str, range(gpus)))
        first = share.index % share.per_machine
        own[VISIBLE] = ",".join(visible[first : first + tensor_parallel])
    return own


@contextmanager
def started(python: str, said: IO[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The worker's process; it has ended once the block has."""
    try:
        process = subprocess.Popen(
            [python, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment,
            encoding="utf-8",
        )
    except OSError as error:
        raise UserError(f"generate.python: {python} could not be run ({error.strerror}). Name that of vLLM.") from error
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Close the worker's input, which ends it; one that does not end in time is killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(GO_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
