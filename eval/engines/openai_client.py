"""Responses of servers as token ids, over the `openai` client.

vLLM: POST /v1/completions with a prompt of ids and `return_token_ids` (from 0.10.2). SGLang: POST /generate with
`input_ids` (from 0.5.0), which is no OpenAI route. Servers that return text only are not supported: token ids cannot be
recovered from text.
"""

import os
import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from architectures.errors import UserError
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Decoded, Limits
from eval.engines.config import GenerateConfig

if TYPE_CHECKING:
    from openai import OpenAI

TIMEOUT_S = 600.0  # of one response
MAX_RETRIES = 5  # of one request, after growing waits


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


@contextmanager
def client_errors(url: str) -> Iterator[None]:
    """Errors of the client as UserErrors that name the server."""
    import openai

    try:
        yield
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        raise UserError(f"{url}: asks for a key. Export it as OPENAI_API_KEY.") from error
    except openai.APIStatusError as error:
        raise UserError(f"{url}: HTTP {error.status_code}: {error.message[:300]}") from error
    except openai.APIConnectionError as error:
        raise ServerLostError(f"{url}: {error} Start the server, and the command again: it continues.") from error


@dataclass(frozen=True)
class Server:
    """One server of vLLM or SGLang, and its name for the target."""

    url: str
    client: "OpenAI"
    model: str
    is_sglang: bool

    @classmethod
    def find(cls, url: str, config: GenerateConfig, *, max_model_len: int) -> "Server":
        """The server at an address.

        Raises:
            UserError: If it cannot be reached, serves no such model, or allows fewer tokens of prompt and response.
        """
        from openai import OpenAI

        key = os.environ.get("OPENAI_API_KEY") or "none"  # the client insists on one
        client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=MAX_RETRIES, timeout=TIMEOUT_S)
        with client_errors(url):
            models = {model.id: model for model in client.models.list()}
        name = config.model or (next(iter(models)) if len(models) == 1 else None)
        if name not in models:
            raise UserError(f"{url}: serves {', '.join(models) or 'no model'}, generate.model is {name}. Name one.")
        allowed = getattr(models[name], "max_model_len", None)
        if allowed is not None and allowed < max_model_len:
            raise UserError(
                f"{url}: serves at most {allowed} tokens, prompt and response may have {max_model_len}. Start it with "
                "a larger --max-model-len (SGLang: --context-length), or lower max_seq_len or max_new_tokens."
            )
        return cls(url, client, str(name), models[name].owned_by == "sglang")

    def generate(self, prompt_ids: Sequence[int], seed: int, limits: Limits, sampling: Sampling) -> Decoded:
        """One response.

        Raises:
            UserError: If the server fails after all retries, or returns no token ids.
        """
        stop_ids = sorted(limits.stop_ids)
        ask = self.ask_sglang if self.is_sglang else self.ask_vllm
        try:
            with client_errors(self.url):
                ids, is_stopped = ask(list(prompt_ids), seed, limits.max_new_tokens, stop_ids, sampling)
        except (AttributeError, KeyError, TypeError, IndexError) as error:
            raise UserError(
                f"{self.url}: returned no token ids ({error!r}). Use vLLM from 0.10.2 or SGLang from 0.5.0 on."
            ) from error
        return Decoded(tuple(ids), (), 0.0, 0.0, stopped=is_stopped)

    def ask_vllm(
        self, prompt_ids: list[int], seed: int, max_tokens: int, stop_ids: list[int], sampling: Sampling
    ) -> tuple[list[int], bool]:
        """Token ids, and whether a stop token ended them."""
        own = {"stop_token_ids": stop_ids, "return_token_ids": True, **sampling_fields(sampling, no_top_k=0)}
        response = self.client.completions.create(
            model=self.model, prompt=prompt_ids, max_tokens=max_tokens, seed=seed, extra_body=own
        )
        choice: Any = response.choices[0]
        return list(choice.token_ids), choice.finish_reason == "stop"

    def ask_sglang(
        self, prompt_ids: list[int], seed: int, max_tokens: int, stop_ids: list[int], sampling: Sampling
    ) -> tuple[list[int], bool]:
        settings = {
            "max_new_tokens": max_tokens,
            "stop_token_ids": stop_ids,
            "sampling_seed": seed,  # read by servers started with --enable-deterministic-inference
            **sampling_fields(sampling, no_top_k=-1),
        }
        body = {"input_ids": prompt_ids, "sampling_params": settings, "stream": False}
        native = self.client.with_options(base_url=self.url)
        response: Any = native.post("/generate", cast_to=object, body=body)
        ids, reason = list(response["output_ids"]), response["meta_info"]["finish_reason"]
        is_stopped = reason["type"] == "stop"
        if is_stopped and isinstance(reason.get("matched"), int) and ids[-1:] != [reason["matched"]]:
            ids.append(reason["matched"])  # some versions leave the stop token out of the ids
        return ids, is_stopped


class Servers:
    """Servers of one target as one engine: requests are dealt out in turn; those of a lost server go to the others."""

    def __init__(self, config: GenerateConfig, *, max_model_len: int, concurrency: int):
        self.servers = [Server.find(url, config, max_model_len=max_model_len) for url in config.urls]
        self.name = f"{'sglang' if self.servers[0].is_sglang else 'vllm'} at {', '.join(config.urls)}"
        self.concurrency, self.numbers = concurrency, count()

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], *, limits: Limits, sampling: Sampling
    ) -> Generator[Decoded]:
        """Responses in the order of the prompts; the requests go on while a response is waited for."""

        def respond(prompt_ids: Sequence[int], seed: int) -> Decoded:
            while True:
                servers = self.servers
                server = servers[next(self.numbers) % len(servers)]
                try:
                    return server.generate(prompt_ids, seed, limits, sampling)
                except ServerLostError as error:
                    self.lose(server, error)

        pool = ThreadPoolExecutor(self.concurrency)
        try:
            yield from pool.map(respond, prompts, seeds)
        finally:  # on an error no further request is sent
            pool.shutdown(wait=False, cancel_futures=True)

    def lose(self, server: Server, error: ServerLostError) -> None:
        """Send a server no more requests; raises the error if there is no other."""
        others = [each for each in self.servers if each is not server]
        if not others:
            raise error
        if len(others) < len(self.servers):
            print(f"{error} The other servers go on.", file=sys.stderr, flush=True)
        self.servers = others

    def close(self) -> None:
        for server in self.servers:
            server.client.close()
