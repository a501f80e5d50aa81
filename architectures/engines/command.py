"""`widedraft preflight`: its arguments, and what it does with a folder (a recipe: distill/commands/preflight.py)."""

import argparse
from typing import TYPE_CHECKING, get_args

from architectures.engines.pair.finding import EngineName
from architectures.errors import UserError
from architectures.pages.terminal import terminal
from architectures.shapes.serving import MAX_DEGREE

if TYPE_CHECKING:
    from architectures.engines.pair.facts import Model

NAMES: tuple[EngineName, ...] = get_args(EngineName)


def preflight_arguments(parser: argparse.ArgumentParser) -> None:
    """DRAFT --target T and more."""
    parser.add_argument(
        "draft", metavar="DRAFT|RECIPE", help="folder or hub id of the draft; or a recipe, of a shape before it is cut"
    )
    parser.add_argument(
        "--target", metavar="T", help="folder, hub id or .gguf file of the model to draft for (a recipe names it)"
    )
    parser.add_argument("--revision", default="main", help="branch, tag or commit of a target on the hub")
    parser.add_argument(
        "--engine", action="append", choices=NAMES, help="may be given several times (default: all of them)"
    )
    parser.add_argument(
        "--tensor-parallel", type=int, default=None, metavar="N", help="devices that share both models (default: 1)"
    )
    parser.add_argument(
        "--lookahead",
        type=int,
        default=None,
        metavar="K",
        help="tokens proposed per round (default: what the draft's generation_config.json says, else 3)",
    )


def require_sensible(options: argparse.Namespace) -> None:
    """Raise UserError for numbers that nothing can be served with."""
    for name, most in (("tensor_parallel", MAX_DEGREE), ("lookahead", None)):
        value = getattr(options, name)
        if value is not None and (value < 1 or (most is not None and value > most)):
            allowed = "at least 1" if most is None else f"from 1 to {most}"
            raise UserError(f"--{name.replace('_', '-')} must be {allowed}, got {value}. Choose another.")


def engines_asked(options: argparse.Namespace) -> tuple[EngineName, ...]:
    """The engines named, each once; all where none is."""
    return tuple(dict.fromkeys(options.engine or NAMES))


def lookahead_of(draft: "Model") -> int:
    """Tokens per round that a draft's generation_config.json asks for, else the engines' own default."""
    from architectures.engines.pair.facts import DEFAULT_LOOKAHEAD

    return (draft.settings or {}).get("num_assistant_tokens") or DEFAULT_LOOKAHEAD


def preflight_folders(options: argparse.Namespace) -> None:
    """Print what engines say of a draft and its target; exit code 1 if one of them does not serve it."""
    from architectures.engines.page import preflight_page
    from architectures.engines.pair.facts import Pair
    from architectures.engines.pair.read_facts import read_draft, read_model

    if options.target is None:
        raise UserError("widedraft preflight needs --target beside a draft's folder. Name the model it drafts for.")
    draft = read_draft(options.draft)
    pair = Pair(
        draft=draft,
        target=read_model(options.target, options.revision),
        revision=options.revision,
        tensor_parallel=options.tensor_parallel or 1,
        lookahead=options.lookahead or lookahead_of(draft),
    )
    page, served = preflight_page(engines_asked(options), pair)
    print(terminal(*page))
    if not served:
        raise SystemExit(1)
