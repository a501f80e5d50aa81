"""The target against itself, decoded in turns as `widedraft speed` does: what noise and drift of a machine look like.

    python benchmarks/self_speed.py --target models/SmolLM2-135M-Instruct --prompts recipes/prompts/quickstart.jsonl \
        --out benchmarks/results/self_speed.json

Each turn decodes one group of prompts several times over by the very same way, so every true ratio is 1. `make
simulations` resamples these turns to see how often an interval is wrong (docs/scoring.md). Nothing else may run.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
import torch

from architectures.checkpoints.manifest import git_commit, hardware
from architectures.files.number_types import dtype_here
from architectures.progress.track import track
from eval.checks.loaded_pair import prompts_of
from eval.decoding.texts import Limits
from eval.models.loading import load_model, load_tokenizer, stop_token_ids
from eval.prompts.rendering import render_prompt
from eval.speed.measure import groups_of, take_turns, warm_up
from eval.speed.ways import PLAIN, Run, Setup, Taken, Way, ways_to_decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--groups", type=int, default=16, help="of prompts, at each batch")
    parser.add_argument("--copies", type=int, default=4, help="of the one way, in every turn")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = Path(options.target)
    model, tokenizer = load_model(folder, dtype=dtype_here("auto")), load_tokenizer(folder)
    most = max(options.batches) * options.groups
    prompts = [render_prompt(tokenizer, prompt.messages) for prompt in prompts_of([options.prompts], most)]
    [run] = ways_to_decode(Setup(model, {}, Limits(options.max_new_tokens, stop_token_ids(model))), ()).values()
    result = {
        "batches": {str(batch): turns_at(run, prompts, batch, options) for batch in options.batches},
        "settings": {key: value for key, value in vars(options).items() if key not in ("out", "target")},
        "dtype": str(model.dtype),
        "commit": git_commit(),
        "hardware": hardware(),
    }
    options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")


def turns_at(run: Run, prompts: list[list[int]], batch: int, options: argparse.Namespace) -> list[dict[str, object]]:
    """Every turn in the order taken: its repetition and group; seconds and tokens of every copy."""
    groups = groups_of(prompts[: batch * options.groups], batch)
    ways = {Way(PLAIN, copy): run for copy in range(options.copies)}
    warm_up(ways, groups[:1])
    turns = list(product(range(options.repeats), range(len(groups))))
    taken: dict[Way, list[dict[int, Taken]]] = {}
    ticks = track(turns, description=f"batch {batch}", total=len(turns))
    for _ in take_turns(ways, groups, ticks, np.random.default_rng(options.seed), times=taken):
        pass
    return [
        {
            "repeat": repeat,
            "group": group,
            "seconds": [round(rows[repeat][group].whole_s, 4) for rows in taken.values()],
            "tokens": [rows[repeat][group].tokens for rows in taken.values()],
        }
        for repeat, group in turns
    ]


if __name__ == "__main__":
    main()
