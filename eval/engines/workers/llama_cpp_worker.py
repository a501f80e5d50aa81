"""Runs in an environment of its own that has xllamacpp, llama.cpp's own server as a Python package.

    PYTHON_OF_XLLAMACPP llama_cpp_worker.py REQUEST.json ANSWER.json

The request names the GGUF files, the lookahead and the conversations; the answer is what
eval.engines.runs makes a record of. The server renders the conversations by the template of the
target's own file.
"""

import json
import time
import urllib.request
from importlib.metadata import version
from typing import Any

from turns import answer_request


class LlamaServer:
    """llama.cpp's server with one target, and a draft or none."""

    def __init__(self, request: dict[str, Any], draft: str | None) -> None:
        import xllamacpp  # pyright: ignore[reportMissingImports]  # of its own environment

        params = xllamacpp.CommonParams()
        params.model.path = request["target"]
        params.n_ctx, params.n_parallel, params.n_gpu_layers = request["max_model_len"], 1, 0
        params.cpuparams.n_threads = request["threads"]
        params.port, params.verbosity = 0, 0
        if draft is not None:
            asked = params.speculative.draft
            asked.mparams.path, asked.n_max, asked.n_min, asked.p_min = draft, request["lookahead"], 0, 0.0
            asked.cpuparams.n_threads = request["threads"]
            params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        self.request = request
        self.server = xllamacpp.Server(params)

    def decode(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """One greedy text, its seconds and counters."""
        prompt = self.prompt_ids(messages)
        asked = {
            "prompt": prompt,
            "n_predict": self.request["max_new_tokens"],
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
        }
        start_s = time.perf_counter()
        answer = self.ask("completion", asked)
        elapsed_s = time.perf_counter() - start_s
        return {
            "prompt_ids": prompt,
            "ids": answer["tokens"],
            "elapsed_s": elapsed_s,
            "proposed": answer["timings"].get("draft_n", 0),
            "accepted": answer["timings"].get("draft_n_accepted", 0),
        }

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """A conversation as the server reads it."""
        text = messages[0]["content"]
        if self.request["is_chat"]:
            text = self.ask("apply-template", {"messages": messages})["prompt"]
        return self.ask("tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

    def ask(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """One request of the server's own interface."""
        address = f"{self.server.listening_address}/{path}"
        posted = urllib.request.Request(  # noqa: S310  # its own server's
            address if "://" in address else f"http://{address}",
            data=json.dumps(asked).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(posted, timeout=600) as answered:  # noqa: S310
            return json.loads(answered.read())

    def close(self) -> None:
        del self.server


if __name__ == "__main__":
    answer_request(LlamaServer, version=f"xllamacpp {version('xllamacpp')}")
