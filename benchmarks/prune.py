"""Memory and time of pruning a LLaMA-7B-sized checkpoint, against its own lower bounds.

    python benchmarks/prune.py [--folder DIR] [--shape wide-796m] [--repeats 3]

Writes a random checkpoint of LLaMA-7B's real shape (bfloat16, sharded, 13.5 GB) into DIR, cuts --shape out of it by
first_last, and removes everything again. Two ratios are printed and saved:

    memory    peak resident memory of the pruning process / (bytes of the draft + bytes of the largest tensor)
    time      pruning / reading the bytes it needs and writing as many as the draft has, in plain reads and writes

Both start with the source dropped from the page cache and end with the result on disk (fsync); the repeats alternate.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from architectures.checkpoint import TensorInfo, open_weights, write_weights
from architectures.files import write_json
from architectures.hub import read_config
from architectures.manifest import provenance
from architectures.pruning.plan import plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.requested_shape import ArchitectureConfig
from architectures.shapes import NAMED_SHAPES, Shape, checkpoint_tensors

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
CHUNK_BYTES = 16 * 2**20
RESULTS = Path(__file__).parent / "results" / "prune.json"


def main() -> None:
    """Make the checkpoint, measure, clean up, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="needs about 20 GB free")
    parser.add_argument("--shape", choices=NAMED_SHAPES, default="wide-796m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("TARGET", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        prune_once(Path(options.one[0]), Path(options.one[1]), options.shape)
        return
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-prune-") as folder:
        result = measure(Path(folder), options.shape, options.repeats)
    RESULTS.parent.mkdir(exist_ok=True)
    write_json({**result, "provenance": provenance()}, RESULTS)
    print(json.dumps(result, indent=2))


def measure(folder: Path, shape: str, repeats: int) -> dict:
    """Alternate pruning and plain copying of the same bytes."""
    target = folder / "target"
    write_target(target)
    plan = plan_pruning(Shape.from_config(CONFIG), ArchitectureConfig(shape=shape))
    draft_bytes, runs = plan.draft.weight_bytes("bfloat16"), []
    largest = max(info.num_bytes for info in open_weights(target).info.values())
    for _ in range(repeats):
        drop_from_cache(target)
        pruned = run_pruning(target, folder / "draft", shape)
        shutil.rmtree(folder / "draft")
        drop_from_cache(target)
        runs.append({**pruned, "plain_s": plain_copy(target, needed_bytes(plan), folder / "plain")})
    times = [run["prune_s"] / run["plain_s"] for run in runs]
    memory = [run["peak_bytes"] / (draft_bytes + largest) for run in runs]
    return {
        "shape": shape,
        "draft_gb": round(draft_bytes / 1e9, 3),
        "largest_tensor_gb": round(largest / 1e9, 3),
        "runs": runs,
        "time_ratio": round(statistics.median(times), 3),
        "memory_ratio": round(max(memory), 3),
    }


def write_target(folder: Path) -> None:
    """A checkpoint of random weights; one block of them serves for all, since only its size counts."""
    folder.mkdir()
    write_json(CONFIG, folder / "config.json")
    write_json({}, folder / "tokenizer.json")
    sizes = checkpoint_tensors(Shape.from_config(CONFIG))
    block = torch.randn(max(size[0] * (size[1] if len(size) > 1 else 1) for size in sizes.values())).bfloat16()
    layout = {name: TensorInfo(torch.bfloat16, size) for name, size in sizes.items()}
    write_weights(layout, lambda name: block[: torch.Size(sizes[name]).numel()].view(sizes[name]), folder)


def run_pruning(target: Path, out: Path, shape: str) -> dict:
    """Seconds and peak resident bytes of pruning in a process of its own."""
    command = [sys.executable, __file__, "--shape", shape, "--one", str(target), str(out)]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(completed.stdout)


def prune_once(target: Path, out: Path, shape: str) -> None:
    """What the process of its own does; the imports are not counted, the peak of memory holds them."""
    start_s = time.perf_counter()
    plan = plan_pruning(Shape.from_config(read_config(target)), ArchitectureConfig(shape=shape))
    prune_checkpoint(target, plan, out)
    for file in out.glob("*.safetensors"):
        flush(file)
    elapsed_s = time.perf_counter() - start_s
    status = Path("/proc/self/status").read_text()
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"prune_s": round(elapsed_s, 2), "peak_bytes": peak_kib * 1024}))


def needed_bytes(plan) -> int:
    """Bytes of the tensors a depth cut reads: as many as it writes."""
    return plan.draft.weight_bytes("bfloat16")


def plain_copy(target: Path, num_bytes: int, out: Path) -> float:
    """Seconds to read so many bytes and write as many."""
    start_s = time.perf_counter()
    left = num_bytes
    with out.open("wb") as written:
        for file in sorted(target.glob("*.safetensors")):
            with file.open("rb") as stream:
                while left and (chunk := stream.read(min(CHUNK_BYTES, left))):
                    left -= written.write(chunk)
    flush(out)
    elapsed_s = time.perf_counter() - start_s
    out.unlink()
    return round(elapsed_s, 2)


def flush(file: Path) -> None:
    """Wait until a file is on disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def drop_from_cache(folder: Path) -> None:
    """Let the system forget a folder's files, so that reading them costs what it costs the first time."""
    for file in folder.glob("*.safetensors"):
        flush(file)
        with file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
