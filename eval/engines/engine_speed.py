"""Methods of eval.benchmark in an engine: each in a worker process of its own, all loaded while prompts are decoded.

The engine runs with its default settings, except that it caches no prompts, whose repetitions would cost no prefill.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from architectures.errors import UserError
from architectures.files import format_bytes
from architectures.hub import resolve_checkpoint
from architectures.manifest import fingerprint_checkpoint, fingerprint_folder, sha256_of_file
from eval.benchmark import DRAFT, LOOKUP, LOOKUP_FIRST, PLAIN, Decode, Method, Prompts, TimedRun
from eval.config import SpeedEngine
from eval.decoding.sampling import Sampling, stream_seed
from eval.decoding.speculative import LookupFirst, NgramLookup
from eval.engines.external_generate import sampling_fields
from eval.engines.runs import own_tokens, require_engine_form
from eval.engines.worker_process import WorkerProcess
from eval.large_targets import free_bytes
from eval.models import require_same_tokenizer
from eval.scorecard_schema import ModelIdentity

MOST_SEEDS = 2**31  # llama.cpp takes 32 bits
WEIGHT_FILES = (".safetensors", ".bin")
PACKED_COPIES = 1.9  # vLLM on a CPU keeps packed weights next to a checkpoint's; 6.6 GB for 3.5 GB, measured
GPU_SHARE = 0.9  # of a GPU's memory, divided among the methods


@dataclass(frozen=True)
class EngineSetup:
    """Settings shared by all methods in an engine.

    Attributes:
        target: What the engine loads: a directory, or a GGUF file for llama.cpp.
        drafts: The same by name.
        own_tokenizer: Names of the drafts with their own tokenizer.
        prompt_tokens: Of the longest prompt.
        batch_size: Prompts decoded at once.
        lookup_first: Prompt lookup in front of each draft; llama.cpp only.
    """

    engine: SpeedEngine
    python: Path
    target: Path
    drafts: Mapping[str, Path]
    own_tokenizer: frozenset[str]
    prompt_tokens: int
    max_new_tokens: int
    batch_size: int
    dtype: str
    threads: int
    sampling: Sampling
    seed: int
    lookup_first: LookupFirst | None = None


def methods_of(setup: EngineSetup, ks: Sequence[int]) -> list[Method]:
    found = [Method(PLAIN)]
    for k in ks:
        found += [Method(DRAFT, k, name) for name in setup.drafts]
        if setup.lookup_first is not None:
            found += [Method(LOOKUP_FIRST, k, name) for name in setup.drafts]
        if setup.engine != "openvino":
            found.append(Method(LOOKUP, k))
    return found


def engine_files(
    engine: SpeedEngine, target: Path, drafts: Mapping[str, str]
) -> tuple[dict[str, Path], frozenset[str]]:
    """Return what the engine loads of each draft, by name, and the names of those with their own tokenizer.

    Raises:
        UserError: If the engine does not load one of them.
    """
    if engine != "vllm":
        paths = {name: Path(word) for name, word in drafts.items()}
        for path in paths.values():
            if not path.exists() or path.is_file() != (engine == "llama.cpp"):
                wanted = "GGUF file of `widedraft export --gguf`" if engine == "llama.cpp" else "OpenVINO directory"
                raise UserError(f"--draft: {path} is not a {wanted}.")
        return paths, frozenset()
    paths, own = {name: resolve_checkpoint(word) for name, word in drafts.items()}, set[str]()
    for name, path in paths.items():
        require_engine_form(path)
        if own_tokens(target, path) is None:
            require_same_tokenizer(target, path)
        else:
            own.add(name)
    return paths, frozenset(own)


def identity_in_engine(path: Path, dtype: str) -> ModelIdentity:
    """Return the identity of a directory with its dtype, or of a file with that in its name."""
    if path.is_file():
        return ModelIdentity(str(path), sha256_of_file(path), "of the file")
    prints = fingerprint_folder if not (path / "config.json").is_file() else fingerprint_checkpoint
    return ModelIdentity(str(path), prints(path), dtype)


@contextmanager
def opened(setup: EngineSetup, ks: Sequence[int]) -> Iterator[tuple[dict[Method, Decode], str]]:
    """Open every method at every k, and yield how each decodes, and the engine's version.

    Raises:
        UserError: If there is no such Python, it lacks the engine, or the engine fails; with its last output.
    """
    methods, version = methods_of(setup, ks), ""
    require_memory_for(setup, len(methods))
    with ExitStack() as stack:
        workers: dict[Method, WorkerProcess] = {}
        for method in methods:
            print(f"{setup.engine}: opening {len(workers) + 1} of {len(methods)}, {method.label}", file=sys.stderr)
            worker = WorkerProcess(setup.python, "benchmark", setup.engine, flag="--python")
            stack.callback(worker.close)
            version = worker.exchange(request_of(setup, method, len(methods)))["version"]
            workers[method] = worker
        yield {method: partial(decode, worker, setup) for method, worker in workers.items()}, version


def require_memory_for(setup: EngineSetup, num_methods: int) -> None:
    """Raise UserError if the processes' targets do not fit into memory; llama.cpp's share the file's pages."""
    if setup.engine == "llama.cpp" or torch.cuda.is_available():
        return
    weights = sum(path.stat().st_size for path in setup.target.iterdir() if path.suffix in WEIGHT_FILES)
    needed = int(num_methods * weights * (PACKED_COPIES if setup.engine == "vllm" else 1))
    if needed > (available := free_bytes(torch.device("cpu"))):
        raise UserError(
            f"--engine {setup.engine}: {num_methods} processes, one per method, need {format_bytes(needed)} for the "
            f"target, but {format_bytes(available)} are available. Use fewer drafts or --num-speculative-tokens."
        )


