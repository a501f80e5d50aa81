"""OpenAI's completion endpoints over a ServingEngine, metrics, and a page to try a draft in.

Nothing of a request is ignored: an unknown field is an error that names it. Bodies must be declared as JSON, and
without an API key the host must be a loopback name, so that pages of other sites cannot use the server.
"""

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import AfterValidator, AliasChoices, Field, ValidationError
from starlette.exceptions import HTTPException

from architectures.errors import UserError
from architectures.settings import MOST, Draft, MaxNewTokens, MinP, Section, TopK, TopP
from eval.chat import Turn, is_unicode, parse_messages, raw_text, render_prompt
from eval.config import ServeSettings, is_loopback
from eval.decoding.sampling import Sampling
from eval.pair import load_pair
from eval.serving_engine import QueueFullError, ResponseText, ServedRequest, ServingEngine, Token

MAX_BODY_BYTES = 1 << 20
MIN_TEMPERATURE = 0.01  # above 0; logits divided by much less overflow
DEFAULT_MAX_TOKENS = 16  # of /v1/completions, as in OpenAI's
PAGE = Path(__file__).with_name("serving.html")


class ApiError(HTTPException):
    """An error that a client gets; `param` is the field."""

    def __init__(self, status_code: int, detail: str, param: str | None = None) -> None:
        super().__init__(status_code, detail)
        self.param = param


# Bodies of requests


def checked_temperature(value: float) -> float:
    if 0 < value < MIN_TEMPERATURE:
        raise ValueError(f"must be 0 or at least {MIN_TEMPERATURE:g}")
    return value


StopString = Annotated[str, Field(min_length=1, max_length=256)]


class StreamOptions(Section):
    """Of a streamed response."""

    include_usage: bool = False


class GenerationFields(Section):
    """Fields of both kinds of request; `speculative` and `widedraft` are not OpenAI's."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] = 1
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    temperature: Annotated[float, Field(ge=0, le=MOST), AfterValidator(checked_temperature)] = 1.0
    top_p: TopP = 1.0
    top_k: TopK = None
    min_p: MinP = 0.0
    max_tokens: MaxNewTokens | None = Field(
        default=None, validation_alias=AliasChoices("max_tokens", "max_completion_tokens")
    )
    logprobs: bool | Literal[0] | None = None  # 0 in /v1/completions: no alternatives
    speculative: bool = True
    widedraft: bool = False

    @property
    def wants_logp(self) -> bool:
        return self.logprobs is not None and self.logprobs is not False


class TextFields(GenerationFields):
    """Body of /v1/completions."""

    prompt: str | list[int]


class ChatFields(GenerationFields):
    """Body of /v1/chat/completions."""

    messages: list[Any]
    chat_template_kwargs: Mapping[str, Any] | None = None
    top_logprobs: Literal[0] = 0


class PredictFields(Section):
    """Body of /predict."""

    prompt: str


class DraftFields(Section):
    """Body of /admin/draft."""

    draft: Draft


AnyFields = TypeVar("AnyFields", bound=Section)


async def read_fields(request: Request, model: type[AnyFields]) -> AnyFields:
    """Read and parse a body; a field that is null counts as absent. Raises ApiError."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ApiError(415, "The content type must be application/json.")
    parts, size = [], 0
    async for part in request.stream():  # to its end: clients read no response before they have sent everything
        size += len(part)
        parts += [part] if size <= MAX_BODY_BYTES else []
    if size > MAX_BODY_BYTES:
        raise ApiError(413, f"The body has more than {MAX_BODY_BYTES} bytes.")
    try:
        given = json.loads(b"".join(parts))
        if not isinstance(given, dict) or not is_unicode(json.dumps(given, ensure_ascii=False)):
            raise ApiError(400, "The body must be a JSON object of valid Unicode.")
        return model.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        param = str(mistake["loc"][0])
        raise ApiError(400, f"{param}: {mistake['msg'].removeprefix('Value error, ')}.", param) from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {error}") from error


# Responses


