"""Script for an engine's own environment; imports nothing of this project.

    PYTHON worker.py certify vllm|llama.cpp|openvino REQUEST.json REPLY.json
    PYTHON worker.py generate

`certify` decodes every conversation of the request with and without the draft, in random order, and then with the
target as its own draft; eval.engines.runs reads the reply. Each engine renders conversations with the target's own
tokenizer and chat template.

`generate` runs vLLM for eval.engines.external_generate. The first line of its input holds the arguments of `LLM`; each
further line holds prompts of token ids, their seeds and sampling settings. It writes one line for each.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

VLLM_COUNTERS = "vllm:spec_decode_num_"
VLLM_CACHE_GIB = {"certify": "1", "generate": "4"}  # of each engine, on a CPU
OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Engine(Protocol):
    """The target in an engine, with or without a draft; decodes one conversation at a time."""

    def decode(self, messages: Any, /) -> dict[str, Any]:
        """Decode greedily; return prompt_ids, ids, elapsed_s and the engine's counters."""
        ...

    def close(self) -> None: ...


OpenEngine = Callable[[dict[str, Any], str | None], Engine]  # of a request and a draft; None: the target only


def decode_all(open_engine: OpenEngine, request: dict[str, Any]) -> dict[str, Any]:
    """Decode each conversation with and without the draft, after one untimed; then with the target as its own draft."""
    engines = {"plain": open_engine(request, None), "drafted": open_engine(request, request["draft"])}
    conversations = request["conversations"]
    for engine in engines.values():
        engine.decode(conversations[0])
    order, texts = random.Random(request["seed"]), []  # noqa: S311  # not for security
    for messages in conversations:
        texts.append({name: engines[name].decode(messages) for name in order.sample(list(engines), 2)})
        print(f"without and with the draft: {len(texts)} of {len(conversations)}", file=sys.stderr, flush=True)
    for engine in engines.values():
        engine.close()
    itself = open_engine(request, request["target"])
    own = []
    for messages in conversations:
        own.append(itself.decode(messages))
        print(f"with the target as draft: {len(own)} of {len(conversations)}", file=sys.stderr, flush=True)
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

        without_processes_on_cpus()

        settings: dict[str, Any] = {}
        if draft is not None:
            settings["speculative_config"] = {
                "method": "draft_model",
                "model": draft,
                "num_speculative_tokens": request["num_speculative_tokens"],
                **(request["draft_settings"] if draft == request["draft"] else {}),
            }
        self.request = request
        self.engine = LLM(
            request["target"],
            dtype=request["dtype"],
            max_model_len=request["max_model_len"],
            max_num_seqs=1,
            enforce_eager=True,
            disable_log_stats=False,
            enable_prefix_caching=False,
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
        params.n_ctx, params.n_parallel, params.n_gpu_layers = request["max_model_len"], 1, 0
        params.cpuparams.n_threads = request["threads"]
        params.port, params.verbosity = 0, 0
        if draft is not None:
            settings = params.speculative.draft
            settings.mparams.path, settings.n_max, settings.n_min, settings.p_min = (
                draft,
                request["num_speculative_tokens"],
                0,
                0.0,
            )
            settings.cpuparams.n_threads = request["threads"]
            params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        self.request = request
        self.server = xllamacpp.Server(params)

    def decode(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Decode greedily; return the text's ids, its seconds and the server's counters."""
        prompt = self.prompt_ids(messages)
        body = {
            "prompt": prompt,
            "n_predict": self.request["max_new_tokens"],
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
        }
        start_s = time.perf_counter()
        reply = self.post("completion", body)
        elapsed_s = time.perf_counter() - start_s
        return {
            "prompt_ids": prompt,
            "ids": reply["tokens"],
            "elapsed_s": elapsed_s,
            "proposed": reply["timings"].get("draft_n", 0),
            "accepted": reply["timings"].get("draft_n_accepted", 0),
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
        with urllib.request.urlopen(request, timeout=600) as reply:  # noqa: S310
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
        import numpy as np
        import openvino

        prompt = self.prompt_ids(messages)
        inputs = openvino.Tensor(np.array([prompt], dtype=np.int64))
        settings = self.pipeline.get_generation_config()
        settings.max_new_tokens, settings.do_sample = self.request["max_new_tokens"], False
        if self.has_draft:
            settings.num_assistant_tokens = self.request["num_speculative_tokens"]
            settings.assistant_confidence_threshold = 0.0
        start_s = time.perf_counter()
        output = self.pipeline.generate(inputs, settings)
        elapsed_s = time.perf_counter() - start_s
        given = []
        if self.has_draft:
            given = [int(size) for size in output.extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes]
        return {"prompt_ids": prompt, "ids": list(output.tokens[0]), "elapsed_s": elapsed_s, "given": given}

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


ENGINES: dict[str, tuple[OpenEngine, str]] = {  # with the package whose version is reported
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


def certify(engine: str, request_file: Path, reply_file: Path) -> None:
    open_engine, package = ENGINES[engine]
    request = json.loads(request_file.read_text(encoding="utf-8"))
    reply = {"version": package_version(package), **decode_all(open_engine, request)}
    reply_file.write_text(json.dumps(reply), encoding="utf-8")


def generate() -> None:
    """Reply to each line of stdin with one line; whatever vLLM prints goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    import vllm

    without_processes_on_cpus()
    settings = json.loads(sys.stdin.readline())
    llm = vllm.LLM(**settings, generation_config="vllm")  # ignores the checkpoint's sampling settings
    print(json.dumps({"version": vllm.__version__}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
        params = [vllm.SamplingParams(**request["sampling"], seed=seed) for seed in request["seeds"]]
        outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        responses = [[list(output.token_ids), output.finish_reason == "stop"] for output in outputs]
        print(json.dumps({"responses": responses}), file=replies, flush=True)


def main(command: str, *arguments: str) -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", VLLM_CACHE_GIB[command])
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if command == "generate":
        generate()
    else:
        engine, request_file, reply_file = arguments
        certify(engine, Path(request_file), Path(reply_file))


if __name__ == "__main__":
    main(*sys.argv[1:])
