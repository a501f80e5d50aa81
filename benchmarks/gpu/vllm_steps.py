"""What a draft costs in vLLM: time per verification step for drafts of several shapes, k and batch sizes.

Target and drafts have dummy weights and every draft token is rejected, so each step emits one token and takes
T_verify(k) + k T_draft. Engines of one wave start together and are measured one at a time, in interleaved repetitions.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from statistics import median
from typing import TypeVar

import torch

from architectures.shapes import NAMED_SHAPES, Shape
from benchmarks.gpu.models import llama_config
from benchmarks.gpu.stage import Row, Setting, SkippedError, number_type
from benchmarks.gpu.vllm_engine import PYTHON, EngineError, running
from eval.large_targets import free_bytes

Key = TypeVar("Key")
PLAIN, NO_DRAFT = "plain", "no-draft"  # decoding without drafts; draft tokens that cost nothing
OVERHEAD_BYTES = 2 * 2**30  # per engine, in addition to weights and KV cache: CUDA context, graphs, activations
WARM_UP_TOKENS = 16
CHECKED_ALPHA = 0.7  # synthetic acceptance rate at which the predicted speedup is measured
REPLY_S, REPEAT_S, WAVE_S = 60.0, 30.0, 60.0  # limit of a reply; left without which nothing more begins


@dataclass(frozen=True)
class Sizes:
    """What is measured at one size.

    Attributes:
        drafts: Shapes by name, in order of value.
        ks: num_speculative_tokens, in order of value.
        batches: Requests decoded together.
        max_engines: Of one wave; each keeps about two cores busy while it starts.
    """

    target: Shape
    drafts: dict[str, Shape]
    ks: tuple[int, ...]
    batches: tuple[int, ...]
    prompt_tokens: int
    new_tokens: int
    repeats: int
    start_s: float
    max_engines: int

    @property
    def max_model_len(self) -> int:
        return 16 * (1 + (self.prompt_tokens + self.new_tokens + max(self.ks)) // 16)


@dataclass(frozen=True)
class Case:
    """One engine: which draft, k, and vLLM's synthetic acceptance rate per position."""

    draft: str
    k: int
    alpha: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.draft} k={self.k}" + (f" alpha={self.alpha}" if self.alpha else "")


