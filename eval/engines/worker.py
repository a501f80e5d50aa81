"""Script for an engine's own environment; imports nothing of this project.

    PYTHON worker.py vllm|llama.cpp|openvino

Each line of JSON, {"engine": NUMBER, "call": NAME, "arguments": [...]}, is replied to with one, what the call returns
(eval.engines.worker_process). The call `open` with an EngineRequest opens an engine under the number and returns the
version of its package; the others are its methods.
"""

# pyright: reportMissingImports=false

import gc
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol, TypedDict

VLLM_COUNTERS = "vllm:spec_decode_num_"
OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """The target and how an engine opens it.

    Attributes:
        target: Directory or file, as for the draft; draft None: without.
        has_own_tokenizer: The draft, so that vLLM maps its tokens.
        lookup: The engine's settings of prompt lookup, in front of the draft if there is one; empty for none.
        concurrency: Prompts decoded at once.
        as_served: With the engine's defaults, among them a prefix cache.
        cache_tokens: Of llama.cpp's requests together, with as_served.
        is_chat: Conversations are rendered with the chat template; otherwise they are one message of raw text.
        engine_settings: Further arguments of vLLM's LLM.
    """

    target: str
    max_model_len: int
    dtype: str
    draft: str | None = None
    has_own_tokenizer: bool = False
    num_speculative_tokens: int = 0
    draft_p_min: float = 0.0
    lookup: dict[str, int] = field(default_factory=dict)
    threads: int = 1
    concurrency: int = 1
    as_served: bool = False
    cache_tokens: int = 0
    is_chat: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    engine_settings: dict[str, Any] = field(default_factory=dict)


class Reply(TypedDict):
    """Prompts decoded at once; vLLM also replies which responses a stop token ended, `stopped`.

    Attributes:
        prompt_ids: As the engine read each prompt.
        first_s: Seconds until the first token of each response; last_s: until the last.
        elapsed_s: Until all were there.
        steps: Verification steps that are known to have proposed tokens.
        proposed: Tokens of the draft or prompt lookup; accepted: those of them that were.
        by_position: Accepted tokens by position in a step; None if the engine does not report them.
    """

    prompt_ids: list[list[int]]
    ids: list[list[int]]
    first_s: list[float]
    last_s: list[float]
    elapsed_s: float
    steps: int
    proposed: int
    accepted: int
    by_position: list[int] | None


class Engine(Protocol):
    """The target in an engine, with or without a draft."""

    def decode(self, prompts: Any, sampling: list[dict[str, Any]], /) -> Reply:
        """Decode prompts at once, each with vLLM's sampling settings.

        A prompt is a list of token ids, or a conversation, which the engine renders with the target's own tokenizer
        and chat template.
        """
        ...

    def close(self) -> None: ...


