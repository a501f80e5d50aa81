"""Runs the next items of the queue, each in a process of its own and no longer than its limit: see docs/benchmarks.md.

benchmarks/gpu.sh starts it on a machine with a GPU, `python -m benchmarks.gpu --target FOLDER` on a CPU.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from architectures.errors import UserError
from architectures.hub import config_at_hand
from architectures.shapes import Shape
from benchmarks.gpu.pack import TARGET_NAME
from benchmarks.gpu.record import begun, device_name, is_measured, keep, stage_record, summary
from benchmarks.gpu.stage import Row, Size
from benchmarks.gpu.stage_process import END
from benchmarks.gpu.stages import MAX_S, SLACK, STAGES, Listed
from distill.debug import prompts, tiny_config, tiny_shapes, write_tiny
from distill.process import report_user_errors

LEAST_TORCH, TRIED_TORCH = (2, 7), ("2.7", "2.11")
GRACE_S = 5  # from being asked to end to being killed

Record = dict[str, Any]


def main(words: list[str] | None = None) -> int:
    """Run what is asked for; 1 where a stage failed, 2 for a mistake that can be mended."""
    return report_user_errors(lambda: run(options_of(words)))


def options_of(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=STAGES,
        metavar="ITEM",
        help="only these, also if measured",
    )
    parser.add_argument("--size", choices=("full", "laptop", "tiny"), help="default: full on a GPU, laptop elsewhere")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="where results go (default: runs/gpu)")
    parser.add_argument("--keep", type=Path, default=Path("runs/gpu/kept"), help="what later calls begin from")
    parser.add_argument("--target", type=Path, help="SmolLM2-135M-Instruct (default: the one that was carried)")
    parser.add_argument("--prompts", type=Path, default=Path("recipes/prompts/quickstart.jsonl"))
    parser.add_argument(
        "--within", type=float, metavar="S", help=f"seconds for all (default: {MAX_S}; on a CPU three times that)"
    )
    return parser.parse_args(words)


def run(options: argparse.Namespace) -> None:
    """Every item that is chosen or pending, as far as the time goes, then a summary."""
    begin_s = time.monotonic()
    require_torch(torch.__version__)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    size: Size = options.size or ("full" if device.type == "cuda" else "laptop")
    require_device(device, size)
    options.out.mkdir(parents=True, exist_ok=True)
    record, file = begun(device, size, options.out)
    chosen = options.only or [name for name in STAGES if is_pending(record["stages"].get(name))]
    print(
        f"{device_name(device)}, size {size}, torch {torch.__version__}: {', '.join(chosen) or 'queue done'}",
        flush=True,
    )
    told = setting(options, device, size)
    within_s = options.within or MAX_S * SLACK[size]
    for name in record["stages"]:
        hand_on(name, record, told)
    run = []
    for name in STAGES:
        left_s = within_s - (time.monotonic() - begin_s)
        if name in chosen and left_s < STAGES[name].least_s:
            print(f"{name:13} not begun: {left_s:.0f} s left, it needs {STAGES[name].least_s}", flush=True)
        elif name in chosen:
            keep(record, name, run_stage(name, STAGES[name], told, left_s), file)
            print(summary(record, [name]), flush=True)
            hand_on(name, record, told)
            run.append(name)
    print(f"\n{summary(record, list(STAGES))}\n\n{file}")
    if any(record["stages"][name]["status"] == "failed" for name in run):
        raise SystemExit(1)


def is_pending(stage: Record | None) -> bool:
    """Whether an item is not measured yet, or not all of it."""
    return stage is None or stage["status"] != "done" or not all(map(is_measured, stage["rows"]))


def require_torch(version: str) -> None:
    """Raise UserError for a torch that is too old, and say so of one that nobody tried."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    assert numbers is not None, version
    if (int(numbers[1]), int(numbers[2])) < LEAST_TORCH:
        raise UserError(f"torch {version}: is older than {'.'.join(map(str, LEAST_TORCH))}. Use another Python.")
    if numbers[0] not in TRIED_TORCH:
        print(f"torch {version}: not among those tried ({', '.join(TRIED_TORCH)}); the record says which it was.")


