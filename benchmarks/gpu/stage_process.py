"""One stage in a process of its own: each row becomes a line of JSON as soon as it is measured.

    python -m benchmarks.gpu.stage_process MODULE SETTING.json ROWS.jsonl

The last line says how it ended; where it is missing, the process was killed.
"""

import json
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from architectures.errors import UserError
from benchmarks.gpu.stage import Setting, SkippedError
from eval.models import one_line

END = "end"  # key of the last line: "done", "skipped" or "failed"


def main(module: str, setting_file: Path, rows_file: Path) -> None:
    """Run the stage of a module to its end, its deadline, or its failure."""
    setting = read_setting(json.loads(setting_file.read_text(encoding="utf-8")))
    with rows_file.open("w", encoding="utf-8", buffering=1) as file:
        try:
            module, _, name = module.partition(":")
            for row in getattr(import_module(module), name or "rows")(setting):
                file.write(json.dumps(row) + "\n")
            end = {END: "done"}
        except (SkippedError, UserError) as error:
            end = {END: "skipped", "reason": str(error)}
        except Exception as error:  # whatever breaks one stage, the next ones are still worth running
            traceback.print_exc()
            end = {END: "failed", "reason": one_line(error)}
        file.write(json.dumps(end) + "\n")


def read_setting(told: dict[str, Any]) -> Setting:
    """The setting as the runner wrote it: the clock is the machine's, so importing this process's packages counts."""
    return Setting(
        device=torch.device(told["device"]),
        size=told["size"],
        **{name: Path(told[name]) for name in ("target", "prompts", "work", "out")},
        deadline_s=told["deadline_s"],
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
