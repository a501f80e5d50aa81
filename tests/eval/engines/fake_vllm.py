"""Stands in for vLLM in a worker's environment: its responses are those that a test has prepared, by prompt."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.0.fake"
PREPARED = Path(os.environ.get("FAKE_VLLM", ""))  # {"responses": by prompt, "max_batches": it dies after these}


def SamplingParams(**settings: Any) -> dict[str, Any]:  # noqa: N802  # vLLM's name
    return settings


def output(prompt_ids: list[int], ids: list[int], reason: str, first_token_latency: float = 0.1) -> SimpleNamespace:
    """What vLLM's generate and chat return of a prompt: half a second from the first token to the last."""
    text = SimpleNamespace(token_ids=ids, finish_reason=reason)
    times = SimpleNamespace(first_token_latency=first_token_latency, first_token_ts=100.0, last_token_ts=100.5)
    return SimpleNamespace(prompt_token_ids=prompt_ids, outputs=[text], metrics=times)


class LLM:
    def __init__(self, **settings: Any) -> None:
        if settings["tensor_parallel_size"] > 1:
            sys.exit("no such devices")
        PREPARED.with_suffix(".loaded").write_text(json.dumps(settings))
        print("what vLLM prints is no response")
        self.prepared, self.num_batches = json.loads(PREPARED.read_text()), 0

    def generate(self, prompts: list[Any], params: list[dict[str, Any]], *, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        self.num_batches += 1
        if self.num_batches > self.prepared["max_batches"]:
            print("out of memory", file=sys.stderr)
            os._exit(3)
        responses = []
        for prompt, settings in zip(prompts, params, strict=True):
            ids = self.prepared["responses"][json.dumps(prompt["prompt_token_ids"])]
            reason = "stop" if ids[-1] in settings["stop_token_ids"] else "length"
            responses.append(output(prompt["prompt_token_ids"], ids, reason))
        return responses

    def get_metrics(self) -> list[Any]:
        return []