def without_processes_on_cpus() -> None:
    """On a CPU, let vLLM compute in this process: its processes wait for each other in busy loops, on our cores."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


class VllmEngine:
    """vLLM, on a CPU in this process."""

    def __init__(self, request: EngineRequest) -> None:
        from vllm import LLM
        from vllm.platforms import current_platform

        without_processes_on_cpus()
        settings: dict[str, Any] = {"max_num_seqs": request.concurrency, **request.engine_settings}
        if not request.as_served:
            settings["enable_prefix_caching"] = False
            if current_platform.is_cpu():  # compiling takes minutes per process, and 1 GB
                settings["enforce_eager"] = True
        method: dict[str, Any] | None = {"method": "ngram", **request.lookup} if request.lookup else None
        if request.draft is not None:
            method = {"method": "draft_model", "model": request.draft}
            if request.has_own_tokenizer:
                method["use_heterogeneous_vocab"] = True
        if method is not None:
            settings["speculative_config"] = method | {"num_speculative_tokens": request.num_speculative_tokens}
        self.request, self.longest_prompt = request, 0
        self.engine = LLM(
            model=request.target,
            dtype=request.dtype,
            max_model_len=request.max_model_len,
            disable_log_stats=False,
            **settings,
        )

    def decode(self, prompts: list[list[Any]], sampling: list[dict[str, Any]]) -> Reply:
        from vllm import SamplingParams

        params = [SamplingParams(**each) for each in sampling]
        before, start_s = self.counters(), time.perf_counter()
        if is_conversation(prompts[0]) and self.request.is_chat:
            kwargs = self.request.chat_template_kwargs
            outputs = self.engine.chat(prompts, params, use_tqdm=False, chat_template_kwargs=kwargs)
        else:
            given = [p[0]["content"] if is_conversation(p) else {"prompt_token_ids": p} for p in prompts]
            outputs = self.engine.generate(given, params, use_tqdm=False)
        elapsed_s = time.perf_counter() - start_s
        counters = {name: increase(value, before.get(name)) for name, value in self.counters().items()}
        prompt_ids = [list(output.prompt_token_ids) for output in outputs]
        self.longest_prompt = max(self.longest_prompt, *map(len, prompt_ids))
        stats = [output.metrics for output in outputs]
        reply: Any = {
            "prompt_ids": prompt_ids,
            "ids": [list(output.outputs[0].token_ids) for output in outputs],
            "stopped": [output.outputs[0].finish_reason == "stop" for output in outputs],
            "first_s": [each.first_token_latency for each in stats],
            "last_s": [each.first_token_latency + each.last_token_ts - each.first_token_ts for each in stats],
            "elapsed_s": elapsed_s,
            "steps": counters.get("drafts", 0),
            "proposed": counters.get("draft_tokens", 0),
            "accepted": counters.get("accepted_tokens", 0),
            "by_position": counters.get("accepted_tokens_per_pos"),
        }
        return reply

    def features(self) -> dict[str, bool]:
        """Return what the engine has used so far, by name."""
        config = self.engine.llm_engine.vllm_config
        scheduler, compiled = config.scheduler_config, config.compilation_config
        hits = sum(metric.value for metric in self.engine.get_metrics() if metric.name == "vllm:prefix_cache_hits")
        return {
            "compiled model": bool(compiled.mode),
            "CUDA graphs": compiled.cudagraph_mode.name != "NONE",
            "chunked prefill": self.longest_prompt > scheduler.max_num_batched_tokens,
            "prefix caching": hits > 0,
            "async scheduling": bool(scheduler.async_scheduling),
        }

    def counters(self) -> dict[str, Any]:
        """Return vLLM's counters of speculative decoding by name, without the prefix."""
        counters: dict[str, Any] = {}
        for metric in self.engine.get_metrics():
            if metric.name.startswith(VLLM_COUNTERS):
                value = list(metric.values) if hasattr(metric, "values") else metric.value
                counters[metric.name.removeprefix(VLLM_COUNTERS)] = value
        return counters

    def close(self) -> None:
        self.engine.llm_engine.engine_core.shutdown()
        del self.engine
        gc.collect()  # weights and cache of an engine in this process


def increase(after: Any, before: Any) -> Any:
    """Subtract an earlier value of a counter, or of one per position; a counter that did not exist was 0."""
    if isinstance(after, list):
        return [later - earlier for later, earlier in zip(after, before or [0] * len(after), strict=True)]
    return after - (before or 0)


def is_conversation(prompt: list[Any]) -> bool:
    return isinstance(prompt[0], dict)