def request_of(setup: EngineSetup, method: Method, num_methods: int) -> dict[str, Any]:
    lookup: dict[str, int] = {}
    if method.kind == LOOKUP:
        any_length = NgramLookup()
        lookup = {"prompt_lookup_min": any_length.shortest, "prompt_lookup_max": any_length.longest}
        if setup.engine == "llama.cpp":  # one length only
            lookup = {"size_n": any_length.longest, "size_m": method.num_speculative_tokens}
    elif method.kind == LOOKUP_FIRST:
        assert setup.lookup_first is not None
        lookup = vars(setup.lookup_first)
    draft = setup.drafts.get(method.draft)
    return {
        "target": str(setup.target.resolve()),
        "draft": None if draft is None else str(draft.resolve()),
        "lookup": lookup,
        "num_speculative_tokens": method.num_speculative_tokens,
        "max_model_len": setup.prompt_tokens + setup.max_new_tokens + method.num_speculative_tokens + 1,
        "batch_size": setup.batch_size,
        "dtype": setup.dtype,
        "threads": setup.threads,
        "draft_settings": {"use_heterogeneous_vocab": True} if method.draft in setup.own_tokenizer else {},
        "engine_settings": {"gpu_memory_utilization": GPU_SHARE / num_methods},
    }


def decode(worker: WorkerProcess, setup: EngineSetup, prompts: Prompts, row_seeds: Sequence[int]) -> TimedRun:
    fields = sampling_fields(setup.sampling, no_top_k=0) | {"max_tokens": setup.max_new_tokens}
    sampling = [fields | {"seed": stream_seed(setup.seed, row) % MOST_SEEDS} for row in row_seeds]
    reply = worker.exchange({"prompts": [list(ids) for ids in prompts], "sampling": sampling})
    tokens, whole_s, first_s = reply["tokens"], reply["elapsed_s"], reply["first_s"]
    decode_s = None if first_s is None else whole_s - first_s
    # Prefill gives each response its first token, and every step its accepted tokens and one more.
    steps = tokens - len(prompts) - reply["accepted"]
    return TimedRun(tokens, whole_s, first_s, decode_s, counted=(steps, reply["accepted"]))
