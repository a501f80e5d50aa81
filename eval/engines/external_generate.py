"""Responses by an engine, in the shards of a run; the target here checks that the first ones are its own.

vLLM: POST /v1/completions with a prompt of ids and `return_token_ids` (from 0.10.2). SGLang: POST /generate with
`input_ids` (from 0.5.0), which is no OpenAI route. Servers that return text only are not supported: token ids cannot be
recovered from text.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.sharing import Share
from architectures.target_files import stop_ids
from eval.config import GenerateConfig
from eval.decoding.generate import Answerer, Kind, Missing, derive_seed, sampling_of
from eval.decoding.sampling import Sampling, log_distribution, penalised, seen_along
from eval.decoding.texts import Decoded, Limits
from eval.lossless import shortfalls
from eval.replay import answer_logits
from eval.responses import DecodingSettings, Trace, Turn, num_turns, rows_of, unknown_id, write_shard

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


WORKER = Path(__file__).with_name("vllm_generate_worker.py")
LAUNCHER_VARIABLES = re.compile(r"((LOCAL|GROUP|ROLE|NODE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+")
EXIT_S = 20  # that a worker gets to end by itself, once its input has ended
LINES_SHOWN = 12  # of what a failed worker printed


class OfflineVllm:
    """vLLM with the target loaded.

    Args:
        target: Its folder.
        config: Section `generate`: the Python, and how the target is divided.
        share: Of this process, whose GPU is the worker's first.
        dtype: Of weights and arithmetic.
        max_model_len: Tokens of prompt and response together.

    Raises:
        UserError: If there is no such Python, or vLLM does not load the target.
    """

    def __init__(self, target: Path, config: GenerateConfig, share: Share, *, dtype: str, max_model_len: int):
        self.python = str(config.python)
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # until close()
        environment = worker_environment(share, config.tensor_parallel, os.environ, gpus=torch.cuda.device_count())
        try:
            self.process = subprocess.Popen(
                [self.python, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env=environment,
                encoding="utf-8",
            )
        except OSError as error:
            self.log.close()
            raise UserError(f"generate.python: {self.python} could not be run ({error.strerror}).") from error
        loaded = self.exchange(
            {
                "model": str(target.resolve()),
                "dtype": dtype,
                "max_model_len": max_model_len,
                "max_num_seqs": config.concurrency,
                "tensor_parallel_size": config.tensor_parallel,
                "gpu_memory_utilization": 0.7,  # the agreement check needs the rest
            }
        )
        self.name = f"vllm {loaded['version']}"

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], *, limits: Limits, sampling: Sampling
    ) -> Generator[Decoded]:
        """Responses in the order of the prompts, once vLLM has all of them."""
        settings = {
            "max_tokens": limits.max_new_tokens,
            "stop_token_ids": sorted(limits.stop_ids),
            "detokenize": False,
            **sampling_fields(sampling, no_top_k=0),
        }
        replies = self.exchange({"prompts": [list(ids) for ids in prompts], "seeds": list(seeds), "sampling": settings})
        for ids, is_stopped in replies["responses"]:
            yield Decoded(tuple(ids), (), 0.0, 0.0, stopped=is_stopped)

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """What the worker replies; UserError with its last lines if it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):  # a worker that has ended: the next line says so
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            last = "\n".join(self.log.read().splitlines()[-LINES_SHOWN:])
            self.close()
            raise UserError(f"vLLM ended ({self.python}). Complete files are kept. Its last lines:\n{last}")
        return json.loads(line)

    def close(self) -> None:
        """End the worker: its input ends; one that does not end in time is killed."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


def worker_environment(share: Share, tensor_parallel: int, ours: Mapping[str, str], *, gpus: int) -> dict[str, str]:
    """Environment of a worker: without the variables of our launcher, with the GPUs from this process's own on."""
    if share.count == 1:
        return dict(ours)
    environment = {name: value for name, value in ours.items() if not LAUNCHER_VARIABLES.fullmatch(name)}
    if gpus:
        visible = (ours.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
        first = share.index % share.per_machine
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible[first : first + tensor_parallel])
    return environment


NUM_CHECKED = 16  # responses that the target here reads
BATCH_FACTOR = 16  # responses requested together are this many times those in flight: few idle slots at the end
TIE_FACTOR = 2.0  # an engine's kernels differ from ours in more than the number of rows, which TIE_STEPS allows for
MAX_TIE_SHARE, MIN_TIES = 0.05, 10  # of the checked tokens: 1 % in bfloat16 and none in float32, measured
MAX_SIGMAS = 6.0  # one of 10**9 honest runs is rejected
MAX_SEED = 2**63 - 1  # of what engines take
MAX_OUTSIDE_SHARE = 0.01  # of sampled tokens that rounding may put outside of top-p or top-k


