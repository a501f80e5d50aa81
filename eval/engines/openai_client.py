"""Responses of servers as token ids, over the `openai` client.

vLLM: POST /v1/completions with a prompt of ids and `return_token_ids` (from 0.10.2). SGLang: POST /generate with
`input_ids` (from 0.5.0), which is no OpenAI route. Servers that return text only are not supported: token ids cannot be
recovered from text.
"""

import asyncio
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from architectures.errors import UserError
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Decoded, Limits
from eval.engines.config import GenerateConfig

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Reply = tuple[Sequence[int], bool]  # token ids, and whether a stop token ended them


def sampling_fields(sampling: Sampling, *, no_top_k: int) -> dict[str, Any]:
    """Every sampling setting by name: servers take what is left out from the checkpoint's generation_config.json."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": no_top_k if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


class ServerLostError(UserError):
    """A server that cannot be reached, or takes too long."""


@dataclass(frozen=True)
class Server:
    """One server of vLLM or SGLang, and its name for the target."""

    url: str
    model: str
    is_sglang: bool

    async def generate(
        self, client: "AsyncOpenAI", prompt_ids: Sequence[int], seed: int, limits: Limits, sampling: Sampling
    ) -> Reply:
        """One response.

        Raises:
            UserError: If the server fails after all retries, or returns no token ids.
        """
        ask = self.ask_sglang if self.is_sglang else self.ask_vllm
        with client_errors(self.url):
            try:
                return await ask(client, list(prompt_ids), seed, limits, sampling)
            except (AttributeError, KeyError, TypeError, IndexError) as error:
                raise UserError(
                    f"{self.url}: returned no token ids ({error!r}). Use vLLM from 0.10.2 or SGLang from 0.5.0 on."
                ) from error

    async def ask_vllm(
        self, client: "AsyncOpenAI", prompt_ids: list[int], seed: int, limits: Limits, sampling: Sampling
    ) -> Reply:
        response = await client.completions.create(
            model=self.model,
            prompt=prompt_ids,
            max_tokens=limits.max_new_tokens,
            seed=seed,
            extra_body={
                "stop_token_ids": sorted(limits.stop_ids),
                "return_token_ids": True,
                **sampling_fields(sampling, no_top_k=0),
            },
        )
        choice: Any = response.choices[0]
        return list(choice.token_ids), choice.finish_reason == "stop"

    async def ask_sglang(
        self, client: "AsyncOpenAI", prompt_ids: list[int], seed: int, limits: Limits, sampling: Sampling
    ) -> Reply:
        settings = {
            "max_new_tokens": limits.max_new_tokens,
            "stop_token_ids": sorted(limits.stop_ids),
            "sampling_seed": seed,  # read by servers started with --enable-deterministic-inference
            **sampling_fields(sampling, no_top_k=-1),
        }
        body = {"input_ids": prompt_ids, "sampling_params": settings, "stream": False}
        native = client.with_options(base_url=self.url)
        response: Any = await native.post("/generate", cast_to=object, body=body)
        ids, reason = list(response["output_ids"]), response["meta_info"]["finish_reason"]
        is_stopped = reason["type"] == "stop"
        if is_stopped and isinstance(reason.get("matched"), int) and ids[-1:] != [reason["matched"]]:
            ids.append(reason["matched"])  # some versions leave the stop token out of the ids
        return ids, is_stopped


def find_server(url: str, config: GenerateConfig, *, max_model_len: int) -> Server:
    """What a server serves.

    Raises:
        UserError: If it cannot be reached, serves no such model, or allows fewer tokens of prompt and response.
    """
    from openai import OpenAI

    with client_errors(url), OpenAI(**client_settings(url, config)) as client:
        models = {model.id: model for model in client.models.list()}
    name = config.model or (next(iter(models)) if len(models) == 1 else None)
    if name not in models:
        raise UserError(f"{url}: serves {', '.join(models) or 'no model'}, generate.model is {name}. Name one.")
    allowed = getattr(models[name], "max_model_len", None)
    if allowed is not None and allowed < max_model_len:
        raise UserError(
            f"{url}: serves at most {allowed} tokens, prompt and response may have {max_model_len}. Start it with a "
            "larger --max-model-len (SGLang: --context-length), or lower max_seq_len or max_new_tokens."
        )
    return Server(url, str(name), models[name].owned_by == "sglang")


def client_settings(url: str, config: GenerateConfig) -> dict[str, Any]:
    """Arguments of a client of one server.

    Raises:
        UserError: If the environment variable that should hold the key is not set.
    """
    key = os.environ.get(config.api_key_variable or "", "")
    if config.api_key_variable and not key:
        raise UserError(f"generate.api_key_variable: {config.api_key_variable} is not set. Export it, or leave it out.")
    return {
        "base_url": f"{url}/v1",
        "api_key": key or "none",
        "max_retries": config.retries,
        "timeout": config.timeout_s,
    }


@contextmanager
def client_errors(url: str) -> Iterator[None]:
    """Errors of the client as UserErrors that name the server."""
    import openai

    try:
        yield
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        raise UserError(f"{url}: asks for a key. Name its variable: generate.api_key_variable.") from error
    except openai.APIStatusError as error:
        raise UserError(f"{url}: HTTP {error.status_code}: {error.message[:300]}") from error
    except openai.APIConnectionError as error:
        raise ServerLostError(
            f"{url}: {error} Start the server again, or raise generate.timeout_s or generate.retries."
        ) from error


class Servers:
    """Servers of one target as one engine: requests are dealt out in turn; those of a lost server go to the others."""

    def __init__(self, config: GenerateConfig, *, max_model_len: int, concurrency: int):
        self.servers = [find_server(url, config, max_model_len=max_model_len) for url in config.urls]
        self.name = f"{'sglang' if self.servers[0].is_sglang else 'vllm'} at {', '.join(config.urls)}"
        self.config, self.concurrency, self.numbers = config, concurrency, count()

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], *, limits: Limits, sampling: Sampling
    ) -> Generator[Decoded]:
        """Responses in the order of the prompts; the requests go on while a response is waited for."""
        requests = list(zip(prompts, seeds, strict=True))
        with asyncio.Runner() as runner:
            stack, tasks = runner.run(self.start(requests, limits, sampling))
            try:
                for task in tasks:
                    ids, is_stopped = runner.run(wait_for(task))
                    yield Decoded(tuple(ids), (), 0.0, 0.0, stopped=is_stopped)
            finally:
                runner.run(stop(stack, tasks))

    async def start(
        self, requests: Sequence[tuple[Sequence[int], int]], limits: Limits, sampling: Sampling
    ) -> tuple[AsyncExitStack, list["asyncio.Task[Reply]"]]:
        """A task for each request, and what closes their clients."""
        from openai import AsyncOpenAI

        stack, free = AsyncExitStack(), asyncio.Semaphore(self.concurrency)
        clients = {
            server: await stack.enter_async_context(AsyncOpenAI(**client_settings(server.url, self.config)))
            for server in self.servers
        }

        async def ask(prompt_ids: Sequence[int], seed: int) -> Reply:
            async with free:
                while True:
                    server = self.servers[next(self.numbers) % len(self.servers)]
                    try:
                        return await server.generate(clients[server], prompt_ids, seed, limits, sampling)
                    except ServerLostError as error:
                        self.lose(server, error)

        return stack, [asyncio.create_task(ask(*request)) for request in requests]

    def lose(self, server: Server, error: ServerLostError) -> None:
        """Send a server no more requests; raises the error if there is no other."""
        others = [each for each in self.servers if each != server]
        if not others:
            raise error
        if server in self.servers:
            print(f"{error} The other servers go on.", file=sys.stderr, flush=True)
        self.servers = others

    def close(self) -> None:
        """Clients are closed by then."""


async def wait_for(task: "asyncio.Task[Reply]") -> Reply:
    return await task


async def stop(stack: AsyncExitStack, tasks: Sequence["asyncio.Task[Reply]"]) -> None:
    """Cancel what is in flight, and close the clients."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stack.aclose()
