"""One server that returns token ids, over HTTP: found out, asked, and asked again where it fails in passing."""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from urllib3 import BaseHTTPResponse, PoolManager, Retry, Timeout
from urllib3.exceptions import ConnectTimeoutError, HTTPError, MaxRetryError, NewConnectionError, ReadTimeoutError

from architectures.errors import UserError
from eval.answer_engines.clients.config import GenerateConfig
from eval.answer_engines.clients.exchange import Asked, EngineLostError, Reply, Served
from eval.answer_engines.clients.interfaces import Interface, SglangInterface, VllmInterface

PASSING = (408, 409, 425, 429, 500, 502, 503, 504)  # what a server answers that may answer otherwise in a while
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
CONNECT_S = 10.0
SEEDED = "enable_deterministic_inference"  # SGLang looks at seeds in this mode alone
LONGEST_INPUT = "max_req_input_len"  # six tokens less than SGLang's context, of which it keeps two to itself
ABOUT_MODEL, ABOUT_SERVER = ("/model_info", "/get_model_info"), ("/server_info", "/get_server_info")  # newest first
SAID = 300  # characters of what a server says that are told
REDIRECTED = 300  # and above: no answer
NO_KEY = (401, 403)
OTHERS = (
    "Answers are asked for as token ids and returned as such, or what the target wrote would be guessed from text: "
    "vLLM from 0.10.2 and SGLang from 0.5.0 on do so."
)


@dataclass(frozen=True)
class Connection:
    """An address, and how it is asked.

    Attributes:
        url: Without a slash at its end.
        config: Holds time limits and retries.
        pool: Connections that are kept open; shared by all threads.
    """

    url: str
    config: GenerateConfig
    pool: PoolManager

    def request(self, method: str, path: str, **how: Any) -> BaseHTTPResponse:
        """One request, again after ever longer waits where it fails in passing.

        Raises:
            EngineLostError: If it fails as often as is allowed.
        """
        try:
            answer = self.pool.request(method, f"{self.url}{path}", redirect=False, **how)
        except HTTPError as error:
            raise self.lost(failure_words(error, self.config.timeout_s)) from error
        if answer.status in PASSING:
            raise self.lost(said(answer))
        return answer

    def lost(self, why: str) -> EngineLostError:
        times = f"asked {self.config.retries + 1} times" if self.config.retries else "asked once"
        return EngineLostError(
            f"{self.url}: {why}, {times}. Start the server again, or allow more: generate.timeout_s, generate.retries, "
            "less generate.concurrency."
        )

    def told(self, path: str) -> Any:
        """The JSON of a page; None where there is no such page.

        Raises:
            UserError: If a key is asked for.
        """
        answer = self.request("GET", path)
        if answer.status in NO_KEY:
            raise UserError(f"{self.url}: asks for a key. Name a variable that holds it: generate.api_key_variable.")
        return as_json(answer, self.url) if answer.status < REDIRECTED else None


def failure_words(error: HTTPError, timeout_s: float) -> str:
    """Why there was no answer."""
    reason = error.reason if isinstance(error, MaxRetryError) else error
    if isinstance(reason, NewConnectionError):  # which urllib3 takes for a kind of the next
        return f"no connection ({getattr(reason.__cause__, 'strerror', None) or type(reason).__name__})"
    if isinstance(reason, ConnectTimeoutError):
        return f"no connection within {min(CONNECT_S, timeout_s):g} s"
    if isinstance(reason, ReadTimeoutError):
        return f"no answer within {timeout_s:g} s (generate.timeout_s)"
    return f"no connection ({type(reason).__name__})"


def said(answer: BaseHTTPResponse) -> str:
    """What a server that does not answer says."""
    return f"HTTP {answer.status}: {answer.data.decode(errors='replace')[:SAID].strip()}"


def as_json(answer: BaseHTTPResponse, url: str) -> Any:
    """What an answer holds; UserError where that is no JSON."""
    try:
        return json.loads(answer.data)
    except ValueError as error:
        raise UserError(f"{url}: answers something that is no JSON, and is no engine. {OTHERS}") from error


