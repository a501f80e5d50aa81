"""The command line: a table of stages, each imported only when called."""

# Ctrl-C is answered from the first import on

import sys

from distill.process.interrupts import take_interrupts

if __name__ == "__main__" or sys.argv[0].endswith("widedraft"):  # not where another program imports this one
    take_interrupts()

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures.checkpoints.manifest import package_version
from architectures.conversion.command import convert, convert_arguments
from architectures.errors import UserError
from architectures.files.file_hashes import rehash_from_now
from architectures.files.rehash import rehash_argument
from architectures.pages.terminal import terminal
from distill.checkpoints.trust import OPTION, trust_option
from distill.commands import export_command, recipe_commands
from distill.commands.preflight import preflight, recipe_or_folder_arguments
from distill.hub.push.command import push, push_arguments
from distill.process.exits import report_user_errors
from distill.stages import scoring
from eval.commands import pair as pair_commands
from eval.commands.certify import certify, certify_arguments
from eval.commands.latency import latency, latency_arguments
from eval.commands.lookup import lookup, lookup_arguments
from eval.commands.report import report, report_arguments
from eval.commands.speed import speed, speed_arguments

# Every number among the options lies within these, whatever its stage asks of it besides.
MOST = 10**6
BOUNDS = {"seed": (0, 2**32 - 1), "num_threads": (1, 1024), "most_parameters": (1, 10**13), "parameters": (1, 10**13)}
EXITS = "Exit codes: 0 fine, 2 a mistake you can mend (one message), 130 interrupted; run again to continue."


@dataclass(frozen=True)
class Stage:
    """One word after `widedraft`.

    Attributes:
        run: What it does with its parsed arguments.
        help: One line for the list of stages.
        arguments: Adds its arguments to a parser.
    """

    run: Callable[[argparse.Namespace], None]
    help: str
    arguments: Callable[[argparse.ArgumentParser], Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="widedraft",
        description="Makes shallow-and-wide draft models for speculative decoding.",
        epilog="\n".join(["stages:", *(f"  {name:15} {stage.help}" for name, stage in STAGES.items()), "", EXITS]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"widedraft {package_version('widedraft')}")
    parser.add_argument(
        "stage", choices=STAGES, metavar="STAGE", help="what to do; `widedraft STAGE --help` tells more"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="of the stage")
    chosen = parser.parse_args(argv)

    return report_user_errors(lambda: run_stage(chosen.stage, chosen.arguments))


def run_stage(name: str, words: Sequence[str]) -> None:
    """Run one stage with the words after its name.

    Raises:
        UserError: If a word is no text, or an option a number that nothing can be done with.
    """
    refuse_undecodable(words)
    stage = STAGES[name]
    stage_parser = argparse.ArgumentParser(
        prog=f"widedraft {name}", description=stage.help, epilog=EXITS, allow_abbrev=False
    )
    stage.arguments(stage_parser)
    options = stage_parser.parse_intermixed_args(words)
    refuse_absurd_numbers(options)
    if getattr(options, "rehash", False):  # commands that fingerprint nothing have no such option
        rehash_from_now()
    stage.run(options)


def refuse_undecodable(words: Sequence[str]) -> None:
    """Raise UserError for a word that no file can be named with, or that cannot be written in UTF-8."""
    for word in words:
        if "\0" in word or any("\ud800" <= character <= "\udfff" for character in word):
            raise UserError(f"{word[:80]!r}: is not UTF-8 text. Write the word in UTF-8, or rename the file.")


def refuse_absurd_numbers(options: argparse.Namespace) -> None:
    """Raise UserError for an option that is infinite, no number, or beyond what any machine does."""
    for name, given in vars(options).items():
        least, most = BOUNDS.get(name, (0, MOST))
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, int | float) and not least <= value <= most:
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} must be from {least:,} to {most:,}, got {str(value)[:40]}. Choose another.")


def shapes_arguments(parser: argparse.ArgumentParser) -> None:
    """Perhaps --target T."""
    parser.add_argument(
        "--target", metavar="T", help="a folder, hub id or .gguf file: which shapes can be cut from it?"
    )
    parser.add_argument("--revision", default="main", help="branch, tag or commit of a hub id")


def import_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE --to DIR."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a .gguf file of a LLaMA-like model")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the Hugging Face folder to write")
    rehash_argument(parser)


def form_arguments(parser: argparse.ArgumentParser) -> None:
    """DRAFT --to DIR --form FORM."""
    convert_arguments(parser)
    rehash_argument(parser)


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, or what is scored without one, and perhaps --debug and --trust-checkpoints."""
    scoring.eval_arguments(parser)
    recipe_commands.debug_argument(parser)
    rehash_argument(parser)
    trust_option(parser)


def shapes(options: argparse.Namespace) -> None:
    """Print the named shapes, or what they would be if cut out of a target."""
    from architectures.shapes.shape import Shape
    from architectures.shapes.shapes_table import shapes_page, target_page
    from architectures.targets.target import read_remote_config

    if options.target is None:
        print(terminal(*shapes_page()))
    else:
        config = read_remote_config(options.target, options.revision)
        print(terminal(*target_page(Shape.from_config(config, where=options.target), options.target)))


def tasks(_: argparse.Namespace) -> None:
    """Print the named tasks."""
    from eval.prompts.page import tasks_page

    print(terminal(*tasks_page()))


def import_gguf(options: argparse.Namespace) -> None:
    """Write a Hugging Face folder from a GGUF file."""
    from architectures.gguf.importing import import_gguf

    import_gguf(options.file, options.to)
    print(f"{options.to}: a Hugging Face folder; name it as target.path in a recipe.")


def score(options: argparse.Namespace) -> None:
    """Score a recipe's draft, any draft against any target, or any draft on recorded answers."""
    named = (options.target, options.draft, options.prompts, options.recorded)
    if any(value is not None for value in named):
        if options.checkpoints:
            raise UserError("--checkpoints are those of a recipe's training. Give the RECIPE alone, or leave it out.")
        require_checkpoints_to_trust(options)
        scoring.score_without_recipe(options)
    elif not options.words or options.out is not None or options.baseline is not None:
        raise UserError(
            "widedraft eval needs a RECIPE alone, or --target, --draft and --prompts, or --recorded and --draft, then "
            "perhaps --baseline and --out."
        )
    else:
        require_checkpoints_to_trust(options)
        options.recipe, *options.overrides = options.words
        recipe_commands.score(options)


