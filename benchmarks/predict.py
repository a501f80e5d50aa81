"""What step times predict of decoding with a draft, beside what `widedraft speed` measures in the same turns.

    python benchmarks/predict.py --target models/SmolLM2-135M-Instruct --prompts recipes/prompts/quickstart.jsonl

Two drafts are made of the target: one of few of its layers, of which next to nothing is kept, and the target with noise
on its weights, of which some is. Both are measured by the functions of `widedraft speed` at every lookahead and batch;
a row of the table is one of each. `error` is the predicted speed-up over the measured one, less 1. Nothing else may
run meanwhile: a machine that is busy in one turn and idle in the next is predicted by nothing.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from architectures.checkpoints.manifest import provenance
from architectures.files.atomic import write_json
from architectures.files.number_types import dtype_here
from architectures.pages.blocks import Table
from architectures.pages.markdown import markdown
from architectures.pruning.plan import plan_pruning
from architectures.pruning.prune import prune_checkpoint
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from eval.acceptance.estimates import Resampling
from eval.checks.loaded_pair import LoadedPair, prompts_of
from eval.commands.speed import NUM_RESAMPLES, SpeedSettings, measured, setup_of
from eval.latency.machine import torch_threads
from eval.models.loading import load_model, load_tokenizer
from eval.pages.verdict import figure_words
from eval.records.speed import SpeedWay
from eval.speed.ways import DRAFT

RESULTS = Path(__file__).parent / "results" / "predict.json"
COLUMNS = ("batch", "draft", "lookahead", "tau", "predicted", "measured", "error")

Record = dict[str, Any]


def main(words: Sequence[str] | None = None) -> None:
    """Make the drafts, measure every batch, write and print."""
    options = arguments().parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        pairs = pairs_of(options, Path(folder))
        with torch_threads(options.num_threads):
            rows = [row for batch in options.batches for row in rows_at(batch, pairs, options)]
    record = {
        "rows": rows,
        "largest_error": max(rows, key=lambda row: abs(row["error"]))["error"],
        "settings": {key: value for key, value in vars(options).items() if key not in ("out", "target")},
        "provenance": provenance(),
    }
    write_json(record, options.out)
    print(markdown(Table(COLUMNS, [cells(row) for row in rows])))
    print(f"\nPredicted and measured differ by at most {abs(record['largest_error']):.1%}.\n{options.out}: the figures")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--layers", type=int, default=4, help="of the draft that is cut")
    parser.add_argument("--noise", type=float, default=0.05, help="on the other draft's weights, of their own spread")
    parser.add_argument("--lookahead", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--groups", type=int, default=6, help="of prompts that are decoded together, at each batch")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


def pairs_of(options: argparse.Namespace, folder: Path) -> dict[str, LoadedPair]:
    """The target with each draft; drafts are written to a folder, so that the record can name their weights."""
    target = Path(options.target)
    few, noisy = folder / "few", folder / "noisy"
    cut_draft(target, few, layers=options.layers)
    add_noise(target, noisy, size=options.noise)
    dtype = dtype_here(options.dtype)
    model, tokenizer = load_model(target, dtype=dtype), load_tokenizer(target)
    named = {f"{options.layers} layers": few, f"noise {options.noise:g}": noisy}
    return {
        name: LoadedPair(model, load_model(each, dtype=dtype), tokenizer, (target, each))
        for name, each in named.items()
    }


def cut_draft(target: Path, out: Path, *, layers: int) -> None:
    """Write the first and last layers of the target, untrained."""
    plan = plan_pruning(Shape.from_config(read_config(target)), ArchitectureConfig(layers=layers, method="first_last"))
    prune_checkpoint(target, plan, out, dtype="float32", finish=lambda _: None)


def add_noise(target: Path, out: Path, *, size: float) -> None:
    """Write the target with noise on every tensor of more than one dimension."""
    model, generator = load_model(target, dtype="float32", device="cpu"), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size * float(parameter.std()))
    model.save_pretrained(out)


def rows_at(batch: int, pairs: Mapping[str, LoadedPair], options: argparse.Namespace) -> list[Record]:
    """What is predicted and measured of every draft and lookahead at one batch."""
    asked = speed_settings(batch, options)
    any_pair = next(iter(pairs.values()))
    prompts = [any_pair.rendered(prompt) for prompt in prompts_of([options.prompts], asked.num_prompts)]
    resampling = Resampling(asked.confidence, NUM_RESAMPLES, asked.seed)
    record = measured(asked, setup_of(asked, pairs, {}), pairs, prompts, resampling)
    return [row_of(batch, way) for way in record.ways if way.way == DRAFT]


def speed_settings(batch: int, options: argparse.Namespace) -> SpeedSettings:
    """What `widedraft speed` would be asked."""
    return SpeedSettings(
        target=options.target,
        drafts=("few", "noisy"),
        batch_size=batch,
        num_prompts=batch * options.groups,
        max_new_tokens=options.max_new_tokens,
        repeats=options.repeats,
        lookaheads=tuple(options.lookahead),
    )


def row_of(batch: int, way: SpeedWay) -> Record:
    """One draft at one lookahead."""
    assert way.predicted is not None
    assert way.decode is not None
    return {
        "batch": batch,
        **{key: getattr(way, key) for key in ("draft", "lookahead", "tau")},
        **{key: vars(getattr(way, key)) for key in ("round_ms", "predicted_round_ms")},
        "predicted": vars(way.predicted),
        "measured": vars(way.decode.speedup),
        "error": way.predicted.value / way.decode.speedup.value - 1,
    }


def cells(row: Record) -> tuple[str, ...]:
    ratios = (figure_words(**row[name], times=True) for name in ("predicted", "measured"))
    named = (str(row["batch"]), row["draft"], str(row["lookahead"]), f"{row['tau']:.2f}")
    return (*named, *ratios, f"{row['error']:+.1%}")


if __name__ == "__main__":
    main()
