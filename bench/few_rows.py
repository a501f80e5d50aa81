"""Steps of a model that reads one to eight tokens: as PyTorch multiplies, and as eval/few_rows.py does here.

    python bench/few_rows.py --target models/SmolLM2-135M-Instruct --threads 2

Both forms and all numbers of tokens take turns in one process, in an order drawn anew each time; medians. Where the
second column stays near its first line and the first does not, eval.few_rows.few_rows_are_slow
should say so of this processor too. Nothing else may run.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from architectures.manifest import processor_name
from architectures.progress import track
from eval.decoding.sequencer import Sequencer, open_sequencer
from eval.few_rows import quicken_few_rows
from eval.latency.machine import torch_threads
from eval.models import load_model
from eval.scorecard.tables import table

CONTEXT, MOST_TOKENS, WARM_UPS = 128, 8, 2


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python bench/few_rows.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args(argv)
    with torch_threads(options.threads), torch.inference_mode():
        ms = step_ms(load_model(options.target, dtype="float32", device="cpu"), options.repeats)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{processor_name()} ({capability}), {options.threads} threads, float32, torch {torch.__version__}\n")
    print(table(("tokens", "x Wᵀ, ms", "eval/few_rows.py, ms", "ratio"), list(rows_of(ms))))


def step_ms(model: PreTrainedModel, repeats: int) -> dict[tuple[int, bool], float]:
    """Median milliseconds by tokens and form."""
    sequencer = open_sequencer(model, [[1]], capacity=CONTEXT + MOST_TOKENS, vocab_size=model.config.vocab_size)
    sequencer.feed(torch.arange(CONTEXT)[None], [(0, CONTEXT)], whole=False)
    kinds = [(tokens, quick) for tokens in range(1, MOST_TOKENS + 1) for quick in (False, True)]
    rng, found = np.random.default_rng(0), {kind: [] for kind in kinds}
    for repeat in track(range(WARM_UPS + repeats), description="repetitions", total=WARM_UPS + repeats):
        for place in rng.permutation(len(kinds)):
            tokens, quick = kinds[place]
            spent_s = timed(sequencer, tokens, quick=quick)
            if repeat >= WARM_UPS:
                found[tokens, quick].append(spent_s)
    return {kind: 1000 * float(np.median(spent)) for kind, spent in found.items()}


def timed(sequencer: Sequencer, tokens: int, *, quick: bool) -> float:
    """Seconds of one step."""
    choose_form(sequencer.model, quick=quick)
    start_s = time.perf_counter()
    sequencer.feed(torch.full((1, tokens), 5), [(CONTEXT, tokens)], whole=True)
    return time.perf_counter() - start_s


def choose_form(model: PreTrainedModel, *, quick: bool) -> None:
    """Quicken every layer, wherever this runs, or none."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__dict__.pop("forward", None)
    if quick:
        quicken_few_rows(model)


def rows_of(ms: dict[tuple[int, bool], float]) -> list[list[str]]:
    """One row for each number of tokens."""
    counts = sorted({tokens for tokens, _ in ms})
    return [[str(n), f"{ms[n, False]:.1f}", f"{ms[n, True]:.1f}", f"{ms[n, True] / ms[n, False]:.2f}"] for n in counts]


if __name__ == "__main__":
    main()
