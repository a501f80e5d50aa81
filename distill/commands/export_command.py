"""`widedraft export`: the draft of a recipe's run, or of any checkpoint of ours; as GGUF files too.

No torch until it runs.
"""

import argparse
from pathlib import Path
from typing import get_args

from architectures.errors import UserError
from architectures.files.rehash import rehash_argument
from architectures.gguf_export.names import GgufKind, file_name
from architectures.shapes.shape import DTYPE_BYTES
from distill.checkpoints.trust import trust_option
from distill.commands.recipe_commands import debug_argument, own_run, trust_if_asked

OF_A_CHECKPOINT = ("checkpoint", "init", "target", "to")


def export_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE key=value ..., or a checkpoint and what it belongs to; and perhaps --gguf KIND."""
    parser.usage = (
        "widedraft export RECIPE [--gguf KIND ...] [key=value ...]\n"
        "       widedraft export --checkpoint FILE --init DIR --target T --to DIR [--dtype TYPE] [--gguf KIND ...]"
    )
    parser.add_argument("words", nargs="*", metavar="RECIPE | key=value", help="a recipe, unless --checkpoint is given")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="a .pt file of <run>/checkpoints")
    parser.add_argument("--init", type=Path, metavar="DIR", help="the folder its training started from: <run>/init")
    parser.add_argument("--target", metavar="T", help="folder or hub id of the model it drafts for")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of a target on the hub")
    parser.add_argument("--to", type=Path, metavar="DIR", help="the draft folder to write")
    parser.add_argument(
        "--dtype", choices=DTYPE_BYTES, help="number type of its weights (default: bfloat16; a recipe has export.dtype)"
    )
    parser.add_argument(
        "--gguf",
        action="append",
        choices=get_args(GgufKind),
        default=[],
        help="also write DIR/<name>-KIND.gguf, for llama.cpp; may be given several times",
    )
    debug_argument(parser)
    rehash_argument(parser)
    trust_option(parser)


def export(options: argparse.Namespace) -> None:
    """Make a draft folder, and its GGUF files."""
    trust_if_asked(options)
    if any(getattr(options, name) is not None for name in OF_A_CHECKPOINT):
        export_named(options)
        write_gguf_files(options.to, options.to.resolve().name, options.gguf)
        return
    if not options.words or options.dtype is not None:
        raise UserError(
            "widedraft export needs a RECIPE alone, whose export.dtype is its number type, or --checkpoint, --init, "
            "--target and --to, then perhaps --dtype."
        )
    from distill.stages.running import export_stage

    options.recipe, *options.overrides = options.words
    options.recipe = Path(options.recipe)
    with own_run(options) as named:
        export_stage(named.recipe)
        write_gguf_files(Path(named.recipe.run_dir) / "draft", named.recipe.run_name, options.gguf)


def export_named(options: argparse.Namespace) -> None:
    """Make a draft folder of one checkpoint.

    Raises:
        UserError: If an option is missing, the checkpoint is damaged, or `export_checkpoint` refuses it.
    """
    from architectures.targets.target import resolve_checkpoint
    from distill.exporting.export import export_any

    missing = [f"--{name}" for name in OF_A_CHECKPOINT if getattr(options, name) is None]
    if missing:
        raise UserError(f"{' and '.join(missing)} must be given too. A checkpoint holds weights and nothing else.")
    if options.words or options.debug:
        given = "--debug" if options.debug else options.words[0]
        raise UserError(f"{given}: is of a recipe, and --checkpoint is exported without one. Leave it out.")
    target = resolve_checkpoint(options.target, revision=options.revision)
    export_any(options.checkpoint, options.init, options.to, target=target, dtype=options.dtype or "bfloat16")
    print(f"   {options.to}: from {options.checkpoint}")


def write_gguf_files(folder: Path, name: str, kinds: list[GgufKind]) -> None:
    """Write a draft folder as GGUF files into itself, and say what each is."""
    if not kinds:
        return
    from architectures.gguf_export.files import export_gguf

    for kind in dict.fromkeys(kinds):
        written = export_gguf(folder, folder / file_name(name, kind), kind, name=name)
        print(f"   {written.path}: {written.num_bytes / 1e6:,.1f} MB")
        if written.fallen_back:
            first, more = written.fallen_back[0], len(written.fallen_back) - 1
            also = f" and {more} more" if more else ""
            print(f"   F16 in it, since their rows are no whole blocks of {kind}: {first}{also}")
