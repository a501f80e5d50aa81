"""A pair that was carried there, in vLLM as its users run it: `widedraft benchmark`, and `certify --as-served`.

`python -m benchmarks.gpu.pack pack --pair TARGET.gguf DRAFT PROMPTS.jsonl` adds a pair to what travels: a target in
4 bits, and a draft in the form that vLLM loads. At size tiny the target is its own draft.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.pack import PAIR, PAIR_TARGET
from benchmarks.gpu.stage import Row, Setting, SkippedError, number_type
from benchmarks.gpu.vllm_engine import ENVIRONMENT, PYTHON
from benchmarks.gpu.vllm_steps import require_vllm
from eval.engines.certificate import read_certificates

CONCURRENCY = {"full": ("1", "8", "32"), "laptop": ("1",), "tiny": ("1", "2")}
PROMPTS, NEW_TOKENS = {"full": 64, "laptop": 12, "tiny": 2}, {"full": 64, "laptop": 64, "tiny": 8}
K, REPEATS = 3, 2
CPU_CONTEXT = 512  # of the certificate; on a GPU that of the models


class Pair(NamedTuple):
    """Folders of target and draft, and a file of held-out prompts."""

    target: Path
    draft: Path
    prompts: Path


def speed(setting: Setting) -> Iterator[Row]:
    """The rows of `widedraft benchmark`: plain decoding, the draft and n-gram, at every concurrency."""
    pair, file = carried_pair(setting), setting.out / "pair-benchmark.json"
    widedraft(
        *("benchmark", "--engine", "vllm", "--draft", pair.draft, "--num-prompts", PROMPTS[setting.size]),
        *("--concurrency", *CONCURRENCY[setting.size], "--num-speculative-tokens", K, "--repeats", REPEATS),
        *common_words(pair, setting, file),
    )
    yield from json.loads(file.read_text(encoding="utf-8"))["rows"]


def certificate(setting: Setting) -> Iterator[Row]:
    """What `certify --as-served` exercised and what not, then its findings."""
    pair, folder = carried_pair(setting), setting.out / "pair-certificate"
    widedraft(
        *("certify", pair.draft, "--engine", "vllm", "--as-served", "--num-speculative-tokens", K),
        *(("--max-model-len", CPU_CONTEXT) if setting.device.type == "cpu" else ()),
        *common_words(pair, setting, folder),
        failed_checks=1,
    )
    served = read_certificates(folder).as_served["vllm"]
    yield {"exercised": served.exercised, "not_exercised": served.not_exercised}
    yield from map(vars, served.findings)


def carried_pair(setting: Setting) -> Pair:
    """The pair, its target imported once.

    Raises:
        SkippedError: If vLLM or the pair is not there.
    """
    require_vllm()
    if setting.size == "tiny":
        return Pair(setting.target, setting.target, setting.prompts)
    kept = setting.work.parent
    folder, target = kept / "site" / PAIR, kept / "models" / PAIR
    if not (folder / "draft" / "config.json").is_file() or not (kept / PAIR_TARGET).is_file():
        raise SkippedError(f"{folder}: no pair there. Carry one that `pack --pair` packed.")
    if not (target / "config.json").is_file():
        widedraft("import", kept / PAIR_TARGET, "--to", target)
    return Pair(target, folder / "draft", folder / "prompts.jsonl")


def common_words(pair: Pair, setting: Setting, out: Path) -> list[object]:
    dtype = str(number_type(setting.device)).removeprefix("torch.")
    words: list[object] = ["--target", pair.target, "--prompts", pair.prompts, "--dtype", dtype, "--out", out]
    return [*words, "--python", os.environ.get(PYTHON, sys.executable), "--max-new-tokens", NEW_TOKENS[setting.size]]


def widedraft(*words: object, failed_checks: int = 0) -> None:
    """Run a command of this project; its exit code is 0, or that of a certificate with failed checks.

    Raises:
        RuntimeError: For any other exit code.
    """
    command = [sys.executable, "-m", "widedraft", *map(str, words)]
    code = subprocess.run(command, env=ENVIRONMENT | os.environ, check=False).returncode
    if code not in (0, failed_checks):
        raise RuntimeError(f"exit code {code}: {shlex.join(command)}")
