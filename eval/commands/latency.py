"""`widedraft latency`: its arguments, and what it does. Imports torch only when it runs."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.files.number_types import dtype_here
from architectures.files.rehash import rehash_argument
from architectures.pages.markdown import markdown
from eval.commands.pair import DTYPES, how_asked, require_one_way, require_plot_name
from eval.prompts.words import prompts_argument

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from architectures.shapes.shape import Shape
    from eval.acceptance.estimates import Resampling
    from eval.records.grid import GridFigures

NUM_RESAMPLES = 2000
LEAST_DEPTHS = 3  # a line through fewer says nothing


def latency_arguments(parser: argparse.ArgumentParser) -> None:
    """--target A and perhaps --draft B and more."""
    parser.add_argument("--target", required=True, metavar="A", help="folder or hub id of a model")
    parser.add_argument("--draft", nargs="+", default=[], metavar="B", help="folders or hub ids of its drafts")
    parser.add_argument(
        "--shapes",
        type=int,
        nargs="*",
        metavar="LAYERS",
        help="measure untrained drafts of equal size in place of --draft, one for each number of layers "
        "(default: 1 2 4 ...)",
    )
    parser.add_argument(
        "--parameters",
        type=parameter_count,
        nargs="+",
        default=[],
        metavar="N",
        help="sizes of --shapes, as 290M or 1.3B (default: a quarter and an eighth of the target's)",
    )
    parser.add_argument(
        "--vocabulary", type=int, metavar="K", help="ids that the drafts of --shapes can say (default: all)"
    )
    prompts_argument(parser)  # they fill the caches
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], metavar="N", help="rows (default: 1 4)")
    parser.add_argument(
        "--context",
        type=int,
        nargs="+",
        default=[128, 1024],
        metavar="N",
        help="tokens before it (default: 128 1024)",
    )
    parser.add_argument(
        "--lookahead", type=int, nargs="+", default=[1, 4], metavar="N", help="draft tokens verified (default: 1 4)"
    )
    parser.add_argument("--repeats", type=int, default=30, metavar="N", help="of every step (default: 30)")
    parser.add_argument(
        "--target-bits", type=int, choices=(8, 4), help="pack the target's linear layers, as a server may do"
    )
    parser.add_argument("--compile", action="store_true", help="measure compiled steps too: half a minute a shape")
    parser.add_argument("--capture", action="store_true", help="measure captured steps too: CUDA graphs, on a GPU")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="number type (default: auto)")
    parser.add_argument(
        "--num-threads", type=int, default=None, metavar="N", help="of the processor (default: OMP_NUM_THREADS, or all)"
    )
    parser.add_argument("--confidence", type=float, default=0.95, metavar="P", help="of intervals (default: 0.95)")
    parser.add_argument("--seed", type=int, default=17, help="of the order of steps (default: 17)")
    rehash_argument(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the step times of --shapes")


def parameter_count(text: str) -> int:
    """290M -> 290,000,000."""
    number = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([MB])", text)
    if number is None or float(number[1]) == 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0 of M or B, as 290M or 1.3B, got {text!r}")
    return round(float(number[1]) * {"M": 1e6, "B": 1e9}[number[2]])


def latency(options: argparse.Namespace) -> None:
    """Measure, print and perhaps write."""
    require_sensible(options)
    from architectures.files.atomic import write_bytes
    from eval.commands.latency_page import grid_page
    from eval.commands.shapes_plot import shapes_plot
    from eval.models.identity import model_facts
    from eval.records.files import write_record
    from eval.records.grid import TARGET, GridFile, GridModel
    from eval.records.origin import Provenance

    models, text_ids = opened(options)
    described = {
        name: GridModel(**model_facts(Path(str(model.name_or_path)), model), device=str(model.device))
        for name, model in models.items()
    }
    if options.target_bits is not None:
        described[TARGET] = replace(described[TARGET], dtype=f"{options.target_bits} bits")
        print(f"The target's linear layers are packed into {options.target_bits} bits a weight.\n")
    if options.shapes is None:
        record = measured(options, models, text_ids)
    else:
        record = measured_shapes(options, models[TARGET], text_ids)
    print(markdown(*grid_page(record), level=2))
    if options.plot is not None:
        write_bytes(shapes_plot(record), options.plot)
    if options.out is not None:
        write_record(GridFile(**vars(record), models=described, provenance=Provenance.of_this_process()), options.out)
        print(f"\n{options.out}: the figures")


def measured(
    options: argparse.Namespace, models: Mapping[str, "PreTrainedModel"], text_ids: Sequence[int]
) -> "GridFigures":
    """The record of the grid."""
    from eval.latency.grid import Grid, measure_grid
    from eval.latency.machine import torch_threads
    from eval.latency.memory import require_memory

    for batch, context in product(options.batch, options.context):
        require_memory(models, batch=batch, context=context)
    prefill = options.shapes is None  # of shapes a step is asked, and reading takes longer than all of its steps
    grid = Grid(options.batch, options.context, options.lookahead, options.repeats, how_asked(options), prefill=prefill)
    with torch_threads(options.num_threads):
        return measure_grid(models, text_ids, grid, resampling_of(options))


def measured_shapes(options: argparse.Namespace, target: "PreTrainedModel", text_ids: Sequence[int]) -> "GridFigures":
    """The record of the grid of a target and untrained drafts, with what it says of depth and width."""
    from architectures.shapes.equal_shapes import equal_shapes
    from eval.latency.depth_and_width import with_depth_and_width
    from eval.latency.untrained import source_shape, untrained_models
    from eval.records.grid import TARGET

    source = source_shape(target)
    shapes = equal_shapes(with_head_of(source, options.vocabulary), options.shapes, options.parameters)
    drafts = untrained_models(target, [one.shape for one in shapes])
    models = {TARGET: target, **{one.name: draft for one, draft in zip(shapes, drafts, strict=True)}}
    return with_depth_and_width(measured(options, models, text_ids), shapes, source, resampling_of(options))


def with_head_of(source: "Shape", rows: int | None) -> "Shape":
    """A shape whose output head says so many ids alone; the shape itself where that is None.

    Raises:
        UserError: If there are no more ids than that.
    """
    if rows is None:
        return source
    if not 0 < rows < source.vocab:
        raise UserError(
            f"--vocabulary must be from 1 to {source.vocab - 1}, of the target's {source.vocab}; got {rows}."
        )
    return replace(source, head_vocab=rows, tied=False)


def resampling_of(options: argparse.Namespace) -> "Resampling":
    from eval.acceptance.estimates import Resampling

    return Resampling(options.confidence, NUM_RESAMPLES, options.seed)


def opened(options: argparse.Namespace) -> tuple[dict[str, "PreTrainedModel"], list[int]]:
    """The target and its drafts by name, and the text that fills their caches."""
    from architectures.targets.target import require_whole_head, resolve_checkpoint
    from eval.checks.loaded import prompts_of
    from eval.models.loading import load_model, load_tokenizer, require_same_tokenizer
    from eval.prompts.rendering import render_prompt
    from eval.records.grid import TARGET

    folder = resolve_checkpoint(options.target)
    require_whole_head(folder)
    drafts = [resolve_checkpoint(name) for name in options.draft]
    for draft in drafts:
        require_same_tokenizer(folder, draft)
    tokenizer, dtype = load_tokenizer(folder), dtype_here(options.dtype)
    text_ids = [
        token for prompt in prompts_of(options.prompts, None) for token in render_prompt(tokenizer, prompt.messages)
    ]
    names = ["draft"] if len(drafts) == 1 else [f"draft {number}" for number in range(1, len(drafts) + 1)]
    folders = {TARGET: folder, **dict(zip(names, drafts, strict=True))}
    bits = {TARGET: options.target_bits}
    return {name: load_model(path, dtype=dtype, bits=bits.get(name)) for name, path in folders.items()}, text_ids


def require_sensible(options: argparse.Namespace) -> None:
    """Raise UserError for numbers nothing can be measured with."""
    from eval.acceptance.intervals import least_units

    for name in ("batch", "context", "lookahead"):
        for value in getattr(options, name):
            if value < 1:
                raise UserError(f"--{name} must be above 0, got {value}.")
    require_sensible_shapes(options)
    require_one_way(options)
    for name in ("compile", "capture"):
        if getattr(options, name) and options.target_bits is not None:
            raise UserError(f"--{name} measures steps of plain weights: leave --target-bits away, or --{name}.")
    if not 0 < options.confidence < 1:
        raise UserError(f"--confidence must be between 0 and 1, got {options.confidence:g}.")
    if options.repeats < least_units(options.confidence):
        raise UserError(
            f"--repeats must be at least {least_units(options.confidence)}, or no median has an interval at confidence "
            f"{options.confidence:g}; got {options.repeats}."
        )
    if options.num_threads is not None and options.num_threads < 1:
        raise UserError(f"--num-threads must be above 0, got {options.num_threads}.")
    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out {options.out}: is a folder. Name a file in it.")


def require_sensible_shapes(options: argparse.Namespace) -> None:
    """Raise UserError for shapes that say nothing of depth."""
    if options.shapes is None and options.parameters:
        raise UserError("--parameters are the sizes of --shapes: give --shapes too.")
    if options.shapes is None and options.vocabulary is not None:
        raise UserError("--vocabulary is of the drafts of --shapes: give --shapes too.")
    if options.shapes is None and options.plot is not None:
        raise UserError("--plot draws the step times of --shapes: give --shapes too.")
    require_plot_name(options.plot)
    if options.shapes is not None and options.target_bits is not None:
        raise UserError("--target-bits packs a target beside its drafts, --shapes are built as it is: leave one away.")
    if options.shapes is not None and options.draft:
        raise UserError("--shapes measures untrained drafts: leave --draft away, or leave --shapes away.")
    if options.shapes and len(set(options.shapes)) < max(LEAST_DEPTHS, len(options.shapes)):
        named = " ".join(map(str, options.shapes))
        raise UserError(f"--shapes {named}: name at least {LEAST_DEPTHS} numbers of layers, each once.")
    if len(set(options.parameters)) < len(options.parameters):
        raise UserError(f"--parameters {' '.join(map(str, options.parameters))}: name each size once.")