class Engine(Protocol):
    """What generates responses to prompts of token ids."""

    name: str

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], *, limits: Limits, sampling: Sampling
    ) -> Generator[Decoded]: ...

    def close(self) -> None: ...


@contextmanager
def responses_by(config: GenerateConfig) -> Iterator[Kind]:
    """What writes responses as section `generate` says, for as long as the block lasts."""
    if config.is_local:
        yield Answerer
        return
    kind = EngineKind(config)
    try:
        yield kind
    finally:
        kind.close()


class EngineKind:
    """An engine for all responses of a stage; opened for the first that are missing."""

    def __init__(self, config: GenerateConfig):
        self.config = config
        self.engine: Engine | None = None
        self.loaded: tuple[Path, str, int] | None = None
        self.checked: set[Sampling] = set()  # settings under which the engine was held against the target

    def __call__(self, *args: Any, **named: Any) -> "EngineAnswerer":
        return EngineAnswerer(*args, kind=self, **named)

    def open(self, target: Path, settings: DecodingSettings, share: Share) -> Engine:
        """The engine with a target loaded, and nothing else in it."""
        max_model_len = settings.max_prompt_len + settings.max_new_tokens
        wanted = (target, settings.dtype, max_model_len)
        if self.engine is None or self.loaded != wanted:
            self.close()
            self.checked.clear()
            if self.config.engine == "endpoint":
                concurrency = max(1, self.config.concurrency // share.count)
                self.engine = Servers(self.config, max_model_len=max_model_len, concurrency=concurrency)
            else:
                self.engine = OfflineVllm(target, self.config, share, dtype=settings.dtype, max_model_len=max_model_len)
            self.loaded = wanted
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine = None


class EngineAnswerer(Answerer):
    """The responses of one name, generated by an engine."""

    def __init__(self, *args: Any, kind: EngineKind, **named: Any):
        super().__init__(*args, **named)
        self.kind = kind
        self.draws = f"{kind.config.engine}: the engine's own, seeded by answer"

    def mine(self, missing: Sequence[Path]) -> Sequence[Path]:
        """Servers are asked by every process, vLLM runs once for every `tensor_parallel` GPUs, or once a machine."""
        return engine_part(self.kind.config, self.share, missing, gpus=torch.cuda.device_count())

    def work_of(self, missing: Missing) -> float:
        """Every response counts alike: an engine batches them as they come."""
        return sum(num_turns(turns) for _, turns in missing)

    def write_all(self, missing: Missing) -> Iterator[Trace]:
        """Yield responses; several shards are requested together, and written when they are complete."""
        together = max(1, BATCH_FACTOR * self.kind.config.concurrency // self.settings.shard_size)
        for start in range(0, len(missing), together):
            shards = missing[start : start + together]
            first_ids = [turns[0].id for _, turns in shards]
            traces: list[list[Trace]] = [[] for _ in shards]
            for trace in self.answer([turn for _, turns in shards for turn in turns]):
                traces[bisect_right(first_ids, trace.id) - 1].append(trace)
                yield trace
            for (path, _), rows in zip(shards, traces, strict=True):
                write_shard(path, rows_of(rows))

    def answer_each(self, turns: Sequence[Turn]) -> Iterator[tuple[Turn, Trace]]:
        """One response a turn; turns that are too long have none."""
        rendered = [(self.render(turn), turn) for turn in turns]
        new = [(ids, turn) for ids, turn in rendered if len(ids) <= self.settings.max_prompt_len]
        if not new:
            return
        engine = self.kind.open(self.target, self.settings, self.share)
        seeds = [derive_seed(self.settings.seed, self.name, turn.id) & MAX_SEED for _, turn in new]
        limits = Limits(self.settings.max_new_tokens, stop_ids(self.target))
        sampling = sampling_of(self.settings)
        replies = engine.generate([ids for ids, _ in new], seeds, limits=limits, sampling=sampling)
        first: list[tuple[list[int], tuple[int, ...]]] = []
        with closing(replies):  # on an error requests in flight are cancelled
            for (ids, turn), decoded in zip(new, replies, strict=True):
                require_possible(engine.name, decoded, limits, self.vocab_size)
                if sampling not in self.kind.checked:
                    first.append((ids, decoded.token_ids))
                    if len(first) in (NUM_CHECKED, len(new)):
                        self.check(engine.name, first, sampling)
                yield turn, self.trace(turn, ids, decoded)
                self.advance(1, items=0)

    def check(self, engine: str, responses: Sequence[tuple[Sequence[int], Sequence[int]]], sampling: Sampling) -> None:
        """Hold the first responses against the target, which is loaded here for as long as that takes."""
        found = check_agreement(self.model, responses, sampling, engine)
        print(f"{self.name}: {engine}: {len(responses)} responses checked, {found}", file=sys.stderr, flush=True)
        self.kind.checked.add(sampling)
        del self.model


def engine_part(config: GenerateConfig, share: Share, shards: Sequence[Path], *, gpus: int) -> Sequence[Path]:
    """The shards that a process has its engine generate."""
    if config.engine == "endpoint":
        return share.mine(shards)
    wide = config.tensor_parallel if gpus else share.per_machine
    engines = max(1, share.per_machine // wide)
    machine, local = divmod(share.index, share.per_machine)
    if local % wide or local // wide >= engines:
        return ()
    return shards[machine * engines + local // wide :: share.count // share.per_machine * engines]


def require_possible(engine: str, decoded: Decoded, limits: Limits, vocab_size: int) -> None:
    """Raise UserError for a response that the target cannot have written."""
    ids, is_full = decoded.token_ids, len(decoded.token_ids) == limits.max_new_tokens
    is_possible = (
        ids
        and unknown_id(ids, vocab_size) is None
        and limits.stop_ids.isdisjoint(ids[:-1])
        and decoded.stopped == (ids[-1] in limits.stop_ids)
        and (is_full or (decoded.stopped and len(ids) < limits.max_new_tokens))
    )
    if not is_possible:
        raise UserError(
            f"{engine}: {len(ids)} tokens ending in {list(ids[-3:])}, stopped={decoded.stopped}, are no response of "
            f"the target: vocab_size {vocab_size}, stop tokens {sorted(limits.stop_ids)}, max_new_tokens "
            f"{limits.max_new_tokens}. Serve the target's own folder with its own tokenizer."
        )


@torch.inference_mode()
def check_agreement(
    model: PreTrainedModel,
    responses: Sequence[tuple[Sequence[int], Sequence[int]]],
    sampling: Sampling,
    engine: str,
) -> str:
    """Raise UserError unless the target can have written some responses, given as pairs of prompt and response ids.

    Greedy: wherever the target prefers another token, the engine's must nearly tie with it, by TIE_FACTOR times what
    eval.lossless lets decoders here differ by; weights in 8 or 4 bits tie far more often than rounding does.
    Sampled: a token drawn from p has -log p(y), whose mean is the entropy of p. The sum of the differences is a
    martingale, and divided by its standard deviation within MAX_SIGMAS; another temperature, filter or model is not.
    """
    tokens = ties = outside = 0
    excess, surprise, variance = 0.0, 0.0, 0.0
    for prompt, ids in responses:
        logits_TV = answer_logits(model, prompt, ids)
        seen_TV = seen_along(prompt, ids, sampling, logits_TV)
        taken_T = torch.tensor(ids, device=logits_TV.device)
        tokens += len(ids)
        if sampling.is_greedy:
            gap_T, tolerance_T = shortfalls(penalised(logits_TV, sampling, seen_TV), taken_T, model.dtype)
            ties += int((gap_T > 0).sum())
            excess = max(excess, float((gap_T / (TIE_FACTOR * tolerance_T)).max()))
        else:
            logp_TV = log_distribution(logits_TV, sampling, seen_TV).double()
            entropy_T = torch.special.entr(logp_TV.exp()).sum(dim=-1)
            second_T = (logp_TV.exp() * logp_TV.square().nan_to_num(posinf=0.0)).sum(dim=-1)
            logp_T = logp_TV.gather(1, taken_T[:, None])[:, 0]
            inside_T = ~logp_T.isneginf()
            outside += int((~inside_T).sum())
            surprise += float((-logp_T - entropy_T)[inside_T].sum())
            variance += float((second_T - entropy_T.square()).clamp(min=0)[inside_T].sum())
    sigmas = surprise / variance**0.5 if variance else 0.0
    is_other = excess > 1 or ties > max(MIN_TIES, MAX_TIE_SHARE * tokens)
    is_other |= abs(sigmas) > MAX_SIGMAS or outside > max(1.0, MAX_OUTSIDE_SHARE * tokens)
    found = (
        f"{ties} of {tokens} tokens are not the target's argmax, the largest gap {excess:.2f} of what rounding explains"
        if sampling.is_greedy
        else f"{tokens} tokens {sigmas:+.1f} standard deviations from the expected log-probability, {outside} outside"
    )
    if is_other:
        raise UserError(
            f"{engine}: does not generate as the target here does: {found}. Serve the target's own folder in the dtype "
            "of the recipe (target.dtype, eval.dtype), and nothing between it and these requests."
        )
    return found
