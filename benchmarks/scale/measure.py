"""One process and two at the same work, on this machine's processor: answers, and steps of a training.

Each command is what a user starts; what is counted is what the commands say of themselves, without their starts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from architectures.checkpoints.manifest import provenance
from architectures.errors import UserError
from architectures.files.atomic import write_json
from benchmarks.scale.measured import ANSWERS, TRAINING, Counted, Measured
from distill.expected_time.devices import processor_device_name

RECIPE = Path("recipes/quickstart.yaml")
SETTINGS = ((1, 2), (1, 1), (2, 1))  # processes, and threads of each
WORDS = (
    "data.prompts=[{path: recipes/prompts/quickstart.jsonl, num_prompts: 128}]",
    "data.num_eval_prompts=32",
    "data.max_new_tokens=64",
    "data.batch_size=16",
    "data.shard_size=16",
    "architecture.method=first_last",
    "distill.teacher={source: live}",
    "distill.max_duration=24ba",
    "distill.global_train_batch_size=8",
    "distill.device_train_microbatch_size=4",
    "distill.eval_first=false",
    "distill.eval_interval=1dur",
    "distill.save_interval=1dur",
    "target.dtype=bfloat16",
    "distill.precision=amp_bf16",
    "eval.num_prompts=16",
)
SAID = re.compile(r"^(?:train|eval): ([\d,]+) answers, ([\d,]+) tokens, ([\d,]+) tokens/s$", re.MULTILINE)
STEP = ("data", "teacher", "student", "optimiser", "evaluation", "other")


def measure(out: Path, folder: Path) -> None:
    """Measure all settings, one after another, and write what was counted."""
    shutil.rmtree(folder, ignore_errors=True)
    begin_s, rows = time.monotonic(), list(measured_rows(folder))
    device, now = processor_device_name(), datetime.now(UTC).isoformat(timespec="seconds")
    write_json(asdict(Measured(device, now, provenance()["git_commit"], tuple(rows))), out)
    print(f"{out}: {len(rows)} measurements in {time.monotonic() - begin_s:.0f} s")


def measured_rows(folder: Path) -> Iterator[Counted]:
    """Answers of every setting, then trainings on the first one's."""
    for processes, threads in SETTINGS:
        run = folder / f"{processes}x{threads}"
        yield answers_of(said(run, "widedraft", "generate", processes=processes, threads=threads), processes, threads)
    first = folder / "{}x{}".format(*SETTINGS[0])
    said(first, "widedraft", "prune", processes=1, threads=2)
    for processes, threads in SETTINGS:
        for made in ("checkpoints", "logs", "draft"):
            shutil.rmtree(first / made, ignore_errors=True)
        said(first, "distill.train", processes=processes, threads=threads)
        yield training_of(first / "logs" / "metrics.jsonl", processes, threads)


def said(run: Path, *program: str, processes: int, threads: int) -> str:
    """What a command says, started by Composer's launcher.

    Raises:
        UserError: If it fails.
    """
    words = [*program, str(RECIPE), f"run_dir={run}", *WORDS]
    command = [sys.executable, "-m", "composer", "-n", str(processes), "-m", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    print(f"{' '.join(program)}, {processes} x {threads} threads", file=sys.stderr, flush=True)
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise UserError(f"{' '.join(command)}: ended with {completed.returncode}.\n{completed.stderr[-2000:]}")
    return completed.stderr


def answers_of(text: str, processes: int, threads: int) -> Counted:
    """Answers, tokens and seconds, summed over those to train on and those held out."""
    found = [[float(number.replace(",", "")) for number in match] for match in SAID.findall(text)]
    answers, tokens = (int(sum(each[place] for each in found)) for place in (0, 1))
    return Counted(ANSWERS, processes, threads, answers, tokens, sum(tokens / rate for _, tokens, rate in found))


def training_of(metrics: Path, processes: int, threads: int) -> Counted:
    """Batches, their tokens, and the seconds of all steps and evaluations, without what writing checkpoints takes."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "step/student_s" in line]
    seconds = sum(line[f"step/{name}_s"] for line in steps for name in STEP)
    tokens = max(line.get("time/token", 0) for line in lines)
    return Counted(TRAINING, processes, threads, len(steps), int(tokens), seconds)
