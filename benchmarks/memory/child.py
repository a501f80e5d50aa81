"""A command in this process, and the most memory it took: python -m benchmarks.memory.child OUT MODULE WORD ...

Started by Composer's launcher it writes one file for each process.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

CLEAR_PEAK = "5"  # as proc(5) has it: the peak is what is resident now


def main(out: Path, module: str, words: list[str]) -> int:
    """Run a module with its libraries loaded before; write bytes at the start and at most."""
    warm_up()
    begin = resident()["VmRSS"]
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    sys.argv = [module, *words]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as ended:
        code = int(ended.code or 0)
    found = {"start_bytes": begin, "peak_bytes": resident()["VmHWM"], "code": code}
    rank = os.environ.get("RANK", "0")
    out.with_suffix(f".{rank}.json").write_text(json.dumps(found))
    return code


def warm_up() -> None:
    """Load what stages load, and have it compute once: libraries are no part of an estimate."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import distill.train  # noqa: F401
    import eval.scorecard.score  # noqa: F401

    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 64}
    tiny: Any = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes))
    ids = torch.arange(32)[None]
    for dtype in (torch.float32, torch.bfloat16):
        tiny.to(dtype)(input_ids=ids, labels=ids).loss.backward()


def resident() -> dict[str, int]:
    """Bytes that the system counts of this process."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Vm"))
    return {name.rstrip(":"): int(count) * 1024 for name, count, *_ in lines}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
