"""A server that speaks as vLLM's or SGLang's does and decodes by a tiny model of ours; its faults can be ordered."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits
from eval.models.loading import load_model, load_tokenizer

Answer = dict[str, Any]


@dataclass
class FakeServer:
    """What it serves, and how it goes wrong.

    Attributes:
        folder: Of the model.
        kind: "vllm" or "sglang".
        tamper: Changes an answer before it is sent.
        before: Called with the number of texts asked for so far; may raise, sleep or change what is served.
        statuses: Sent in place of the first answers.
        context: Tokens that it says it has room for.
        names: Of the models that it serves.
        pages: Where SGLang says what it serves and how it was started.
        is_deterministic: Whether SGLang looks at seeds.
        temperature: At which it draws, whatever is asked for.
        asked: What it was asked for, text by text.
        prompt: The latest.
        is_back: For a test to note that it was gone.
    """

    folder: Any
    kind: str = "vllm"
    tamper: Callable[[Answer], Answer] = lambda answer: answer
    before: Callable[["FakeServer", int], None] = lambda _server, _number: None
    statuses: list[int] = field(default_factory=list)
    context: int = 2048
    names: tuple[str, ...] = ("tiny",)
    pages: tuple[str, str] = ("/model_info", "/server_info")
    is_deterministic: bool = False
    temperature: float | None = None
    asked: list[Answer] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    is_back: bool = False
    url: str = ""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.tokenizer = load_tokenizer(self.folder)
        self.serve(self.folder)

    def serve(self, folder: Any) -> None:
        """Serve other weights from now on."""
        self.model = load_model(folder, dtype="float32", device="cpu")

    def get(self, path: str) -> Answer | None:
        facts = {"version": "0.5.23", "max_req_input_len": self.context, "context_length": None}
        facts["enable_deterministic_inference"] = self.is_deterministic
        models = [{"id": name, "max_model_len": self.context} for name in self.names]
        pages = {
            "vllm": {"/version": {"version": "0.32.0"}, "/v1/models": {"data": models}},
            "sglang": dict(zip(self.pages, ({"model_path": self.names[0]}, facts), strict=True)),
        }
        return pages.get(self.kind, {}).get(path)

    def post(self, path: str, body: Answer) -> Answer | None:
        if (self.kind, path) == ("vllm", "/tokenize"):
            text = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=False)
            return {"tokens": list(self.tokenizer(text, add_special_tokens=False)["input_ids"])}
        if (self.kind, path) == ("vllm", "/v1/completions"):
            return self.tamper(self.completion(body))
        if (self.kind, path) == ("sglang", "/generate"):
            return self.tamper(self.generated(body))
        return None

    def completion(self, body: Answer) -> Answer:
        ids, stopped, text = self.decode(body["prompt"], body["max_tokens"], body, body.get("seed", 0))
        choice = {"text": text, "finish_reason": "stop" if stopped else "length"}
        told = {"token_ids": ids, "prompt_token_ids": body["prompt"]} if body.get("return_token_ids") else {}
        return {"choices": [{**choice, **told}]}

    def generated(self, body: Answer) -> Answer:
        how = body["sampling_params"]
        ids, stopped, text = self.decode(body["input_ids"], how["max_new_tokens"], how, how.get("sampling_seed", 0))
        ended = {"type": "stop", "matched": ids[-1]} if stopped else {"type": "length", "length": len(ids)}
        about = {"finish_reason": ended, "prompt_tokens": len(body["input_ids"])}
        return {"text": text, "output_ids": ids, "meta_info": about}

    def decode(self, prompt: list[int], most: int, how: Answer, seed: int) -> tuple[list[int], bool, str]:
        with self.lock:
            self.asked.append(how)
            self.prompt = prompt
            self.before(self, len(self.asked))
            limits = Limits(most, frozenset(how["stop_token_ids"]))
            sampling = Sampling(how["temperature"] if self.temperature is None else self.temperature, how["top_p"])
            [text] = plain_decode(self.model, [prompt], limits=limits, sampling=sampling, row_seeds=[seed])
        words = self.tokenizer.decode(list(text.token_ids), skip_special_tokens=True)
        return list(text.token_ids), text.stopped, words


class GoneError(Exception):
    """The server breaks off."""


@contextmanager
def served(server: FakeServer) -> Iterator[FakeServer]:
    """The server at an address of this machine, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # http.server's name
            self.send(server.get(self.path))

        def do_POST(self) -> None:  # likewise
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if server.statuses and self.path != "/tokenize":
                self.send({"error": "busy"}, server.statuses.pop(0))
                return
            try:
                self.send(server.post(self.path, body))
            except GoneError:
                self.close_connection = True
                self.connection.close()

        def send(self, page: Answer | None, status: int = 200) -> None:
            content = json.dumps(page).encode()
            self.send_response(status if page is not None else 404)
            self.send_header("Content-Length", str(len(content)))
            if status != 200:
                self.send_header("Retry-After", "3600")  # of which nothing is made
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
