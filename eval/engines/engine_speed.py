"""Methods of eval.benchmark in an engine: each in a worker process of its own, all loaded while prompts are decoded.

The engine runs with its default settings, except that it caches no prompts, whose repetitions would cost no prefill.
Running servers are methods too: the first without a draft, the others with one.
"""

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel

from architectures.compatibility import EngineName, Pair, read_model, serve_command, shell
from architectures.errors import UserError
from architectures.files import format_bytes
from architectures.hub import is_gguf, read_config, resolve_checkpoint
from architectures.manifest import fingerprint_checkpoint, fingerprint_folder, sha256_of_file
from architectures.vocabulary import CONFIG_KEY
from eval.benchmark import (
    DRAFT,
    LOOKUP,
    LOOKUP_FIRST,
    PLAIN,
    BenchmarkFile,
    CountedSteps,
    Decode,
    Method,
    Prompts,
    TimedRun,
    decision,
    method_of,
)
from eval.config import GenerateConfig, SpeedEngine
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import LookupFirst, NgramLookup
from eval.engines.certificate import pooled
from eval.engines.external_generate import EngineServer, engine_seed, sampling_fields
from eval.engines.runs import OwnTokens, own_tokens, replay_text, require_engine_form
from eval.engines.worker import EngineRequest
from eval.engines.worker_process import RemoteEngine, WorkerProcess
from eval.large_targets import free_bytes
from eval.models import load_model, require_same_tokenizer
from eval.scorecard_schema import ModelIdentity
from eval.scorecard_tables import times

WEIGHT_FILES = (".safetensors", ".bin")
PACKED_COPIES = 1.9  # vLLM on a CPU keeps packed weights next to a checkpoint's; 6.6 GB for 3.5 GB, measured
GPU_SHARE = 0.9  # of a GPU's memory, divided among the methods


@dataclass(frozen=True)
class EngineSetup:
    """Settings shared by all methods in an engine.

    Attributes:
        python: Of the environment with the engine; None for servers.
        target: What the engine loads: a directory, or a GGUF file for llama.cpp.
        drafts: The same by name.
        own_tokenizer: Names of the drafts with their own tokenizer.
        prompt_tokens: Of the longest prompt.
        concurrency: Largest number of prompts decoded at once.
        lookup_first: Prompt lookup in front of each draft; llama.cpp only.
        draft_p_min: Of llama.cpp.
        urls: Of running servers: one without a draft, then one with each of the drafts.
    """

    engine: SpeedEngine | None
    python: Path | None
    target: Path
    drafts: Mapping[str, Path]
    own_tokenizer: frozenset[str]
    prompt_tokens: int
    max_new_tokens: int
    concurrency: int
    dtype: str
    threads: int
    sampling: Sampling
    seed: int
    draft_p_min: float = 0.0
    lookup_first: LookupFirst | None = None
    urls: Sequence[str] = ()


def methods_of(setup: EngineSetup, ks: Sequence[int]) -> list[Method]:
    found = [Method(PLAIN)]
    for k in ks:
        found += [Method(DRAFT, k, name) for name in setup.drafts]
        if setup.lookup_first is not None:
            found += [Method(LOOKUP_FIRST, k, name) for name in setup.drafts]
        if setup.engine in ("vllm", "llama.cpp"):
            found.append(Method(LOOKUP, k))
    return found


def engine_files(
    engine: SpeedEngine | None, target: Path, drafts: Mapping[str, str]
) -> tuple[dict[str, Path], frozenset[str]]:
    """Return what the engine loads of each draft, by name, and the names of those with their own tokenizer.

    Raises:
        UserError: If the engine does not load one of them.
    """
    if engine is None:  # servers have loaded them
        paths = {name: Path(word) if is_gguf(word) else resolve_checkpoint(word) for name, word in drafts.items()}
        return paths, frozenset()
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
    """Open every method at every k, and yield how each decodes, and the engine with its version.

    Raises:
        UserError: If there is no such Python, it lacks the engine, or the engine fails; with its last output. If a
            server is unreachable, or serves several models or too short a context.
    """
    methods, version = methods_of(setup, ks), ""
    with ExitStack() as stack:
        if setup.urls:
            length, servers = setup.prompt_tokens + setup.max_new_tokens, []
            for url in setup.urls:
                servers.append(EngineServer.find(url, GenerateConfig(), max_model_len=length))
                stack.callback(servers[-1].client.close)
            each = zip(methods, servers, strict=True)
            decoders = {m: partial(decode_at, server, setup, m.num_speculative_tokens) for m, server in each}
            yield decoders, f"{servers[-1].engine.replace('llamacpp', 'llama.cpp')} server"
            return
        require_memory_for(setup, len(methods))
        assert setup.engine is not None
        assert setup.python is not None
        decoders = {}
        for number, method in enumerate(methods, start=1):
            print(f"{setup.engine}: opening {number} of {len(methods)}, {method.label}", file=sys.stderr)
            worker = WorkerProcess(setup.python, setup.engine, flag="--python")
            stack.callback(worker.close)
            engine = worker.open(request_of(setup, method, len(methods)))
            version, decoders[method] = engine.version, partial(decode, engine, setup)
        yield decoders, f"{setup.engine} {version}"


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


