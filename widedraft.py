"""The command line: a table of commands, each imported only when called."""

# Handle Ctrl-C from the first import on

import sys

from distill.process import take_interrupts

if __name__ == "__main__" or sys.argv[0].endswith("widedraft"):  # not if another program imports this module
    take_interrupts()

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from architectures.errors import UserError
from architectures.manifest import package_version
from architectures.settings import Flag, Section, read_settings
from distill import commands
from distill.checkpoints.checkpoint_files import trust_checkpoints
from distill.choose.candidates import ChooseSettings
from distill.commands import CheckSettings, GenerateSettings, RunSettings, check
from distill.distributed import launch_if_several
from distill.hub.push import PushSettings
from distill.process import report_user_errors
from distill.recipe.recipe import TrainSettings
from distill.shipped_recipes import RecipesSettings, recipes
from eval.cli import BenchmarkSettings, ReportSettings, VerifySettings, benchmark, report, verify
from eval.engines.certify import CertifySettings, certify

EXITS = "Exit codes: 0 success, 2 user error (one message), 130 interrupted; run again to continue."


@dataclass(frozen=True)
class Command:
    """A subcommand of `widedraft`.

    Attributes:
        help: One line for the list of commands.
        settings: Flags and arguments.
        usage: Its forms, if it has several.
    """

    run: Callable[[Any], None]
    help: str
    settings: type[Section]
    usage: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="widedraft",
        description="Create shallow-and-wide draft models for speculative decoding.",
        epilog="\n".join(
            ["commands:", *(f"  {name:15} {command.help}" for name, command in COMMANDS.items()), "", EXITS]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"widedraft {package_version('widedraft')}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="see `widedraft COMMAND --help`")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the command")
    chosen = parser.parse_args(argv)

    return report_user_errors(lambda: run_command(chosen.command, chosen.arguments))


def run_command(name: str, words: Sequence[str]) -> None:
    """Run one command with the arguments after its name; raise UserError if one is invalid."""
    reject_undecodable(words)
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"widedraft {name}", usage=command.usage, description=command.help, epilog=EXITS, allow_abbrev=False
    )
    settings = read_settings(parser, command.settings, words)
    launch_if_several(settings, [name, *words], commands.single_process_reason)
    if getattr(settings, "trust_checkpoints", False):
        trust_checkpoints()
    command.run(settings)


def reject_undecodable(words: Sequence[str]) -> None:
    """Raise UserError for an argument that cannot be a file name or UTF-8."""
    for word in words:
        if "\0" in word or any("\ud800" <= character <= "\udfff" for character in word):
            raise UserError(f"{word[:80]!r}: is not UTF-8. Encode it as UTF-8, or rename the file.")


class ImportSettings(Section):
    """Settings of `widedraft import`."""

    file: Annotated[Path, Flag(metavar="FILE", is_word=True)] = Field(
        description="A .gguf file, or the directory of a multimodal checkpoint, whose text model is extracted."
    )
    to: Annotated[Path, Flag(metavar="DIR")] = Field(description="Output directory of the Hugging Face checkpoint.")


def import_checkpoint(settings: ImportSettings) -> None:
    from architectures.gguf_import import import_gguf
    from architectures.text_part import import_text_model

    (import_text_model if settings.file.is_dir() else import_gguf)(settings.file, settings.to)
    print(f"{settings.to}: a Hugging Face checkpoint; set target.path to it in a recipe.")


def serve(settings: commands.ServeFlags) -> None:
    if missing := [name for name in ("fastapi", "uvicorn", "prometheus_client") if find_spec(name) is None]:
        raise UserError(f"serve: {', '.join(missing)} not installed. Run: pip install 'widedraft[serve]'")
    if settings.words:
        commands.serve_and_learn(settings)
        return
    from eval.http_server import serve_pair

    serve_pair(settings)


COMMANDS = {
    "recipes": Command(
        recipes, "list or write the recipes that ship with widedraft; list named shapes and tasks", RecipesSettings
    ),
    "check": Command(
        check,
        "check recipes and print shape, parameters, memory, disk, steps and hours, without loading weights",
        CheckSettings,
    ),
    "import": Command(import_checkpoint, "convert a GGUF file or a multimodal checkpoint's text model", ImportSettings),
    "prune": Command(
        commands.prune,
        "prune the target to the initial draft, into <run>/init; trains its masks first, if the recipe has them",
        RunSettings,
    ),
    "generate": Command(
        commands.generate, "generate target responses for the prompts, into <run>/data", GenerateSettings
    ),
    "cache": Command(
        commands.cache,
        "precompute the teacher's outputs, into <run>/teacher_cache, so that training runs without the teacher",
        commands.CacheSettings,
    ),
    "distill": Command(
        commands.distill,
        "train the draft and export it into <run>/draft",
        TrainSettings,
    ),
    "export": Command(
        commands.export,
        "export the newest checkpoint into <run>/draft, or any checkpoint; convert drafts for engines or to GGUF",
        commands.ExportSettings,
        usage=(
            "widedraft export RECIPE [key=value ...] [--form FORM --to DIR] [--gguf KIND ...]\n"
            "       widedraft export DRAFT [--form FORM --to DIR] [--gguf KIND ...]\n"
            "       widedraft export --checkpoint FILE --init DIR --target T --to DIR [--dtype TYPE] [--gguf KIND ...]"
        ),
    ),
    "eval": Command(
        commands.score,
        "score a draft against its target, into <run>/eval",
        commands.EvalSettings,
        usage=(
            "widedraft eval RECIPE [--checkpoints] [key=value ...]\n"
            "       widedraft eval --target A --draft B --prompts FILE|TASK[=FILE] [--prompts ...] [--baseline C] "
            "[--out DIR] [eval.key=value ...]\n"
            "       widedraft eval --recorded PATH --draft B [--prompts FILE] [--out DIR] [eval.key=value ...]\n"
            "       widedraft eval --endpoint URL (RECIPE | --target A --draft B --prompts FILE|TASK[=FILE]) "
            "[--out DIR] [generate.model=NAME] [eval.key=value ...]"
        ),
    ),
    "verify": Command(
        verify,
        "check that speculative decoding is lossless; or compare task accuracy; or show outputs side by side",
        VerifySettings,
    ),
    "choose": Command(
        commands.choose,
        "find the fastest draft shape on this machine: step times, short training runs, then a recipe",
        ChooseSettings,
    ),
    "benchmark": Command(
        benchmark,
        "measure wall-clock tokens/s with and without a draft in interleaved runs; --grid: step times",
        BenchmarkSettings,
    ),
    "serve": Command(
        serve,
        "serve a target with a draft over OpenAI's API on this machine, with a page to try it in",
        commands.ServeFlags,
    ),
    "certify": Command(
        certify,
        "run a draft in an engine: check outputs and acceptance counts, measure speed; exit code 1 on a mismatch",
        CertifySettings,
    ),
    "push": Command(
        commands.push,
        "push the draft of a complete run to the hub, with its card and evaluation; or write the files only",
        PushSettings,
    ),
    "report": Command(
        report,
        "write a self-contained page with plots of one or several scorecards",
        ReportSettings,
    ),
    "run": Command(
        commands.run_everything,
        "run all stages; continues an interrupted run",
        RunSettings,
    ),
}

if __name__ == "__main__":
    raise SystemExit(main())