def require_checkpoints_to_trust(options: argparse.Namespace) -> None:
    """Raise UserError where trust is given and no checkpoint is read."""
    if options.trust_checkpoints and not options.checkpoints:
        raise UserError(f"{OPTION} goes with --checkpoints: nothing else here reads any. Leave it out.")


STAGES = {
    "check": Stage(
        recipe_commands.check,
        "check a recipe; print shape, parameters, memory, disk, steps, hours; loads no weights",
        recipe_commands.check_arguments,
    ),
    "preflight": Stage(
        preflight,
        "tell whether engines can serve a draft, or a recipe's shape, and how; exit code 1 if one of them does not",
        recipe_or_folder_arguments,
    ),
    "shapes": Stage(
        shapes, "list the named shapes with their true sizes, or what a target can become", shapes_arguments
    ),
    "tasks": Stage(
        tasks, "list the named tasks: what they ask, where their rows come from, licences", lambda parser: parser
    ),
    "import-gguf": Stage(import_gguf, "make a Hugging Face folder from a GGUF file", import_arguments),
    "convert": Stage(convert, "write a draft with a small output head in a form that an engine loads", form_arguments),
    "masks": Stage(
        recipe_commands.masks,
        "train learned masks, for a recipe with that method, into <run>/masks; then prune",
        recipe_commands.training_arguments,
    ),
    "prune": Stage(
        recipe_commands.prune,
        "cut the undistilled draft out of the target, into <run>/init",
        recipe_commands.stage_arguments,
    ),
    "generate": Stage(
        recipe_commands.generate, "let the target answer the prompts, into <run>/data", recipe_commands.stage_arguments
    ),
    "cache": Stage(
        recipe_commands.cache,
        "write what the teacher says of the answers, for a cached teacher, into <run>/teacher_cache",
        recipe_commands.cache_arguments,
    ),
    "distill": Stage(
        recipe_commands.distill,
        "train the draft on this machine and export it, into <run>/draft",
        recipe_commands.distilling_arguments,
    ),
    "export": Stage(
        export_command.export,
        "write <run>/draft from the newest intact checkpoint, or a folder from any; as GGUF files too",
        export_command.export_arguments,
    ),
    "eval": Stage(score, "score a draft against its target, into <run>/eval", eval_arguments),
    "verify": Stage(
        pair_commands.verify,
        "prove that a draft leaves the target's text as it is; exit code 1 if not",
        pair_commands.verify_arguments,
    ),
    "quality": Stage(
        pair_commands.quality,
        "ask GSM8K or products with and without a draft: how many are right; exit code 1 if it changed a text",
        pair_commands.quality_arguments,
    ),
    "compare": Stage(
        pair_commands.compare,
        "answer prompts with and without a draft, side by side, each token coloured by its writer",
        pair_commands.compare_arguments,
    ),
    "choose": Stage(
        recipe_commands.choose,
        "find the shape of draft that will be the fastest here: step times, short trainings, then a recipe",
        recipe_commands.choosing_arguments,
    ),
    "lookup": Stage(
        lookup,
        "tune when the text itself proposes in the place of a draft, by exact replay and step times",
        lookup_arguments,
    ),
    "speed": Stage(
        speed,
        "decode prompts with and without a draft, in turns: tokens per second, and how far prediction is from it",
        speed_arguments,
    ),
    "certify": Stage(
        certify,
        "run a draft in transformers, vLLM or llama.cpp: same texts, counts as replay says, speed; exit code 1 if not",
        certify_arguments,
    ),
    "push": Stage(
        push,
        "push a finished run's draft to the hub, with its card and its evidence; or write what would go",
        push_arguments,
    ),
    "latency": Stage(
        latency,
        "time the steps of a target and its drafts on a grid of batches and contexts, beside the least they can take",
        latency_arguments,
    ),
    "export-recorded": Stage(
        scoring.export_recorded,
        "write recorded answers as text: blocks of tensors, and prompts as JSON lines",
        scoring.export_recorded_arguments,
    ),
    "rounds": Stage(
        scoring.rounds,
        "print the figures of rounds: tau, positions, times of a trace; or of a file of totals what they matched",
        scoring.rounds_arguments,
    ),
    "report": Stage(
        report,
        "make one page of the scorecards of one or several runs, with plots; it needs no network",
        report_arguments,
    ),
    "run": Stage(
        recipe_commands.run_everything,
        "all of it; continues where a stopped run left off",
        recipe_commands.training_arguments,
    ),
}

if __name__ == "__main__":
    raise SystemExit(main())