def lookup_settings(engine: str | None, method: Method, lookup_first: LookupFirst | None) -> dict[str, int]:
    """Return an engine's settings of prompt lookup; empty for other methods."""
    if method.kind == LOOKUP:
        any_length = NgramLookup()
        if engine == "llama.cpp":  # one length only
            return {"size_n": any_length.longest, "size_m": method.num_speculative_tokens}
        return {"prompt_lookup_min": any_length.shortest, "prompt_lookup_max": any_length.longest}
    return vars(lookup_first) if method.kind == LOOKUP_FIRST else {}


def request_of(setup: EngineSetup, method: Method, num_methods: int) -> EngineRequest:
    draft = setup.drafts.get(method.draft)
    return EngineRequest(
        target=str(setup.target.resolve()),
        draft=None if draft is None else str(draft.resolve()),
        has_own_tokenizer=method.draft in setup.own_tokenizer,
        lookup=lookup_settings(setup.engine, method, setup.lookup_first),
        num_speculative_tokens=method.num_speculative_tokens,
        draft_p_min=setup.draft_p_min,
        max_model_len=setup.prompt_tokens + setup.max_new_tokens + method.num_speculative_tokens + 1,
        concurrency=setup.concurrency,
        dtype=setup.dtype,
        threads=setup.threads,
        engine_settings={"gpu_memory_utilization": GPU_SHARE / num_methods},
    )


def decode(engine: RemoteEngine, setup: EngineSetup, prompts: Prompts, row_seeds: Sequence[int]) -> TimedRun:
    fields = sampling_fields(setup.sampling, no_top_k=0) | {"max_tokens": setup.max_new_tokens}
    sampling = [fields | {"seed": engine_seed(setup.seed, row)} for row in row_seeds]
    reply = engine.decode([list(ids) for ids in prompts], sampling)
    responses, accepted = reply["ids"], reply["by_position"] or [reply["accepted"]]
    each = zip(responses, map(len, responses), reply["first_s"], reply["last_s"], strict=True)
    return timed_run(reply["elapsed_s"], each, reply["steps"], accepted)


Streamed = tuple[Sequence[int], int, float, float]  # ids, number of tokens, seconds to the first and the last


def timed_run(
    whole_s: float, streamed: Iterable[Streamed], steps: int, accepted: Sequence[int], *, prefill_gives_one: bool = True
) -> TimedRun:
    """Return the figures of responses decoded at once.

    A step emits its accepted tokens and one more. Engines do not count steps of prompt lookup without a proposal, so
    there may be more than counted; they cannot be fewer, though vLLM and llama.cpp also count tokens accepted beyond
    the end of a text, whose positions are unknown.

    Args:
        steps: Counted by the engine.
        accepted: By position, or only their sum.
        prefill_gives_one: Whether the first token of each response is of no step.
    """
    responses, counts, first_s, last_s = zip(*streamed, strict=True)
    emitted = sum(counts) - len(counts) * prefill_gives_one
    per_token = zip(counts, first_s, last_s, strict=True)
    return TimedRun(
        sum(counts),
        whole_s,
        max(first_s),
        whole_s - max(first_s),
        counted=CountedSteps(max(steps, emitted - sum(accepted)), emitted, tuple(accepted)),
        ttft_s=first_s,
        tpot_s=tuple((last - first) / (count - 1) for count, first, last in per_token if count > 1),
        responses=tuple(map(tuple, responses)),
    )


