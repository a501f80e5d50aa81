"""A server in this process, for tests of its endpoints and its page."""

import socket
import threading
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import openai
import requests

from eval.config import ServeSettings
from eval.http_server import HttpServer
from eval.serving_engine import ServingEngine


@contextmanager
def served(pair, *, api_key=None, **limits):
    """A server, and an openai client of it."""
    settings = ServeSettings(target="tiny", draft="tiny", dtype="float32", api_key=api_key, **limits)
    with socket.create_server(("127.0.0.1", 0)) as listener, ServingEngine(pair, settings) as engine:
        server = HttpServer(engine, settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with openai.OpenAI(base_url=f"{url}/v1", api_key=api_key or "none", max_retries=0, timeout=60) as client:
                get, post = (partial(sent, method, url) for method in ("get", "post"))
                yield SimpleNamespace(engine=engine, client=client, get=get, post=post, url=url)
        finally:
            server.should_exit = True
            thread.join()


def sent(method, url, path, **how):
    return requests.request(method, url + path, timeout=60, **how)


def until(condition, limit_s=20):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def is_idle(server):
    return not server.engine.groups and not server.engine.num_running and not server.engine.waiting
