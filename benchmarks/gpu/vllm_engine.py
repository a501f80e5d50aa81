"""vLLM engines, each in a process of its own: several start together, then each is measured while the others wait.

Starting an engine takes half a minute, mostly of one core; a measurement takes seconds and needs the GPU to itself. The
processes run `WIDEDRAFT_VLLM`, a Python that has vLLM (default: this one), and exchange one JSON object per line. This
module imports nothing else of the project, so that Python needs only vLLM.
"""

import json
import os
import re
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

PYTHON = "WIDEDRAFT_VLLM"
LOG_LINES = 12  # of an engine that failed, kept in the results
STOP_S = 15.0
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
POSITIONS = "num_accepted_tokens_per_pos"
# No network and no flashinfer; engines share the cores while they compile. Values of the caller take precedence.
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}

Row = dict[str, Any]


class EngineError(RuntimeError):
    """An engine did not start, or a measurement failed; the message ends with the last lines of its log."""


class NoDraft:
    """A `custom_class` proposer for vLLM whose draft tokens cost nothing, which leaves the verification step."""

    def __init__(self, vllm_config: Any) -> None:
        self.num_speculative_tokens = vllm_config.speculative_config.num_speculative_tokens

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_args: Any, **_kwargs: Any) -> list[list[int]]:
        """Draft token 1 at every position; no token for a request whose prompt is not prefilled yet."""
        return [[1] * self.num_speculative_tokens if ids else [] for ids in sampled_token_ids]

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing; vLLM calls it on every proposer."""


class Engine:
    """A vLLM engine that is starting or ready."""

    def __init__(self, name: str, kwargs: Mapping[str, Any], logs: Path) -> None:
        """Start a process with these arguments of `vllm.LLM`; `reply` waits for it."""
        self.name, self.is_ready, self.log = name, False, logs / (re.sub(r"[^\w.]+", "-", name) + ".log")
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [os.environ.get(PYTHON, sys.executable), "-m", "benchmarks.gpu.vllm_engine", json.dumps(dict(kwargs))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=ENVIRONMENT | os.environ | {"PYTHONPATH": os.pathsep.join(paths), "LOG": str(self.log)},
            )

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int, timeout_s: float) -> Row:
        """Decode exactly `new_tokens` tokens for each prompt; returns what the function `decode` does."""
        self.send({"prompts": prompts, "new_tokens": new_tokens})
        return self.reply(timeout_s)

    def send(self, request: Row | None) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self.failure("its process ended") from error

    def reply(self, timeout_s: float) -> Row:
        """The next reply; the first one, as soon as the engine is ready, is that of `engine_facts`.

        Raises:
            EngineError: If the engine failed, its process ended, or nothing comes in time.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], max(0.0, timeout_s))[0]:
            raise self.failure(f"no reply within {timeout_s:.0f} s")
        reply = json.loads(self.process.stdout.readline() or '{"error": "its process ended"}')
        if "error" in reply:
            raise self.failure(reply["error"])
        self.is_ready = True
        return reply

    def failure(self, reason: str) -> EngineError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return EngineError(f"{self.name}: {reason}. Log: {' | '.join(line.strip()[:300] for line in lines)}")

    def stop(self) -> None:
        """End the process, by force where it does not end by itself; nothing where it was stopped before."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return
        with self.process:  # closes the pipes and waits
            children = psutil.Process(self.process.pid).children(recursive=True)  # vLLM's engine core holds the GPU
            try:
                self.send(None)
                self.process.wait(STOP_S if self.is_ready else 0)
            except (EngineError, subprocess.TimeoutExpired):
                self.process.kill()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


@contextmanager
def running(cases: Mapping[str, Mapping[str, Any]], logs: Path) -> Iterator[dict[str, Engine]]:
    """Engines by name, started together and stopped together."""
    logs.mkdir(parents=True, exist_ok=True)
    engines = {name: Engine(name, kwargs, logs) for name, kwargs in cases.items()}
    try:
        yield engines
    finally:
        for engine in engines.values():
            engine.stop()


def main(kwargs: str) -> None:
    """Start an engine, and decode what standard input requests until that is null."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM prints to both
    try:
        from vllm import LLM

        start_s = time.monotonic()
        llm = LLM(disable_log_stats=False, enable_prefix_caching=False, **json.loads(kwargs))
        reply = {"start_s": round(time.monotonic() - start_s, 1)} | engine_facts(llm, Path(os.environ["LOG"]))
        replies.write(json.dumps(reply) + "\n")
        while (request := json.loads(sys.stdin.readline() or "null")) is not None:
            replies.write(json.dumps(decode(llm, **request)) + "\n")
    except Exception as error:  # the other process reports it and goes on with other engines
        traceback.print_exc()
        replies.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        sys.exit(1)


def engine_facts(llm: Any, log: Path) -> Row:
    """Version, CUDA graphs, scheduling, model runner and attention of an engine, by its config and its log."""
    from vllm import __version__

    config = llm.llm_engine.vllm_config
    text = log.read_text(encoding="utf-8", errors="replace")
    backend = re.search(r"Using (\w+) attention backend", text)
    version = re.search(r"Using FlashAttention version (\d)", text)
    return {
        "vllm": __version__,
        "cudagraph_mode": config.compilation_config.cudagraph_mode.name,
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "v2_model_runner": bool(config.use_v2_model_runner),
        "attention": backend and backend[1] + (f" {version[1]}" if version else ""),
    }


def decode(llm: Any, prompts: Sequence[Sequence[int]], new_tokens: int) -> Row:
    """Decode greedily. Returns seconds, tokens and the change of vLLM's counters.

    `decode_s` is from the first to the last token, prefill not included. `steps` is the mean number of verification
    steps per request or, without a draft, of forward passes after the first token. `load` is the host's load average.
    """
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
    before, start_s = counters(llm), time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - start_s
    spent = {name: value - before.get(name, 0) for name, value in counters(llm).items()}
    times, drafts = [output.metrics for output in outputs], spent.get("num_drafts", 0)
    return {
        "seconds": seconds,
        "decode_s": max(each.last_token_ts for each in times) - min(each.first_token_ts for each in times),
        "steps": drafts / len(outputs) if drafts else new_tokens - 1,
        "drafts": drafts,
        "accepted": spent.get("num_accepted_tokens", 0),
        "accepted_per_position": [spent[name] for name in sorted(spent) if name.startswith(POSITIONS)],
        "load": os.getloadavg()[0],
        "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
    }


def counters(llm: Any) -> dict[str, int]:
    """Counters of speculative decoding; of accepted tokens also by position."""
    found: dict[str, int] = {}
    for metric in llm.get_metrics():
        name = metric.name.removeprefix("vllm:spec_decode_")
        if name in COUNTERS:
            found[name] = metric.value
        elif name == POSITIONS:
            found |= {f"{POSITIONS}.{position:02}": value for position, value in enumerate(metric.values)}
    return found


if __name__ == "__main__":
    main(sys.argv[1])