class LlamaServer:
    """llama.cpp's server from the Python package xllamacpp."""

    def __init__(self, request: EngineRequest) -> None:
        import xllamacpp

        params, slots = xllamacpp.CommonParams(), request.concurrency
        params.model.path = request.target
        params.n_ctx, params.n_parallel, params.n_gpu_layers = request.max_model_len * slots, slots, 0
        if request.as_served:  # requests share one cache
            params.n_ctx, params.kv_unified = request.cache_tokens, True
        params.cpuparams.n_threads = request.threads
        params.port, params.verbosity = 0, 0
        kinds, types = xllamacpp.common_speculative_type, []
        if request.lookup:
            lookup = params.speculative.ngram_simple
            lookup.size_n, lookup.size_m = request.lookup["size_n"], request.lookup["size_m"]
            types.append(kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE)
        if request.draft is not None:
            settings = params.speculative.draft
            settings.mparams.path, settings.n_max, settings.n_min, settings.p_min = (
                request.draft,
                request.num_speculative_tokens,
                0,
                request.draft_p_min,
            )
            settings.cpuparams.n_threads = request.threads
            types.append(kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE)
        if types:
            params.speculative.types = types
        self.request, self.batch_tokens = request, params.n_batch
        self.longest_prompt = self.cached_tokens = 0
        self.server = xllamacpp.Server(params)

    def complete(self, prompt: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        same = {name: sampling[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed") if name in sampling}
        given = {"prompt": prompt, "n_predict": sampling["max_tokens"], **same}
        start_s = time.perf_counter()
        reply = self.post("completion", {**given, "cache_prompt": self.request.as_served, "return_tokens": True})
        return {**reply, "elapsed_s": time.perf_counter() - start_s}

    def decode(self, prompts: list[list[Any]], sampling: list[dict[str, Any]]) -> Reply:
        prompts = [self.render(prompt) if is_conversation(prompt) else prompt for prompt in prompts]
        start_s = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            replies = list(pool.map(self.complete, prompts, sampling))
        elapsed_s = time.perf_counter() - start_s
        timings = [reply["timings"] for reply in replies]
        self.longest_prompt = max(self.longest_prompt, *map(len, prompts))
        self.cached_tokens += sum(each.get("cache_n", 0) for each in timings)
        return {
            "prompt_ids": prompts,
            "ids": [reply["tokens"] for reply in replies],
            "first_s": [reply["elapsed_s"] - reply["timings"]["predicted_ms"] / 1000 for reply in replies],
            "last_s": [reply["elapsed_s"] for reply in replies],
            "elapsed_s": elapsed_s,
            "steps": sum(map(self.num_steps, replies)),
            "proposed": sum(each.get("draft_n", 0) for each in timings),
            "accepted": sum(each.get("draft_n_accepted", 0) for each in timings),
            "by_position": None,
        }

    def num_steps(self, reply: dict[str, Any]) -> int:
        """Return the verification steps of a text: at least the tokens that were not accepted, which are one each.

        The server also counts tokens accepted beyond a stop token, not beyond max_tokens; then the proposals tell more.
        """
        proposed, accepted = (reply["timings"].get(name, 0) for name in ("draft_n", "draft_n_accepted"))
        longest = max(self.request.num_speculative_tokens, self.request.lookup.get("size_m", 0), 1)
        return max(len(reply["tokens"]) - 1 - accepted, -(-proposed // longest))

    def features(self) -> dict[str, bool]:
        """Return what the server has used so far, by name."""
        return {
            "chunked prefill": self.longest_prompt > self.batch_tokens,
            "prefix caching": self.cached_tokens > 0,
            "one cache of all requests": True,
        }

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        text = messages[0]["content"]
        if self.request.is_chat:
            given = {"messages": messages, "chat_template_kwargs": self.request.chat_template_kwargs}
            text = self.post("apply-template", given)["prompt"]
        return self.post("tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Post JSON to the server and return its reply."""
        address = f"{self.server.listening_address}/{path}"
        request = urllib.request.Request(  # noqa: S310  # its own server
            address if "://" in address else f"http://{address}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=3600) as reply:  # noqa: S310
            return json.loads(reply.read())

    def close(self) -> None:
        del self.server


class OpenVinoPipeline:
    """OpenVINO GenAI on folders in OpenVINO's format.

    By default OpenVINO computes in bfloat16 and keeps an 8-bit cache where it can; here products and cache of both
    models have the requested dtype.
    """

    def __init__(self, request: EngineRequest) -> None:
        import openvino_genai

        precision = OPENVINO_PRECISIONS[request.dtype]
        properties = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "INFERENCE_NUM_THREADS": request.threads,
        }
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching, scheduler.dynamic_split_fuse = 1, False, False
        settings = {**properties, "scheduler_config": scheduler}
        if request.draft is not None:
            settings["draft_model"] = openvino_genai.draft_model(request.draft, "CPU", **properties)
        self.request = request
        self.pipeline = openvino_genai.LLMPipeline(request.target, "CPU", **settings)

    def generate(self, prompt: list[int], sampling: dict[str, Any]) -> Any:
        import numpy as np
        import openvino

        settings = self.pipeline.get_generation_config()
        settings.max_new_tokens, settings.do_sample = sampling["max_tokens"], sampling["temperature"] > 0
        if settings.do_sample:
            settings.temperature, settings.top_p, settings.rng_seed = (
                sampling["temperature"],
                sampling["top_p"],
                sampling["seed"],
            )
            settings.top_k, settings.min_p = sampling["top_k"] or sys.maxsize, sampling["min_p"]
        if self.request.draft is not None:
            settings.num_assistant_tokens = self.request.num_speculative_tokens
            settings.assistant_confidence_threshold = 0.0
        return self.pipeline.generate(openvino.Tensor(np.array([prompt], dtype=np.int64)), settings)

    def decode(self, prompts: list[list[Any]], sampling: list[dict[str, Any]]) -> Reply:
        """Decode one prompt."""
        [prompt], [settings] = prompts, sampling
        prompt = self.render(prompt) if is_conversation(prompt) else prompt
        start_s = time.perf_counter()
        output = self.generate(prompt, settings)
        elapsed_s = time.perf_counter() - start_s
        emitted, k = [], self.request.num_speculative_tokens  # by each run of the target but the prompt's
        if self.request.draft is not None:
            sizes = output.extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes
            emitted = [int(size) for size in sizes][1:]
        return {
            "prompt_ids": [prompt],
            "ids": [list(output.tokens[0])],
            "first_s": [output.perf_metrics.get_ttft().mean / 1000],
            "last_s": [elapsed_s],
            "elapsed_s": elapsed_s,
            "steps": len(emitted),
            # Each step proposes k tokens, or those left before the text's last one.
            "proposed": sum(min(k, sum(emitted[step:]) - 1) for step in range(len(emitted))),
            "accepted": sum(emitted) - len(emitted),
            "by_position": [sum(tokens - 1 > position for tokens in emitted) for position in range(k)],
        }

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        tokenizer = self.pipeline.get_tokenizer()
        if not self.request.is_chat:
            return tokenizer.encode(messages[0]["content"]).input_ids.data[0].tolist()
        context = self.request.chat_template_kwargs
        more = {"extra_context": context} if context else {}
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **more)
        return tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()

    def close(self) -> None:
        del self.pipeline


ENGINES: dict[str, tuple[Callable[[EngineRequest], Engine], str]] = {  # with the package whose version is reported
    "vllm": (VllmEngine, "vllm"),
    "llama.cpp": (LlamaServer, "xllamacpp"),
    "openvino": (OpenVinoPipeline, "openvino-genai"),
}


def package_version(package: str) -> str:
    """Return the version of an engine; vLLM's CPU builds have another package name, so the module is asked."""
    if package == "vllm":
        import vllm

        return vllm.__version__
    return f"xllamacpp {version(package)}" if package == "xllamacpp" else version(package)


def only_replies() -> Callable[[Any], None]:
    """Return a function that writes a reply to stdout; whatever an engine prints goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lambda reply: print(json.dumps(reply), file=replies, flush=True)


def main(name: str) -> None:
    reply, (open_engine, package) = only_replies(), ENGINES[name]
    engines: dict[int, Engine] = {}
    for line in sys.stdin:
        message = json.loads(line)
        number, call, arguments = message["engine"], message["call"], message["arguments"]
        if call == "open":
            request = EngineRequest(**arguments[0])
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4" if request.as_served else "1")  # GiB of each engine
            os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
            engines[number] = open_engine(request)
            reply(package_version(package))
        else:
            engine = engines.pop(number) if call == "close" else engines[number]
            reply(getattr(engine, call)(*arguments))
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
