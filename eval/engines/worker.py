"""Script for an engine's own environment; imports nothing of this project.

    PYTHON worker.py certify|benchmark vllm|llama.cpp|openvino
    PYTHON worker.py serve vllm|llama.cpp
    PYTHON worker.py generate

Lines of JSON are replied to with lines of JSON.

`certify` decodes every conversation of the request with and without the draft, in random order, and then with the
target as its own draft; eval.engines.runs reads the reply. Each engine renders conversations with the target's own
tokenizer and chat template.

`benchmark` opens the target with one method of speculation, then decodes the prompts of each line at once
(eval.engines.engine_speed). `serve` does the same with the engine's default settings (eval.engines.as_served).
`generate` runs vLLM for eval.engines.external_generate: the first line holds the arguments
of `LLM`, each further line prompts of token ids, their seeds and sampling settings.
"""

# pyright: reportMissingImports=false

import gc
import json
import os
import random
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, Protocol

VLLM_COUNTERS = "vllm:spec_decode_num_"
VLLM_CACHE_GIB = {"certify": "1", "benchmark": "1", "serve": "4", "generate": "4"}  # of each engine, on a CPU
OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Engine(Protocol):
    """The target in an engine, with or without a draft."""

    def decode(self, messages: Any, /) -> dict[str, Any]:
        """Decode one conversation greedily; return prompt_ids, ids, elapsed_s and the engine's counters."""
        ...

    def close(self) -> None: ...


class ExternalEngine(Engine, Protocol):
    """One that also decodes token ids."""

    def decode_together(self, prompts: list[list[int]], sampling: list[dict[str, Any]], /) -> dict[str, Any]:
        """Decode prompts of token ids at once, each with vLLM's sampling settings.

        Returns:
            ids of each response; first_s and last_s, seconds until the first and last token of each; steps, the
            verification steps that are known to have proposed tokens; accepted, the tokens of the draft or prompt
            lookup, by position or only their sum; the engine's counters.
        """
        ...


OpenEngine = Callable[[dict[str, Any], str | None], Engine]  # of a request and a draft; None: the target only


def to_stderr(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def decode_all(
    open_engine: OpenEngine, request: dict[str, Any], report: Callable[[str], None] = to_stderr
) -> dict[str, Any]:
    """Decode each conversation with and without the draft, after one untimed; then with the target as its own draft."""
    engines = {"plain": open_engine(request, None), "drafted": open_engine(request, request["draft"])}
    conversations = request["conversations"]
    for engine in engines.values():
        engine.decode(conversations[0])
    order, texts = random.Random(request["seed"]), []  # noqa: S311  # not for security
    for messages in conversations:
        texts.append({name: engines[name].decode(messages) for name in order.sample(list(engines), 2)})
        report(f"without and with the draft: {len(texts)} of {len(conversations)}")
    for engine in engines.values():
        engine.close()
    itself = open_engine(request, request["target"])
    own = []
    for messages in conversations:
        own.append(itself.decode(messages))
        report(f"with the target as draft: {len(own)} of {len(conversations)}")
    itself.close()
    return {"texts": texts, "own": own}


def without_processes_on_cpus() -> None:
    """On a CPU, let vLLM compute in this process: its processes wait for each other in busy loops, on our cores."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


class VllmEngine:
    """vLLM, on a CPU in this process."""

    def __init__(self, request: dict[str, Any], draft: str | None) -> None:
        from vllm import LLM
        from vllm.platforms import current_platform

        without_processes_on_cpus()

        settings: dict[str, Any] = dict(request.get("engine_settings", {"enforce_eager": True}))
        if not request.get("as_served"):
            settings |= {"max_num_seqs": request.get("batch_size", 1), "enable_prefix_caching": False}
            if current_platform.is_cpu():  # compiling takes minutes per process, and 1 GB
                settings["enforce_eager"] = True
        if request.get("lookup"):
            k = request["num_speculative_tokens"]
            settings["speculative_config"] = {"method": "ngram", "num_speculative_tokens": k, **request["lookup"]}
        elif draft is not None:
            settings["speculative_config"] = {
                "method": "draft_model",
                "model": draft,
                "num_speculative_tokens": request["num_speculative_tokens"],
                **(request["draft_settings"] if draft == request["draft"] else {}),
            }
        self.request, self.longest_prompt = request, 0
        self.engine = LLM(
            request["target"],
            dtype=request["dtype"],
            max_model_len=request["max_model_len"],
            disable_log_stats=False,
            **settings,
        )

    def decode(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Decode greedily; return the text's ids, its seconds, and the increase of each counter."""
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0.0, max_tokens=self.request["max_new_tokens"])
        before, start_s = self.counters(), time.perf_counter()
        if self.request["is_chat"]:
            given = {"chat_template_kwargs": self.request["chat_template_kwargs"]}
            [output] = self.engine.chat([messages], greedy, use_tqdm=False, **given)
        else:
            [output] = self.engine.generate([messages[0]["content"]], greedy, use_tqdm=False)
        elapsed_s = time.perf_counter() - start_s
        return {
            "prompt_ids": list(output.prompt_token_ids),
            "ids": list(output.outputs[0].token_ids),
            "elapsed_s": elapsed_s,
            "counters": {name: increase(value, before.get(name)) for name, value in self.counters().items()},
        }

    def decode_together(self, prompts: list[list[int]], sampling: list[dict[str, Any]]) -> dict[str, Any]:
        """See Engine."""
        from vllm import SamplingParams

        before = self.counters()
        self.longest_prompt = max(self.longest_prompt, *map(len, prompts))
        given = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = self.engine.generate(given, [SamplingParams(**each) for each in sampling], use_tqdm=False)
        counters = {name: increase(value, before.get(name)) for name, value in self.counters().items()}
        stats = [output.metrics for output in outputs]
        return {
            "ids": [list(output.outputs[0].token_ids) for output in outputs],
            "steps": counters.get("drafts", 0),
            "accepted": counters.get("accepted_tokens_per_pos", []),
            "first_s": [each.first_token_latency for each in stats],
            "last_s": [each.first_token_latency + each.last_token_ts - each.first_token_ts for each in stats],
            "counters": counters,
        }

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