# Llama-3.2-1B with LLaMA's vocabulary, as vLLM requires target and draft to share it.
LLAMA_1B = Shape(layers=16, hidden=2048, intermediate=8192, heads=32, kv_heads=8, head_dim=64, vocab=32000, tied=True)
TINY_TARGET, TINY_DRAFT = (
    Shape(layers=layers, hidden=hidden, intermediate=hidden, heads=2, kv_heads=2, head_dim=hidden // 2, vocab=264)
    for layers, hidden in ((2, 128), (1, 64))
)
FULL = Sizes(
    target=NAMED_SHAPES["llama-7b"].shape,
    drafts={name: NAMED_SHAPES[name].shape for name in ("wide-796m", "wide-290m", "wide-543m", "wide-1.3b")}
    | {"llama-3.2-1b": LLAMA_1B, "deep-1.3b": NAMED_SHAPES["deep-1.3b"].shape},
    ks=(3, 1, 5, 2),
    batches=(1, 8, 32),
    prompt_tokens=32,
    new_tokens=128,
    repeats=2,
    start_s=150,
    max_engines=7,
)
TINY = Sizes(
    target=TINY_TARGET,
    drafts={"wide": TINY_DRAFT},
    ks=(2, 1),
    batches=(1, 2),
    prompt_tokens=8,
    new_tokens=8,
    repeats=2,
    start_s=240,
    max_engines=3,
)


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each case and batch size; drafts that the device's file has are not measured again.

    What they are compared with is: machines of one kind differ, so costs are computed within one run.
    """
    require_vllm()
    sizes = sizes_of(setting)
    file = setting.work / "vllm_steps.json"
    earlier = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    measured = {(row["case"], row["batch"]) for row in earlier if "step_ms" in row}
    cases = [Case(PLAIN, 0)]
    for k in sizes.ks:
        drafts = [Case(draft, k) for draft in sizes.drafts]
        if k == sizes.ks[0] and setting.device.type == "cuda":  # vLLM's CPU build has no synthetic acceptance
            drafts += [Case(draft, k, CHECKED_ALPHA) for draft in list(sizes.drafts)[:2]]
        pending = [case for case in drafts if any((case.name, batch) not in measured for batch in sizes.batches)]
        cases += [Case(NO_DRAFT, k), *pending] if pending else []
    run = datetime.now(UTC).isoformat(timespec="minutes")
    for row in measure(cases if len(cases) > 1 else [], sizes, setting):
        yield row | {"run": run}


def require_vllm() -> None:
    """Raise SkippedError unless the Python that engines run has vLLM."""
    python = os.environ.get(PYTHON, sys.executable)
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    if subprocess.run([python, "-c", look], check=False).returncode:
        raise SkippedError(f"{python} has no vLLM. Name a Python that has it in {PYTHON}.")


def sizes_of(setting: Setting) -> Sizes:
    return FULL if setting.size == "full" else TINY


def measure(cases: Sequence[Case], sizes: Sizes, setting: Setting) -> Iterator[Row]:
    """Rows of cases, in waves of as many engines as fit into memory, until the time is up."""
    left = list(cases)
    while left:
        if setting.left_s < WAVE_S:
            yield from ({"case": case.name, "skipped": f"{setting.left_s:.0f} s left"} for case in left)
            return
        wave, free = [left.pop(0)], 0.97 * (free_bytes(setting.device) or 0)
        while left and len(wave) < sizes.max_engines:
            if sum(engine_bytes(case, sizes, setting) for case in (*wave, left[0])) > free:
                break
            wave.append(left.pop(0))
        yield from measure_wave(wave, sizes, setting)


def measure_wave(wave: Sequence[Case], sizes: Sizes, setting: Setting) -> Iterator[Row]:
    """Start the engines of a wave, then measure them in turn; the first repetition is a short one to warm up."""
    start_s = time.monotonic()
    facts: dict[Case, Row] = {}
    runs: dict[tuple[Case, int], list[Row]] = {}
    failed: dict[Case, str] = {}
    with running(
        {case.name: engine_kwargs(case, sizes, setting) for case in wave}, setting.out / "vllm-logs"
    ) as engines:
        for case in wave:
            with noted(case, failed):
                limit_s = min(sizes.start_s, setting.left_s) - (time.monotonic() - start_s)
                facts[case] = engines[case.name].reply(limit_s)
        for case in failed:
            engines[case.name].stop()  # an engine that is still starting would slow the others
        print(f"{len(facts)} of {len(wave)} engines ready after {time.monotonic() - start_s:.0f} s", flush=True)
        for repeat, batch, case in product(range(sizes.repeats + 1), sizes.batches, wave):
            if case in facts and case not in failed and (repeat < 2 or setting.left_s > REPEAT_S):
                prompts = random_prompts(batch, sizes.prompt_tokens, sizes.target.vocab)
                tokens = sizes.new_tokens if repeat else min(WARM_UP_TOKENS, sizes.new_tokens)
                with noted(case, failed):
                    runs.setdefault((case, batch), []).append(engines[case.name].decode(prompts, tokens, REPLY_S))
    yield from ({"case": case.name, "failed": reason} for case, reason in failed.items())
    for (case, batch), each in runs.items():
        if len(each) > 1:
            cell = {"case": case.name, "draft": case.draft, "k": case.k, "alpha": case.alpha, "batch": batch}
            yield cell | figures(each[1:], batch, sizes) | facts[case]


@contextmanager
def noted(name: Key, failed: dict[Key, str]) -> Iterator[None]:
    """Note an engine's error; the other engines go on."""
    try:
        yield
    except EngineError as error:
        failed[name] = str(error)


def figures(runs: Sequence[Row], batch: int, sizes: Sizes) -> Row:
    """Medians over repetitions: ms per step with their range, tokens/s of all requests, tokens per step of one."""
    steps_ms = [1000 * run["decode_s"] / run["steps"] for run in runs]
    tokens = sizes.new_tokens - 1  # the first one comes from the prefill
    return {
        "step_ms": median(steps_ms),
        "step_ms_range": [min(steps_ms), max(steps_ms)],
        "tokens_per_s": median(batch * tokens / run["decode_s"] for run in runs),
        "tokens_per_step": median(tokens / run["steps"] for run in runs),
        "load": max(run["load"] for run in runs),
        "new_tokens": sizes.new_tokens,
        "repeats": len(runs),
    }


def engine_kwargs(case: Case, sizes: Sizes, setting: Setting) -> Row:
    """Arguments of `vllm.LLM` for one case. `gpu_memory_utilization` is only what must be free when it starts."""
    kwargs = common_kwargs(setting) | {
        "model": config_folder("target", sizes.target, setting),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": sizes.max_model_len,
        "max_num_seqs": max(sizes.batches),
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": cache_bytes(case, sizes, setting),
    }
    if case.draft == PLAIN:
        return kwargs
    speculative: Row = {"num_speculative_tokens": case.k}
    if case.draft == NO_DRAFT:
        speculative |= {"method": "custom_class", "model": "benchmarks.gpu.vllm_engine.NoDraft"}
    else:
        folder = config_folder(case.draft, sizes.drafts[case.draft], setting)
        speculative |= {"method": "draft_model", "model": folder}
    if setting.device.type == "cuda":  # on a CPU, which has no synthetic acceptance, dummy drafts are rejected anyway
        rates = [case.alpha**position for position in range(1, case.k + 1)]
        speculative |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    return kwargs | {"speculative_config": speculative}


def common_kwargs(setting: Setting) -> Row:
    """Arguments of `vllm.LLM` that all engines share."""
    return {
        "dtype": str(number_type(setting.device)).removeprefix("torch."),
        "enforce_eager": setting.device.type == "cpu",  # compiling takes minutes on two cores
        "gpu_memory_utilization": 0.01,
        "seed": 17,
    }


def config_folder(name: str, shape: Shape, setting: Setting) -> str:
    """A checkpoint that is only a config.json."""
    folder = setting.work / "vllm-configs" / name
    llama_config(shape, max_position_embeddings=4096).save_pretrained(folder)
    return str(folder)


def models_of(case: Case, sizes: Sizes) -> list[Shape]:
    return [sizes.target, *([sizes.drafts[case.draft]] if case.draft in sizes.drafts else [])]


def cache_bytes(case: Case, sizes: Sizes, setting: Setting) -> int:
    """KV cache of target and draft for the largest batch, and a tenth more."""
    itemsize = number_type(setting.device).itemsize
    per_token = sum(2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize for shape in models_of(case, sizes))
    return int(1.1 * per_token * sizes.max_model_len * max(sizes.batches)) + 2**26


def engine_bytes(case: Case, sizes: Sizes, setting: Setting) -> int:
    """Memory of one engine on the device."""
    itemsize = number_type(setting.device).itemsize
    weights = sum(itemsize * shape.parameters() for shape in models_of(case, sizes))
    return weights + cache_bytes(case, sizes, setting) + OVERHEAD_BYTES


def random_prompts(batch: int, tokens: int, vocab: int) -> list[list[int]]:
    """Token ids, other ones for each request."""
    return torch.randint(3, vocab, (batch, tokens), generator=torch.Generator().manual_seed(17)).tolist()


def smoke(setting: Setting) -> Iterator[Row]:
    """Whether vLLM runs here: plain decoding and one draft, 64 tokens at most.

    Raises:
        RuntimeError: If an engine failed; the row has the last lines of its log.
    """
    require_vllm()
    sizes = sizes_of(setting)
    sizes = replace(sizes, new_tokens=min(64, sizes.new_tokens), repeats=1)
    first = Case(next(iter(sizes.drafts)), sizes.ks[0])
    failed = []
    for row in measure([Case(PLAIN, 0), first], sizes, setting):
        failed += [row["case"]] * ("failed" in row)
        yield row
    if failed:
        raise RuntimeError(f"vLLM failed: {', '.join(failed)}")
