"""Stands in for vLLM in a worker's environment: its texts are those that a test has prepared, by prompt."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.0.fake"
PREPARED = "FAKE_VLLM"  # names the file: what may be loaded, texts by prompt, and how many are written before it dies


def SamplingParams(**how: Any) -> dict[str, Any]:  # noqa: N802  # vLLM's name
    return how


class LLM:
    """What is loaded is noted in the file's neighbour, for the test to read."""

    def __init__(self, target: str, **how: Any) -> None:
        self.path = Path(os.environ[PREPARED])
        self.prepared = json.loads(self.path.read_text())
        if how["tensor_parallel_size"] > 1:
            raise SystemExit("no such devices")
        self.path.with_suffix(".loaded").write_text(json.dumps({"target": target, **how}))
        print("what vLLM prints is no answer")
        self.llm_engine = self
        self.waiting: list[tuple[str, list[int], dict[str, Any]]] = []
        self.written = 0

    def add_request(self, name: str, prompt: dict[str, list[int]], how: dict[str, Any]) -> None:
        self.waiting.append((name, prompt["prompt_token_ids"], how))

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        """The latest request is answered first."""
        if self.written == self.prepared["dies_after"]:
            print("out of memory", file=sys.stderr)
            os._exit(3)
        name, prompt, how = self.waiting.pop()
        ids, text = self.prepared["texts"][json.dumps(prompt)][str(how["max_tokens"])]
        self.written += 1
        reason = "stop" if ids[-1] in how["stop_token_ids"] else "length"
        output = SimpleNamespace(token_ids=ids, text=text, finish_reason=reason)
        return [SimpleNamespace(finished=True, request_id=name, prompt_token_ids=prompt, outputs=[output])]
