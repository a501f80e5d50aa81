"""Steps of drafts for large vocabularies with the whole output head beside the same steps with fewer rows of it.

    python benchmarks/head_rows.py --threads 2

The drafts have the shapes that our recipes cut for Llama-3.1-8B (wide-829m, 128,256 ids) and Qwen2.5-7B (half of its
neurons, 152,064 ids), at several depths, with random weights. For every depth all sizes of the head take turns in one
process, each with two kinds of step at batch 1:

    1 token     within a chain of 8, each fed the argmax of the one before, as drafting goes
    5 tokens    fed at once with logits after each: the rows of a draft that proposes in one pass

The head is all in which the models differ: layers and embedding are the same tensors. Reported are medians, bytes of
weights read, and the time with fewer rows over that with all, with an interval over repetitions that were resampled
together. Nothing else may run.

Shape suffixes used in this file:
    R = repetitions, N = resamples
"""

import argparse
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from architectures.checkpoints.manifest import provenance
from architectures.draft_vocabulary.head import cut_head
from architectures.files.atomic import write_json
from architectures.files.number_types import dtype_here
from architectures.pages.blocks import Table
from architectures.pages.markdown import markdown
from architectures.progress.track import track
from architectures.shapes.requested_shape import draft_shape
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.targets.known_targets import LLAMA_3_2_1B, QWEN_2_5_7B
from eval.acceptance.estimates import Resampling
from eval.acceptance.intervals import percentile_interval
from eval.latency.floor import weight_bytes_read
from eval.latency.grid import repeated
from eval.latency.machine import machine_state, torch_threads
from eval.latency.steps import Setting, hold_context, time_chain, time_step
from eval.latency.timing import Step, Timed, time_together

RESULTS = Path(__file__).parent / "results" / "head_rows.json"
AT_ONCE = 5  # tokens
TEXT = range(3, 203)  # which tokens makes no difference to the time
MOST_WARM_UPS = 10
COLUMNS = ("draft of", "layers", "rows of the head", "tokens at once", "ms", "MiB read", "of the whole head's time")

Record = dict[str, Any]


class Family(NamedTuple):
    """Drafts of one target.

    Attributes:
        config: Of the checkpoint that our recipe cuts them out of.
        wanted: Widths.
        layers: Depths.
    """

    config: Mapping[str, Any]
    wanted: ArchitectureConfig
    layers: tuple[int, ...]


FAMILIES = {  # Llama's are cut out of Llama-3.2-1B, as recipes/llama3.1-8b-wide-829m.yaml does
    "Llama-3.1-8B": Family(LLAMA_3_2_1B, ArchitectureConfig(layers=5), (1, 2, 5)),
    "Qwen2.5-7B": Family(QWEN_2_5_7B, ArchitectureConfig(layers=5, intermediate="0.5x"), (2, 4)),
}
TINY = {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}


class Kind(NamedTuple):
    """A kind of step: rows of the head, and tokens fed at once."""

    rows: int
    tokens: int


def main(words: Sequence[str] | None = None) -> None:
    """Measure every draft, write and print."""
    options = arguments().parse_args(words)
    with torch_threads(options.threads) as threads, torch.inference_mode():
        before = machine_state(torch.device("cpu"))
        rows = [row for name, family in FAMILIES.items() for row in rows_of(name, family, options)]
        after = machine_state(torch.device("cpu"))
    record = {
        "rows": rows,
        "settings": {**{key: value for key, value in vars(options).items() if key != "out"}, "threads": threads},
        "machine": {"before": vars(before), "after": vars(after)},
        "provenance": provenance(),
    }
    write_json(record, options.out)
    print(markdown(Table(COLUMNS, [cells(row) for row in rows])))
    print(f"\n{options.out}: the figures")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[8192, 32768], help="beside all of them")
    parser.add_argument("--context", type=int, default=128, help="tokens in the cache before each step")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--tiny", action="store_true", help="models of 600 ids instead: a test of this script")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


def rows_of(name: str, family: Family, options: argparse.Namespace) -> list[Record]:
    """Every depth of a target's drafts, one after the other, so that memory holds one at a time."""
    return [row for layers in family.layers for row in rows_at(name, family, layers, options)]