class LlamaServer:
    """llama.cpp's server from the Python package xllamacpp."""

    def __init__(self, request: dict[str, Any], draft: str | None) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = request["target"]
        slots = request.get("batch_size", 1)
        params.n_ctx, params.n_parallel, params.n_gpu_layers = request["max_model_len"] * slots, slots, 0
        if request.get("as_served"):  # requests share one cache
            params.n_ctx, params.kv_unified = request["cache_tokens"], True
        params.cpuparams.n_threads = request["threads"]
        params.port, params.verbosity = 0, 0
        kinds = xllamacpp.common_speculative_type
        if request.get("lookup"):
            lookup = params.speculative.ngram_simple
            lookup.size_n, lookup.size_m = request["lookup"]["size_n"], request["lookup"]["size_m"]
            params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        if draft is not None:
            settings = params.speculative.draft
            settings.mparams.path, settings.n_max, settings.n_min, settings.p_min = (
                draft,
                request["num_speculative_tokens"],
                0,
                request.get("draft_p_min", 0.0),
            )
            settings.cpuparams.n_threads = request["threads"]
            chain = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE] if request.get("lookup") else []
            params.speculative.types = [*chain, kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        self.request, self.batch_tokens = request, params.n_batch
        self.longest_prompt = self.cached_tokens = 0
        self.server = xllamacpp.Server(params)

    def decode(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Decode greedily; return the text's ids, its seconds and the server's counters."""
        prompt = self.prompt_ids(messages)
        start_s = time.perf_counter()
        reply = self.complete(prompt, {"max_tokens": self.request["max_new_tokens"], "temperature": 0})
        elapsed_s = time.perf_counter() - start_s
        return {
            "prompt_ids": prompt,
            "ids": reply["tokens"],
            "elapsed_s": elapsed_s,
            "proposed": reply["timings"].get("draft_n", 0),
            "accepted": reply["timings"].get("draft_n_accepted", 0),
        }

    def complete(self, prompt: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        same = {name: sampling[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed") if name in sampling}
        given = {"prompt": prompt, "n_predict": sampling["max_tokens"], **same}
        cached, start_s = bool(self.request.get("as_served")), time.perf_counter()
        reply = self.post("completion", {**given, "cache_prompt": cached, "return_tokens": True})
        return {**reply, "elapsed_s": time.perf_counter() - start_s}

    def decode_together(self, prompts: list[list[int]], sampling: list[dict[str, Any]]) -> dict[str, Any]:
        """See Engine."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            replies = list(pool.map(self.complete, prompts, sampling))
        timings = [reply["timings"] for reply in replies]
        self.longest_prompt = max(self.longest_prompt, *map(len, prompts))
        self.cached_tokens += sum(each.get("cache_n", 0) for each in timings)
        counters = {name: sum(each.get(name, 0) for each in timings) for name in ("draft_n", "draft_n_accepted")}
        return {
            "ids": [reply["tokens"] for reply in replies],
            "steps": sum(map(self.num_steps, replies)),
            "accepted": [counters["draft_n_accepted"]],
            "first_s": [reply["elapsed_s"] - reply["timings"]["predicted_ms"] / 1000 for reply in replies],
            "last_s": [reply["elapsed_s"] for reply in replies],
            "counters": counters,
        }

    def num_steps(self, reply: dict[str, Any]) -> int:
        """Return the verification steps of a text: at least the tokens that were not accepted, which are one each.

        The server also counts tokens accepted beyond a stop token, not beyond max_tokens; then the proposals tell more.
        """
        proposed, accepted = (reply["timings"].get(name, 0) for name in ("draft_n", "draft_n_accepted"))
        longest = max(self.request["num_speculative_tokens"], (self.request.get("lookup") or {}).get("size_m", 0), 1)
        return max(len(reply["tokens"]) - 1 - accepted, -(-proposed // longest))

    def features(self) -> dict[str, bool]:
        """Return what the server has used so far, by name."""
        return {
            "chunked prefill": self.longest_prompt > self.batch_tokens,
            "prefix caching": self.cached_tokens > 0,
            "one cache of all requests": True,
        }

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        text = messages[0]["content"]
        if self.request["is_chat"]:
            given = {"messages": messages, "chat_template_kwargs": self.request["chat_template_kwargs"]}
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

    def __init__(self, request: dict[str, Any], draft: str | None) -> None:
        import openvino_genai

        precision = OPENVINO_PRECISIONS[request["dtype"]]
        properties = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "INFERENCE_NUM_THREADS": request["threads"],
        }
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching, scheduler.dynamic_split_fuse = 1, False, False
        settings = {**properties, "scheduler_config": scheduler}
        if draft is not None:
            settings["draft_model"] = openvino_genai.draft_model(draft, "CPU", **properties)
        self.request, self.has_draft = request, draft is not None
        self.pipeline = openvino_genai.LLMPipeline(request["target"], "CPU", **settings)

    def decode(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Decode greedily; return ids, seconds, and the tokens of each of the target's runs, the prompt's first."""
        prompt = self.prompt_ids(messages)
        start_s = time.perf_counter()
        output = self.generate(prompt, {"max_tokens": self.request["max_new_tokens"], "temperature": 0})
        elapsed_s = time.perf_counter() - start_s
        return {
            "prompt_ids": prompt,
            "ids": list(output.tokens[0]),
            "elapsed_s": elapsed_s,
            "given": self.tokens_of_runs(output),
        }

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
        if self.has_draft:
            settings.num_assistant_tokens = self.request["num_speculative_tokens"]
            settings.assistant_confidence_threshold = 0.0
        return self.pipeline.generate(openvino.Tensor(np.array([prompt], dtype=np.int64)), settings)

    def tokens_of_runs(self, output: Any) -> list[int]:
        if not self.has_draft:
            return []
        return [int(size) for size in output.extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes]

    def decode_together(self, prompts: list[list[int]], sampling: list[dict[str, Any]]) -> dict[str, Any]:
        """See Engine; one prompt."""
        [prompt], [settings] = prompts, sampling
        start_s = time.perf_counter()
        output = self.generate(prompt, settings)
        elapsed_s = time.perf_counter() - start_s
        accepted = [tokens - 1 for tokens in self.tokens_of_runs(output)[1:]]
        positions = range(self.request["num_speculative_tokens"])
        return {
            "ids": [list(output.tokens[0])],
            "steps": len(accepted),
            "accepted": [sum(each > position for each in accepted) for position in positions],
            "first_s": [output.perf_metrics.get_ttft().mean / 1000],
            "last_s": [elapsed_s],
        }

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        tokenizer = self.pipeline.get_tokenizer()
        if not self.request["is_chat"]:
            return tokenizer.encode(messages[0]["content"]).input_ids.data[0].tolist()
        context = self.request["chat_template_kwargs"]
        more = {"extra_context": context} if context else {}
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **more)
        return tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()

    def close(self) -> None:
        del self.pipeline


ENGINES: dict[
    str, tuple[Callable[[dict[str, Any], str | None], ExternalEngine], str]
] = {  # with the package whose version is reported
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


def only_replies() -> Callable[[dict[str, Any]], None]:
    """Return a function that writes a reply to stdout; whatever an engine prints goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lambda reply: print(json.dumps(reply), file=replies, flush=True)


def certify(name: str) -> None:
    reply, (open_engine, package) = only_replies(), ENGINES[name]
    decoded = decode_all(open_engine, json.loads(sys.stdin.readline()), lambda text: reply({"progress": text}))
    reply({"version": package_version(package), **decoded})


def benchmark(name: str) -> None:
    """Open the target with one method of speculation; decode and time the prompts of each line at once.

    An empty object asks for the features of an engine that serves.
    """
    reply, (open_engine, package) = only_replies(), ENGINES[name]
    request = json.loads(sys.stdin.readline())
    engine: Any = open_engine(request, request["draft"])
    reply({"version": package_version(package)})
    for line in sys.stdin:
        asked = json.loads(line)
        if not asked:
            reply(engine.features())
            continue
        start_s = time.perf_counter()
        decoded = engine.decode_together(asked["prompts"], asked["sampling"])
        reply({**decoded, "elapsed_s": time.perf_counter() - start_s})
    engine.close()


def generate() -> None:
    """Reply to each line of stdin with one line."""
    reply = only_replies()

    import vllm

    without_processes_on_cpus()
    settings = json.loads(sys.stdin.readline())
    llm = vllm.LLM(**settings, generation_config="vllm")  # ignores the checkpoint's sampling settings
    reply({"version": vllm.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
        params = [vllm.SamplingParams(**request["sampling"], seed=seed) for seed in request["seeds"]]
        outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        responses = [[list(output.token_ids), output.finish_reason == "stop"] for output in outputs]
        reply({"responses": responses})


def main(command: str, *arguments: str) -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", VLLM_CACHE_GIB[command])
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    commands = {"certify": certify, "benchmark": benchmark, "serve": benchmark, "generate": generate}
    commands[command](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
