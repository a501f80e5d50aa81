"""A server that speaks as vLLM's, SGLang's or llama.cpp's does and generates with a tiny model of ours."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eval.decoding.sampling import Limits, Sampling
from eval.decoding.speculative import plain_decode
from eval.models import load_model


@cache
def loaded(folder: Any) -> Any:
    return load_model(folder, dtype="float32", device="cpu")


@cache  # most tests ask for the same texts, and a text follows from what was asked
def decoded_text(
    folder: Any, prompt: tuple[int, ...], limits: Limits, sampling: Sampling, seed: int
) -> tuple[list[int], bool]:
    """Token ids of a response, and whether a stop token ended it."""
    [text] = plain_decode(loaded(folder), [prompt], limits=limits, sampling=sampling, row_seeds=[seed])
    return list(text.token_ids), text.stopped


PATHS = {"vllm": "/v1/completions", "sglang": "/generate", "llamacpp": "/completion"}
LENGTHS = {"vllm": "max_tokens", "sglang": "max_new_tokens", "llamacpp": "n_predict"}


class GoneError(Exception):
    """The server breaks the connection off."""


@dataclass
class FakeServer:
    """What it serves, and how it goes wrong.

    Attributes:
        folder: Of the model.
        kind: "vllm", "sglang" or "llamacpp".
        end_ids: Where "llamacpp" stops, as its file says; the others stop where they are asked to.
        tamper: Changes a response before it is sent.
        max_requests: After these it breaks connections off.
        statuses: HTTP statuses of the first requests for responses.
        temperature: At which it draws, whatever is requested.
        k: Draft tokens per verification step, all accepted; 0 without a draft.
        requests: Bodies of all requests for responses.
        keys: Their Authorization headers.
    """

    folder: Any
    kind: str = "vllm"
    end_ids: frozenset[int] = frozenset({2})
    tamper: Callable[[dict[str, Any]], Any] = lambda _response: None
    max_requests: int = 10**6
    statuses: list[int] = field(default_factory=list)
    temperature: float | None = None
    max_model_len: int = 2048
    models: tuple[str, ...] = ("tiny",)
    k: int = 0
    steps: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    url: str = ""

    def __post_init__(self) -> None:
        self.lock, self.accepted = threading.Lock(), [0] * self.k
        loaded(self.folder)  # models are loaded by one thread at a time

    def page(self, path: str) -> dict[str, Any] | bytes | None:
        if path == "/metrics":
            return self.metrics().encode()
        model = {"object": "model", "created": 0, "owned_by": self.kind, "max_model_len": self.max_model_len}
        is_models = path == "/v1/models"
        return {"object": "list", "data": [{"id": name, **model} for name in self.models]} if is_models else None

    def stream(self, path: str, body: dict[str, Any]) -> bytes:
        """Events of a completion: its tokens, then their number."""
        assert path == "/v1/completions"
        with self.lock:
            self.requests.append(body)
            how = Limits(body["max_tokens"]), Sampling(body["temperature"]), body["seed"]
            ids, _ = decoded_text(self.folder, tuple(body["prompt"]), *how)
        with self.lock:
            for left in range(len(ids) - 1, 0, -self.k - 1) if self.k else ():
                self.accepted = [count + (position + 1 < left) for position, count in enumerate(self.accepted)]
                self.steps += 1
        head = {"id": "1", "object": "text_completion", "created": 0, "model": "tiny"}
        has_ids = body.get("return_token_ids", False)
        choices = [
            {"index": 0, "text": "", "finish_reason": None, **({"token_ids": [token]} if has_ids else {})}
            for token in ids
        ]
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids), "total_tokens": 0}
        chunks = [*({**head, "choices": [choice]} for choice in choices), {**head, "choices": [], "usage": usage}]
        return "".join(f"data: {chunk}\n\n" for chunk in [*map(json.dumps, chunks), "[DONE]"]).encode()

    def metrics(self) -> str:
        if self.kind == "sglang":
            return f'sglang:spec_verify_calls_total{{model_name="tiny"}} {self.steps}.0\n' if self.k else ""
        name = f"{self.kind}:spec_decode_num"
        lines = [f"# TYPE {name}_drafts_total counter", f'{name}_drafts_total{{engine="0"}} {self.steps}.0']
        for position, count in enumerate(self.accepted):
            lines.append(f'{name}_accepted_tokens_per_pos_total{{engine="0",position="{position}"}} {count}.0')
        return "".join(f"{line}\n" for line in lines) if self.k else ""

    def respond(self, path: str, body: dict[str, Any]) -> dict[str, Any] | bytes:
        if body.get("stream"):
            return self.stream(path, body)
        assert path == PATHS[self.kind]
        settings = body["sampling_params"] if self.kind == "sglang" else body
        with self.lock:
            self.requests.append(settings)
            if len(self.requests) > self.max_requests:
                raise GoneError
            prompt = body["input_ids"] if self.kind == "sglang" else body["prompt"]
            temperature = settings["temperature"] if self.temperature is None else self.temperature
            ids, is_stopped = decoded_text(
                self.folder,
                tuple(prompt),
                Limits(
                    settings[LENGTHS[self.kind]],
                    self.end_ids if self.kind == "llamacpp" else frozenset(settings["stop_token_ids"]),
                ),
                Sampling(temperature, settings["top_p"]),
                settings["sampling_seed" if self.kind == "sglang" else "seed"],
            )
        ids, reason = [*ids], "stop" if is_stopped else "length"
        if self.kind == "vllm":
            choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": reason, "token_ids": ids}
            response = {"id": "1", "object": "text_completion", "created": 0, "model": "tiny", "choices": [choice]}
        elif self.kind == "llamacpp":
            assert body["return_tokens"]
            response = {"tokens": ids, "stop_type": "eos" if is_stopped else "limit", "content": ""}
        else:
            ended = {"type": reason, **({"matched": ids[-1]} if is_stopped else {})}
            response = {"output_ids": ids, "meta_info": {"finish_reason": ended}}
        self.tamper(response)
        return response


@contextmanager
def served(server: FakeServer) -> Iterator[FakeServer]:
    """The server at an address of this machine, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            page = server.page(self.path)
            self.send(page, 404 if page is None else 200)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.keys.add(self.headers["Authorization"])
            if server.statuses:
                self.send({"error": "busy"}, server.statuses.pop(0))
                return
            try:
                self.send(server.respond(self.path, body))
            except GoneError:
                self.close_connection = True
                self.connection.close()

        def send(self, page: Any, status: int = 200) -> None:
            content = page if isinstance(page, bytes) else json.dumps(page).encode()
            self.send_response(status)
            is_text = isinstance(page, bytes)
            self.send_header("Content-Type", "text/event-stream" if is_text else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, ValueError):
                return  # the other end is gone, or we have broken off

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
