"""vLLM offline: a worker process in vLLM's own environment generates batches of responses."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from architectures.errors import UserError
from architectures.sharing import Share
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Decoded, Limits
from eval.engines.config import GenerateConfig
from eval.engines.openai_client import sampling_fields

WORKER = Path(__file__).with_name("vllm_generate_worker.py")
LAUNCHER_VARIABLES = re.compile(r"((LOCAL|GROUP|ROLE|NODE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+")
EXIT_S = 20  # that a worker gets to end by itself, once its input has ended
LINES_SHOWN = 12  # of what a failed worker printed


class OfflineVllm:
    """vLLM with the target loaded.

    Args:
        target: Its folder.
        config: Section `generate`: the Python, and how the target is divided.
        share: Of this process, whose GPU is the worker's first.
        dtype: Of weights and arithmetic.
        max_model_len: Tokens of prompt and response together.

    Raises:
        UserError: If there is no such Python, or vLLM does not load the target.
    """

    def __init__(self, target: Path, config: GenerateConfig, share: Share, *, dtype: str, max_model_len: int):
        self.python = str(config.python)
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # until close()
        environment = worker_environment(share, config.tensor_parallel, os.environ, gpus=torch.cuda.device_count())
        try:
            self.process = subprocess.Popen(
                [self.python, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env=environment,
                encoding="utf-8",
            )
        except OSError as error:
            self.log.close()
            raise UserError(f"generate.python: {self.python} could not be run ({error.strerror}).") from error
        loaded = self.exchange(
            {
                "model": str(target.resolve()),
                "dtype": dtype,
                "max_model_len": max_model_len,
                "max_num_seqs": config.concurrency,
                "tensor_parallel_size": config.tensor_parallel,
                "gpu_memory_utilization": 0.7,  # the agreement check needs the rest
            }
        )
        self.name = f"vllm {loaded['version']}"

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], *, limits: Limits, sampling: Sampling
    ) -> Generator[Decoded]:
        """Responses in the order of the prompts, once vLLM has all of them."""
        settings = {
            "max_tokens": limits.max_new_tokens,
            "stop_token_ids": sorted(limits.stop_ids),
            "detokenize": False,
            **sampling_fields(sampling, no_top_k=0),
        }
        replies = self.exchange({"prompts": [list(ids) for ids in prompts], "seeds": list(seeds), "sampling": settings})
        for ids, is_stopped in replies["responses"]:
            yield Decoded(tuple(ids), (), 0.0, 0.0, stopped=is_stopped)

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What the worker replies; UserError with its last lines if it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):  # a worker that has ended: the next line says so
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            last = "\n".join(self.log.read().splitlines()[-LINES_SHOWN:])
            self.close()
            raise UserError(f"vLLM ended ({self.python}). Complete files are kept. Its last lines:\n{last}")
        return json.loads(line)

    def close(self) -> None:
        """End the worker: its input ends; one that does not end in time is killed."""
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


def worker_environment(share: Share, tensor_parallel: int, ours: Mapping[str, str], *, gpus: int) -> dict[str, str]:
    """Environment of a worker: without the variables of our launcher, with the GPUs from this process's own on."""
    if share.count == 1:
        return dict(ours)
    environment = {name: value for name, value in ours.items() if not LAUNCHER_VARIABLES.fullmatch(name)}
    if gpus:
        visible = (ours.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
        first = share.index % share.per_machine
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible[first : first + tensor_parallel])
    return environment