def decode_at(server: EngineServer, setup: EngineSetup, k: int, prompts: Prompts, row_seeds: Sequence[int]) -> TimedRun:
    """Stream responses from a server; k is its num_speculative_tokens, 0 for none."""
    seeds = [engine_seed(setup.seed, row) for row in row_seeds]
    stream = partial(server.stream, max_tokens=setup.max_new_tokens, sampling=setup.sampling, is_plain=k == 0)
    steps_before, before = server.counters() if k else (0, Counter[int]())
    start_s = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        streamed = list(pool.map(stream, prompts, seeds))
    whole_s = time.perf_counter() - start_s
    if k == 0:
        return timed_run(whole_s, streamed, 0, ())
    steps_after, after = server.counters()
    steps, by_position = steps_after - steps_before, after - before
    counts = [count for _, count, _, _ in streamed]
    if (steps == 0 and max(counts) > 2) or max(by_position, default=0) >= k:
        raise UserError(
            f"--url: {server.url} counted {steps} verification steps with up to {max(by_position, default=-1) + 1} "
            f"accepted tokens, but --num-speculative-tokens is {k}. Pass the server without a draft first, and the "
            "number of tokens that the others draft."
        )
    is_sglang = server.engine == "sglang"  # counts steps only
    accepted = [sum(counts) - len(counts) - steps] if is_sglang else [by_position[place] for place in range(k)]
    return timed_run(whole_s, streamed, steps, accepted, prefill_gives_one=server.engine != "widedraft")


Replay = Callable[[Method, Prompts, Sequence[Sequence[int]]], tuple[float, ...] | None]


def replay_with(target: Path, drafts: Mapping[str, Path], *, dtype: str) -> Replay:
    """Return a function that predicts a draft's accepted tokens per verification step, by position.

    It replays an engine's greedy responses without a draft. It returns None if these are unknown, and for drafts that
    are quantised, have a reduced vocabulary or another format.
    """

    @cache
    def load(name: str) -> tuple[PreTrainedModel, OwnTokens | None] | None:
        path = drafts.get(name)
        if path is None or not list(path.glob("*.safetensors")):
            return None
        if {CONFIG_KEY, "quantization_config"} & read_config(path).keys():
            return None
        return load_model(path, dtype=dtype), own_tokens(target, path)

    def predict(method: Method, prompts: Prompts, responses: Sequence[Sequence[int]]) -> tuple[float, ...] | None:
        texts = [(prompt, ids) for prompt, ids in zip(prompts, responses, strict=False) if len(ids) > 1]
        loaded = load(method.draft) if texts and method.kind == DRAFT else None
        if loaded is None:
            return None
        model, own = loaded
        k = method.num_speculative_tokens
        counted = pooled([replay_text(model, prompt, ids, k, own) for prompt, ids in texts])
        return tuple(count / counted.steps for count in counted.by_position or ())

    return predict


def serve_command_of(record: BenchmarkFile, method: Method) -> str:
    """Return the command that serves the target by a method; for a draft the one of `certify --dry-run`."""
    engine, settings, k = record.engine.split()[0], record.settings, method.num_speculative_tokens
    target, name = str(settings["target_file"] or settings["target"]), method.draft
    lookup = lookup_settings(engine, method, LookupFirst(settings["ngram_size_n"], settings["ngram_size_m"]))
    sizes = [f"--spec-ngram-simple-{key.replace('_', '-')}={size}" for key, size in lookup.items()]
    if method.kind == LOOKUP and engine == "vllm":
        config = {"method": "ngram", "num_speculative_tokens": k, **lookup}
        return shell(["vllm", "serve", target], ["--speculative-config", json.dumps(config)])
    if method.kind == LOOKUP:
        return shell(["llama-server", "-m", target], ["--spec-type", "ngram-simple", *sizes])
    if name not in record.drafts:
        return f"the server at {name}"
    draft = dict(zip(record.drafts, settings["draft"], strict=True))[name]
    if engine == "widedraft":
        return shell(["widedraft", "serve", "--target", target, "--draft", draft, "--num-speculative-tokens", str(k)])
    pair = Pair(
        draft=read_model(draft),
        target=read_model(target),
        num_speculative_tokens=k,
        draft_p_min=settings["draft_p_min"],
    )
    command = serve_command(cast("EngineName", engine), pair)
    chain = shlex.join(["ngram-simple,draft-simple", *sizes])
    return command.replace("draft-simple", chain) if method.kind == LOOKUP_FIRST else command


def serve_lines(record: BenchmarkFile) -> str:
    """Format the command that serves the fastest method of each concurrency, if it is faster than plain decoding."""
    lines = []
    for concurrency in record.prompts:
        over_plain = [row for row in record.best if (row.concurrency, row.over) == (concurrency, PLAIN)]
        faster = [row for row in over_plain if decision(row.speedup.interval) == "faster"]
        if not faster:
            lines.append(
                f"Concurrency {concurrency}: no method is faster for certain; serve the target without a draft."
            )
            continue
        best = max(faster, key=lambda row: row.speedup.value)
        method, speedup = method_of(best), times(best.speedup)
        lines.append(f"Concurrency {concurrency}: {method.label}, k = {method.num_speculative_tokens}, {speedup}")
        lines += [f"  {line}" for line in serve_command_of(record, method).splitlines()]
    return "\n".join(lines)