class HttpApi:
    """Endpoints: bodies become requests of an engine, and the tokens that it emits responses."""

    def __init__(self, engine: ServingEngine, settings: ServeSettings) -> None:
        self.engine, self.model, self.api_key = engine, settings.target, settings.api_key
        self.tokenizer, self.created = engine.pair.tokenizer, int(time.time())

    def guard(self, request: Request) -> None:
        """Let clients with the key pass; without a key, those of this machine. Raises ApiError."""
        if self.api_key is not None:
            given = request.headers.get("authorization", "")
            if not secrets.compare_digest(given.encode(), f"Bearer {self.api_key}".encode()):
                raise ApiError(401, "The API key is wrong or missing.")
        elif not is_loopback(request.client and request.client.host) or not is_loopback(request.url.hostname):
            raise ApiError(403, "Only this machine may use a server without --api-key.")

    def health(self) -> Response:
        return Response(status_code=200 if self.engine.thread.is_alive() else 503)

    def metrics(self) -> Response:
        return Response(generate_latest(self.engine.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def models(self) -> dict[str, Any]:
        own = {"id": self.model, "object": "model", "created": self.created, "owned_by": "widedraft"}
        return {"object": "list", "data": [own | {"max_model_len": self.engine.max_model_len} | self.draft()]}

    def draft(self) -> dict[str, Any]:
        k = self.engine.speculation.num_speculative_tokens
        return {"draft": str(self.engine.pair.folders[1]), "num_speculative_tokens": k}

    async def swap(self, request: Request) -> dict[str, Any]:
        fields = await read_fields(request, DraftFields)
        try:
            await run_in_threadpool(self.engine.swap_draft, fields.draft)
        except UserError as error:
            raise ApiError(400, str(error), "draft") from error
        return self.draft()

    async def chat(self, request: Request) -> Response:
        fields = await read_fields(request, ChatFields)
        return await self.respond(request, fields, "chat.completion.chunk" if fields.stream else "chat.completion")

    async def complete(self, request: Request) -> Response:
        return await self.respond(request, await read_fields(request, TextFields), "text_completion")

    async def predict(self, request: Request) -> Response:
        """Return the response as a JSON string, with the settings of LLMSpeculativeSampling's demo server."""
        given = await read_fields(request, PredictFields)
        fields = TextFields(prompt=given.prompt, max_tokens=40, top_k=10, top_p=0.9)
        whole = await self.respond(request, fields, "text_completion")
        return JSONResponse(json.loads(bytes(whole.body))["choices"][0]["text"])

    async def respond(self, request: Request, fields: GenerationFields, kind: str) -> Response:
        queue, loop = asyncio.Queue[Token | None](), asyncio.get_running_loop()
        deliver = partial(loop.call_soon_threadsafe, queue.put_nowait)
        served = await run_in_threadpool(self.request_of, fields, deliver)
        try:
            self.engine.submit(served)
        except QueueFullError as error:
            raise ApiError(429, "Too many requests are waiting. Try again later.") from error
        gone = asyncio.ensure_future(request.receive())  # after its body, a client only sends that it disconnected
        gone.add_done_callback(lambda _: served.cancelled.set())
        tokens, name = received(queue, gone), f"widedraft-{secrets.token_hex(12)}"
        head = {"id": name, "object": kind, "created": int(time.time()), "model": self.model}
        if fields.stream:
            return StreamingResponse(self.events(fields, head, tokens, served), media_type="text/event-stream")
        whole = [token async for token in tokens]
        return JSONResponse(self.body(fields, head, whole) | {"usage": usage(served, len(whole))})

    def request_of(self, fields: GenerationFields, deliver: Callable[[Token | None], object]) -> ServedRequest:
        """Check what depends on the models, and tokenise. Raises ApiError."""
        if fields.model not in (None, self.model):
            raise ApiError(404, f"model: {fields.model} is not served, but {self.model}.", "model")
        if fields.stream_options is not None and not fields.stream:
            raise ApiError(400, "stream_options: needs stream.", "stream_options")
        is_chat, longest = isinstance(fields, ChatFields), self.engine.max_model_len
        name = "messages" if is_chat else "prompt"
        try:
            ids = self.prompt_ids(fields)
        except UserError as error:
            raise ApiError(400, str(error), name) from error
        if not ids or min(ids) < 0 or max(ids) >= self.engine.vocab_size:
            raise ApiError(400, f"{name}: needs at least one token, and ids below {self.engine.vocab_size}.", name)
        room = longest - len(ids)
        max_tokens = fields.max_tokens or (room if is_chat else min(room, DEFAULT_MAX_TOKENS))
        if not 1 <= max_tokens <= room:
            fact = f"{len(ids)} tokens and a response of {max(max_tokens, 1)} exceed the context of {longest}."
            raise ApiError(400, f"{name}: {fact}", name)
        sampling = Sampling(fields.temperature, fields.top_p, fields.top_k, fields.min_p)
        return ServedRequest(
            tuple(ids),
            Sampling() if sampling.is_greedy else sampling,
            max_tokens,
            secrets.randbits(63) if fields.seed is None else fields.seed,
            ResponseText(self.tokenizer, [fields.stop] if isinstance(fields.stop, str) else fields.stop or []),
            deliver,
            fields.speculative,
            fields.wants_logp,
        )

    def prompt_ids(self, fields: GenerationFields) -> list[int]:
        if isinstance(fields, ChatFields):
            messages = tuple(parse_messages(fields.messages, "messages", "body"))
            return render_prompt(self.tokenizer, Turn(messages, (), fields.chat_template_kwargs or {}))
        assert isinstance(fields, TextFields)
        if isinstance(fields.prompt, str):
            return render_prompt(self.tokenizer, Turn((raw_text(fields.prompt),)))
        return fields.prompt

    async def events(
        self, fields: GenerationFields, head: dict[str, Any], tokens: AsyncIterator[Token], served: ServedRequest
    ) -> AsyncIterator[str]:
        """Yield server-sent events, one for each token."""
        count = 0
        try:
            async for token in tokens:
                yield event(self.body(fields, head, [token], is_first=count == 0))
                count += 1
        except ApiError as error:
            yield event(error_body(error))
            return
        if fields.stream_options is not None and fields.stream_options.include_usage:
            yield event({**head, "choices": [], "usage": usage(served, count)})
        yield "data: [DONE]\n\n"

    def body(
        self, fields: GenerationFields, head: dict[str, Any], tokens: Sequence[Token], *, is_first: bool = True
    ) -> dict[str, Any]:
        """Return a response, or a chunk of one."""
        text = "".join(token.text for token in tokens)
        choice = {"index": 0, "finish_reason": tokens[-1].finish_reason, "logprobs": self.logprobs(fields, tokens)}
        if isinstance(fields, ChatFields):
            message = ({"role": "assistant"} if is_first else {}) | {"content": text}
            choice["delta" if fields.stream else "message"] = message
        else:
            choice["text"] = text
        own = {
            "source": [token.source for token in tokens],
            "num_draft_tokens": sum(t.num_draft_tokens for t in tokens),
        }
        return {**head, "choices": [choice], "usage": None} | ({"widedraft": own} if fields.widedraft else {})

    def logprobs(self, fields: GenerationFields, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not fields.wants_logp:
            return None
        texts, logp = [self.tokenizer.decode([token.token_id]) for token in tokens], [token.logp for token in tokens]
        if isinstance(fields, ChatFields):
            how = {"bytes": None, "top_logprobs": []}
            return {"content": [{"token": text, "logprob": own, **how} for text, own in zip(texts, logp, strict=True)]}
        offsets = [token.offset for token in tokens]
        return {"tokens": texts, "token_logprobs": logp, "text_offset": offsets, "top_logprobs": None}


async def received(queue: asyncio.Queue[Token | None], gone: asyncio.Future[Any]) -> AsyncIterator[Token]:
    """Yield the tokens of a response; leaving earlier cancels the request, by `gone`. Raises ApiError if it fails."""
    try:
        while (token := await queue.get()) is not None:
            yield token
            if token.finish_reason is not None:
                return
        raise ApiError(500, "The server ended this request before it was finished.")
    finally:
        gone.cancel()


def usage(served: ServedRequest, count: int) -> dict[str, int]:
    prompt = len(served.prompt_ids)
    return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}


def event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def error_body(error: Exception) -> dict[str, Any]:
    """Return an error in OpenAI's form; details of internal errors go to the log only."""
    status, message = getattr(error, "status_code", 500), getattr(error, "detail", "Internal error.")
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": getattr(error, "param", None), "code": None}}


def error_response(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(error_body(error), getattr(error, "status_code", 500))


def create_app(engine: ServingEngine, settings: ServeSettings) -> FastAPI:
    api = HttpApi(engine, settings)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    guarded: dict[str, Any] = {"dependencies": [Depends(api.guard)], "response_model": None}
    app.post("/v1/chat/completions", **guarded)(api.chat)
    app.post("/v1/completions", **guarded)(api.complete)
    app.post("/predict", **guarded)(api.predict)
    app.post("/admin/draft", **guarded)(api.swap)
    app.get("/v1/models", **guarded)(api.models)
    app.get("/metrics", **guarded)(api.metrics)
    app.get("/health")(api.health)
    app.get("/")(lambda: FileResponse(PAGE))
    for kind in (HTTPException, Exception):
        app.add_exception_handler(kind, error_response)
    return app


class HttpServer(uvicorn.Server):
    """A server that ends unfinished responses before it waits for their connections."""

    def __init__(self, engine: ServingEngine, settings: ServeSettings) -> None:
        app = create_app(engine, settings)
        super().__init__(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
        self.engine = engine

    def stop(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.engine.close()
        await super().shutdown(sockets)


def listen(settings: ServeSettings) -> socket.socket:
    """Take the port; raises UserError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        where = f"--host {settings.host} --port {settings.port}"
        raise UserError(f"{where}: {error.strerror}. Choose another.") from error


def addresses(settings: ServeSettings, listener: socket.socket) -> str:
    """Format what is served and where."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    return f"{settings.target} with draft {settings.draft}\npage: {url}/\nOpenAI API: {url}/v1"


def serve_pair(settings: ServeSettings) -> None:
    """Serve until interrupted; raises UserError. The port is taken before minutes are spent on loading."""
    with listen(settings) as listener:
        pair = load_pair(settings.target, settings.draft, dtype=settings.dtype)
        with ServingEngine(pair, settings) as engine:
            print(addresses(settings, listener), flush=True)
            HttpServer(engine, settings).run(sockets=[listener])