def require_device(device: torch.device, size: Size) -> None:
    """Raise UserError where shapes of 7 billion parameters would be run by a processor."""
    if size == "full" and device.type != "cuda":
        raise UserError("--size full: torch sees no CUDA device here. Use --size laptop.")


def setting(options: argparse.Namespace, device: torch.device, size: Size) -> Record:
    """What every stage is told; files and folders are there, but perhaps the target."""
    work = options.keep / f"work-{size}"
    work.mkdir(parents=True, exist_ok=True)
    target, asked = target_folder(options, size), options.prompts
    if size == "tiny":
        asked = work / "prompts.jsonl"
        asked.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts()), encoding="utf-8")
    paths = {"target": target, "prompts": asked, "work": work, "out": options.out}
    return {"device": str(device), "size": size, **{name: str(path.resolve()) for name, path in paths.items()}}


def target_folder(options: argparse.Namespace, size: Size) -> Path:
    """The target: one that is named, a random one, or that of the GGUF file that was carried, imported once.

    Where none was carried the folder is not there, and the stages that need it say so.
    """
    if options.target is not None:
        if not (options.target / "config.json").is_file():
            raise UserError(f"--target {options.target}: holds no config.json. Name a folder that import wrote.")
        return options.target
    if size == "tiny":
        config, _ = config_at_hand("meta-llama/Llama-2-7b-chat-hf", "main")
        [shape] = tiny_shapes(Shape.from_config(config))
        shape = replace(shape, head_dim=32)  # the least that vLLM's attention has on every CPU
        write_tiny(options.keep / "tiny", tiny_config(config, shape), weights=True)
        return options.keep / "tiny"
    folder, carried = options.keep / "models/SmolLM2-135M-Instruct", options.keep / TARGET_NAME
    if carried.is_file() and not (folder / "config.json").is_file():
        words = [sys.executable, "-m", "widedraft", "import", str(carried), "--to", str(folder)]
        subprocess.run(words, check=True)
    return folder


def run_stage(name: str, listed: Listed, told: Record, left_s: float) -> Record:
    """Run one stage in a process of its own, and kill it at its limit."""
    limit_s = min(listed.limit_s * SLACK[told["size"]], left_s)
    if limit_s < 1:
        return stage_record("skipped", "no time was left", [], seconds=0, limit_s=0)
    work = Path(told["work"])
    setting_file, rows_file = work / "setting.json", work / f"{name}.rows.jsonl"
    setting_file.write_text(json.dumps(told | {"deadline_s": time.monotonic() + limit_s - GRACE_S}), encoding="utf-8")
    rows_file.unlink(missing_ok=True)
    begin_s = time.monotonic()
    code = run_for(
        [sys.executable, "-m", "benchmarks.gpu.stage_process", listed.module, str(setting_file), str(rows_file)],
        limit_s,
    )
    rows, end = read_rows(rows_file)
    if end is None:
        status = "cut" if code is None else "failed"
        reason = f"cut off after {limit_s:.0f} s" if code is None else f"its process ended with code {code}"
        end = {END: status, "reason": reason}
    seconds = time.monotonic() - begin_s
    return stage_record(end[END], end.get("reason"), rows, seconds=seconds, limit_s=limit_s)


def run_for(words: list[str], limit_s: float) -> int | None:
    """The exit code of a command and all that it starts; None where it was killed at the limit."""
    process = subprocess.Popen(words, start_new_session=True)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Whatever is left of a process and its children ends: GPU memory they hold would be missing from the next."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def read_rows(file: Path) -> tuple[list[Row], Row | None]:
    """The rows of a stage, and its last word; a line that was cut while it was written does not count."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return ([row for row in rows if END not in row], next((row for row in rows if END in row), None))


def hand_on(name: str, record: Record, told: Record) -> None:
    """Leave a stage's rows where later ones look for them."""
    text = json.dumps(record["stages"][name]["rows"])
    (Path(told["work"]) / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
