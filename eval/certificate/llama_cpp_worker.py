"""Runs in an environment of its own that has xllamacpp, llama.cpp's own server as a Python package.

    PYTHON_OF_XLLAMACPP llama_cpp_worker.py REQUEST.json ANSWER.json

The request names the GGUF files, the lookahead and the conversations; the answer is what
eval.certificate.llama_cpp_engine makes a record of. The server renders the conversations by the template of the
target's own file.
"""

import json
import random
import sys
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    plain, drafted = (open_server(request, draft) for draft in (None, request["draft"]))
    prompts = [prompt_ids(plain, request, messages) for messages in request["conversations"]]
    for server in (plain, drafted):
        decode(server, request, prompts[0])  # before anything is timed
    order, texts = random.Random(request["seed"]), []  # noqa: S311  # no secret
    for prompt in prompts:
        found = {}
        for name in order.sample(["plain", "drafted"], 2):
            found[name] = decode(plain if name == "plain" else drafted, request, prompt)
        texts.append({"prompt_ids": prompt, **found})
        print(f"{len(texts)} of {len(prompts)} prompts", file=sys.stderr, flush=True)
    own = open_server(request, request["target"])
    answer = {
        "version": f"xllamacpp {version('xllamacpp')}",
        "texts": texts,
        "own": [decode(own, request, prompt) for prompt in prompts],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


def open_server(request: dict[str, Any], draft: str | None) -> Any:
    """A server of the target, with a draft or without; it answers one request at a time."""
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
    return xllamacpp.Server(params)


def ask(server: Any, path: str, asked: dict[str, Any]) -> dict[str, Any]:
    """One request of the server's own interface."""
    address = f"{server.listening_address}/{path}"
    posted = urllib.request.Request(  # noqa: S310  # its own server's
        address if "://" in address else f"http://{address}",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(posted, timeout=600) as answered:  # noqa: S310
        return json.loads(answered.read())


def prompt_ids(server: Any, request: dict[str, Any], messages: list[dict[str, str]]) -> list[int]:
    """A conversation as the server reads it."""
    text = messages[0]["content"]
    if request["is_chat"]:
        text = ask(server, "apply-template", {"messages": messages})["prompt"]
    return ask(server, "tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]


def decode(server: Any, request: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
    """One greedy text, its seconds and counters."""
    asked = {
        "prompt": prompt,
        "n_predict": request["max_new_tokens"],
        "temperature": 0,
        "cache_prompt": False,
        "return_tokens": True,
    }
    start_s = time.perf_counter()
    answer = ask(server, "completion", asked)
    elapsed_s = time.perf_counter() - start_s
    timings = answer["timings"]
    return {
        "ids": answer["tokens"],
        "elapsed_s": elapsed_s,
        "proposed": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
    }


if __name__ == "__main__":
    main()