def connection(url: str, config: GenerateConfig) -> Connection:
    """A connection to a server, with the key that it asks for.

    Raises:
        UserError: If the variable that should hold the key is not set.
    """
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it would tell of each retry; we tell of the last
    headers: dict[str, str] = {}
    if (name := config.api_key_variable) is not None:
        if not (key := os.environ.get(name)):
            raise UserError(f"generate.api_key_variable: {name} is not set. Export it, or leave the key out.")
        headers["Authorization"] = f"Bearer {key}"
    again = Retry(
        total=config.retries,
        allowed_methods=None,  # to ask twice changes nothing at the other end
        status_forcelist=PASSING,
        raise_on_status=False,
        backoff_factor=FIRST_WAIT_S,
        backoff_max=LONGEST_WAIT_S,
        backoff_jitter=FIRST_WAIT_S,
        respect_retry_after_header=False,  # which may say hours, and we would wait them without a word
    )
    limits = Timeout(connect=min(CONNECT_S, config.timeout_s), read=config.timeout_s)
    pool = PoolManager(maxsize=config.concurrency, headers=headers, retries=again, timeout=limits)
    return Connection(url, config, pool)


@dataclass(frozen=True)
class Endpoint:
    """A server that returns token ids.

    Attributes:
        connection: To it.
        interface: As it is asked.
        model: What it calls the target.
        served: What it says of itself.
    """

    connection: Connection
    interface: Interface
    model: str
    served: Served
    has_template: bool = False

    @property
    def where(self) -> str:
        return self.connection.url

    def ask(self, asked: Asked) -> Reply:
        """See exchange.Server.

        Raises:
            EngineLostError: If it fails as often as is allowed, or refuses.
            UserError: If it returns no token ids.
        """
        return self.replied(
            self.connection.request("POST", self.interface.path, json=self.interface.body(asked, self.model))
        )

    def replied(self, answer: BaseHTTPResponse) -> Reply:
        """What a server's answer says."""
        if answer.status >= REDIRECTED:
            raise EngineLostError(f"{self.where}: refuses to answer ({said(answer)}). Mend what it says.")
        told = as_json(answer, self.where)
        try:
            reply = self.interface.reply(told)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UserError(
                f"{self.where}: its answer has another form than {self.served.words} documents ({error!r}). {OTHERS}"
            ) from error
        if reply is None:
            raise UserError(f"{self.where}: returns text without token ids. {OTHERS}")
        return reply

    def rendered(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...] | None:
        """See exchange.Server; only vLLM can be asked."""
        if not self.has_template:
            return None
        asked = {"model": self.model, "messages": list(messages), "add_generation_prompt": True}
        answer = self.connection.request("POST", "/tokenize", json=asked)
        return tuple(as_json(answer, self.where)["tokens"]) if answer.status < REDIRECTED else None


def found(url: str, config: GenerateConfig) -> Endpoint:
    """What kind of server an address is, and what it serves.

    Raises:
        EngineLostError: If it does not answer.
        UserError: If it is of no kind that returns token ids, or serves no such model.
    """
    to = connection(url, config)
    about = told_by(to, ABOUT_MODEL)
    if isinstance(about, dict) and "model_path" in about:
        return found_sglang(to, about, config)
    about = to.told("/version")
    if isinstance(about, dict) and "version" in about:
        return found_vllm(to, str(about["version"]), config)
    raise UserError(f"{url}: is neither vLLM's server nor SGLang's. {OTHERS}")


def told_by(to: Connection, pages: Sequence[str]) -> Any:
    """The JSON of the first page that is there; None where none is."""
    return next((told for page in pages if (told := to.told(page)) is not None), None)


def found_vllm(to: Connection, version: str, config: GenerateConfig) -> Endpoint:
    listed = {row["id"]: row for row in (to.told("/v1/models") or {}).get("data", [])}
    model = chosen_model(to.url, list(listed), config)
    served = Served("vllm", version, listed[model].get("max_model_len"))
    return Endpoint(to, VllmInterface(), model, served, has_template=True)


def found_sglang(to: Connection, about: dict[str, Any], config: GenerateConfig) -> Endpoint:
    facts = told_by(to, ABOUT_SERVER) or {}
    names = list({str(name) for name in (facts.get("served_model_name"), about["model_path"]) if name})
    model = chosen_model(to.url, names if config.model else names[:1], config)
    context = facts.get(LONGEST_INPUT) or facts.get("context_length")
    version, is_seeded = str(facts.get("version", "of no version told")), bool(facts.get(SEEDED))
    return Endpoint(to, SglangInterface(), model, Served("sglang", version, context, is_seeded=is_seeded))


def chosen_model(url: str, names: list[str], config: GenerateConfig) -> str:
    """Which of the served models is asked; UserError where that is not clear."""
    if config.model is None and len(names) == 1:
        return names[0]
    if config.model in names:
        return str(config.model)
    asked = "no one" if config.model is None else config.model
    raise UserError(f"{url}: serves {', '.join(names) or 'no model'}, generate.model names {asked}. Name one of them.")