def rows_at(name: str, family: Family, layers: int, options: argparse.Namespace) -> list[Record]:
    """Every kind of step of one depth."""
    config = {**family.config, **TINY, "num_key_value_heads": 2, "head_dim": 16} if options.tiny else family.config
    shape = replace(draft_shape(Shape.from_config(config), family.wanted), layers=layers)
    whole = random_model(config, shape, getattr(torch, dtype_here(options.dtype)))
    models = {shape.vocab: whole, **{rows: with_rows(whole, rows) for rows in options.rows}}
    steps = steps_of(models, Setting(repeated(TEXT, options.context)))
    ticks = track(range(options.repeats), description=f"{name}, {layers} layers", total=options.repeats)
    rng = np.random.default_rng(options.seed)
    timed = time_together(steps, rng, ticks, most_warm_ups=MOST_WARM_UPS)
    resampling = Resampling(options.confidence, 2000, options.seed)
    return [
        {"target": name, "layers": layers, "hidden": shape.hidden, "read_bytes": weight_bytes_read(models[kind.rows])}
        | row_of(kind, timed, shape.vocab, resampling)
        for kind in steps
    ]


def random_model(config: Mapping[str, Any], shape: Shape, dtype: torch.dtype) -> PreTrainedModel:
    """A model of a shape in eval mode, all its weights copies of a million numbers: drawing them all takes minutes."""
    sizes = {"num_hidden_layers": shape.layers, "intermediate_size": shape.intermediate}
    with no_init_weights():
        made = AutoConfig.for_model(**{**config, **sizes})
        model = AutoModelForCausalLM.from_config(made, dtype=dtype, trust_remote_code=False).eval()
    model.tie_weights()
    drawn = torch.randn(2**20, generator=torch.Generator().manual_seed(17)) * 0.02
    for parameter in model.parameters():
        numbers = drawn.to(dtype).repeat(-(-parameter.numel() // len(drawn)))
        parameter.data = numbers[: parameter.numel()].view(parameter.shape)
    return model


def with_rows(whole: PreTrainedModel, rows: int) -> PreTrainedModel:
    """The same model, its other weights shared, with the first rows of its head."""
    shared = {id(tensor): tensor for tensor in (*whole.parameters(), *whole.buffers())}
    twin = copy.deepcopy(whole, shared)
    cut_head(twin, torch.arange(rows))
    return twin


def steps_of(models: Mapping[int, PreTrainedModel], setting: Setting) -> dict[Kind, Step]:
    """A timer for each kind of step."""
    steps: dict[Kind, Step] = {}
    for rows, model in models.items():
        held = hold_context(model, setting, [(1, False), (AT_ONCE, True)])
        steps[Kind(rows, 1)] = partial(time_chain, held)
        steps[Kind(rows, AT_ONCE)] = partial(time_step, held, AT_ONCE, whole=True)
    return steps


def row_of(kind: Kind, timed: Timed[Kind], vocab: int, resampling: Resampling) -> Record:
    """Its times, and how they compare with those of the whole head."""
    own = timed.times(resampling.confidence)[kind]
    seconds_R, whole_R = (np.array(timed.seconds[Kind(rows, kind.tokens)]) for rows in (kind.rows, vocab))
    shape = (resampling.num_resamples, len(seconds_R))
    index_NR = np.random.default_rng(resampling.seed).integers(len(seconds_R), size=shape)
    ratios_N = np.median(seconds_R[index_NR], axis=1) / np.median(whole_R[index_NR], axis=1)
    interval = percentile_interval(ratios_N, resampling.confidence, num_units=len(seconds_R))
    return {
        "rows": kind.rows,
        "whole": kind.rows == vocab,
        "tokens": kind.tokens,
        "median_ms": own.median_ms,
        "interval_ms": own.p50_ms.interval,
        "over_whole": float(np.median(seconds_R) / np.median(whole_R)),
        "over_whole_interval": list(interval),
        "settled": timed.is_settled,
    }


def cells(row: Record) -> tuple[str, ...]:
    low, high = row["over_whole_interval"]
    return (
        row["target"],
        str(row["layers"]),
        f"{row['rows']:,}",
        str(row["tokens"]),
        f"{row['median_ms']:.2f}",
        f"{row['read_bytes'] / 2**20:.0f}",
        "" if row["whole"] else f"{row['over_whole']:.3f} [{low:.3f}, {high:.3f}]",
    )


if __name__ == "__main__":
    main()
