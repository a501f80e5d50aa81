"""A stand-in of the Hugging Face hub: its HTTP interface on 127.0.0.1, over a store, with failures on purpose.

with HubStandIn({"hf_writer": {"org"}}) as hub:
    hub.failing["commit"] = 500
    ...  # clients as in tests/hub/clients.py, or HfApi(endpoint=hub.endpoint)
    hub.store.repositories["org/name"].files_at("main")
"""

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from tests.hub.routes import ROUTES, Reply, Request, Response
from tests.hub.store import Refusal, Store


class HubStandIn:
    """A hub that listens while the context lasts.

    Attributes:
        store: What it keeps.
        failing: The status that is sent in place of a reply, by the name of the request.
    """

    def __init__(self, owners: dict[str, set[str]]):
        self.store = Store(owners)
        self.failing, self.lock = dict[str, int](), threading.RLock()
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.hub = self
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "HubStandIn":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.hang_up()
        self.server.server_close()
        self.thread.join()


class Server(ThreadingHTTPServer):
    """Knows its hub and its open connections, so that none outlives it."""

    hub: HubStandIn
    daemon_threads = False  # server_close waits for them

    def __init__(self, *arguments: Any):
        self.open: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news."""

    def hang_up(self) -> None:
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """Reads a request and sends the reply, or the failure that is planned."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def hub(self) -> HubStandIn:
        return cast("Server", self.server).hub

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the base class's name
        """Tests read what clients say."""

    def do_GET(self) -> None:
        self.respond()

    do_HEAD = do_POST = do_PUT = do_GET

    def respond(self) -> None:
        name, response, groups = self.find()
        request = Request(
            method=self.command,
            url=self.path,
            endpoint=self.hub.endpoint,
            token=self.token(),
            body=self.body(),
            groups=groups,
        )
        status = self.hub.failing.get(name)
        self.send(self.reply(response, request) if status is None else Reply({"error": "on purpose"}, status))

    def find(self) -> tuple[str, Response, dict[str, str]]:
        path = self.path.split("?")[0]
        for name, method, pattern, response in ROUTES:
            if method == self.command and (match := pattern.fullmatch(path)):
                return name, response, match.groupdict()
        return f"unknown: {self.command} {path}", unknown, {}

    def token(self) -> str | None:
        word = self.headers["Authorization"]
        return None if word is None else word.removeprefix("Bearer ")

    def body(self) -> bytes:
        if self.headers["Transfer-Encoding"] != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"] or 0))
        pieces = list[bytes]()
        while num_bytes := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(num_bytes))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def reply(self, response: Response, request: Request) -> Reply:
        """What is said to a request."""
        with self.hub.lock:
            try:
                return response(self.hub.store, request)
            except Refusal as refusal:
                return refused(refusal)

    def send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for key, value in reply.headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(reply.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.content)


def refused(refusal: Refusal) -> Reply:
    code = {} if refusal.code is None else {"X-Error-Code": refusal.code}
    return Reply({"error": str(refusal)}, refusal.status, {"X-Error-Message": str(refusal), **code})


def unknown(store: Store, request: Request) -> Reply:
    raise Refusal(501, f"the stand-in knows no {request.method} {request.path}")
