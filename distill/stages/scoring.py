"""What `widedraft eval` scores where no recipe says it: a pair of models, or a draft on recorded answers. No torch."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from architectures.errors import UserError
from architectures.pages.markdown import markdown
from architectures.targets.target import resolve_checkpoint
from distill.recipe.recipe import load_scoring
from distill.run.run_folder import owned
from eval.prompts.words import prompt_sources, prompts_argument

if TYPE_CHECKING:
    from eval.recorded.answers import Recording


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, or a target, a draft and prompts, or recorded answers and a draft."""
    parser.usage = (
        "widedraft eval RECIPE [--checkpoints] [key=value ...]\n"
        "       widedraft eval --target A --draft B --prompts FILE|TASK[=FILE] [--prompts ...] [--baseline C] "
        "[--out DIR] [eval.key=value ...]\n"
        "       widedraft eval --recorded PATH --draft B [--prompts FILE] [--out DIR] [eval.key=value ...]"
    )
    parser.add_argument(
        "words", nargs="*", metavar="RECIPE | key=value", help="a recipe first, unless --draft is given"
    )
    parser.add_argument("--target", metavar="A", help="folder or hub id of the model to draft for")
    parser.add_argument(
        "--recorded", type=Path, metavar="PATH", help="the target's answers in its place: traces, or text of tensors"
    )
    parser.add_argument("--draft", metavar="B", help="folder or hub id of the draft")
    prompts_argument(parser)
    parser.add_argument(
        "--baseline", metavar="C", help="folder or hub id of a draft to compare B with, prompt by prompt"
    )
    parser.add_argument(
        "--checkpoints", action="store_true", help="of a recipe: score every saved checkpoint too, for its tokens"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the scorecard goes (default: eval-<draft's name>)"
    )


def export_recorded_arguments(parser: argparse.ArgumentParser) -> None:
    """PATH --tokenizer B --to DIR."""
    parser.add_argument("traces", type=Path, metavar="PATH", help="folder of traces: <run>/data, or answers/T0 of eval")
    parser.add_argument(
        "--tokenizer", required=True, metavar="B", help="folder or hub id of a model with their tokenizer"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to write")


def rounds_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE, and perhaps --recorded PATH and --lookahead N."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a trace: rounds.jsonl beside a scorecard, or what --rounds of verify and compare wrote; or a line "
        "[total per row] after each round",
    )
    parser.add_argument(
        "--recorded", type=Path, metavar="PATH", help="of totals: the answers, which say where prompts end"
    )
    parser.add_argument("--lookahead", type=int, metavar="N", help="of totals: draft tokens a round proposed")


def score_without_recipe(options: argparse.Namespace) -> None:
    """Score a draft against a target, or on recorded answers.

    Raises:
        UserError: If the options are not those of either.
    """
    if options.debug:
        raise UserError("--debug shrinks a recipe, and a draft named by itself has none. Leave it out.")
    if options.recorded is not None:
        score_recorded(options)
        return
    pair = {"--target": options.target, "--draft": options.draft, "--prompts": options.prompts}
    missing = [name for name, value in pair.items() if value is None]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} must be given too. A draft is scored against its target on prompts, or on "
            "answers recorded from it (--recorded)."
        )
    score_pair(options)


def score_pair(options: argparse.Namespace) -> None:
    """Score one draft against one target."""
    from eval.policies.policy_file import FILE_NAME
    from eval.prompts.loading import load_in_turn
    from eval.scorecard import headline, score_drafts

    settings = load_scoring(options.words)
    if settings.eval.tasks:
        raise UserError("eval.tasks must be left out beside --prompts. Name the prompts once.")
    out = output_folder(options)
    most = settings.eval.max_prompts + settings.eval.policy_prompts
    prompts = load_in_turn(prompt_sources(options.prompts), most=most)
    named = {"baseline": options.baseline, "draft": options.draft}  # the last is the one the verdict is about
    drafts = {name: resolve_checkpoint(folder) for name, folder in named.items() if folder is not None}
    with owned(out):
        scorecard = score_drafts(
            resolve_checkpoint(options.target), drafts, prompts, settings.eval, out, seed=settings.seed
        )
    policies = out / FILE_NAME
    told = f"policies:  {policies}, for --beside once it lies in the draft's folder\n" if policies.is_file() else ""
    print(f"scorecard: {out / 'scorecard.md'}\n{told}\n{headline(scorecard)}")


def score_recorded(options: argparse.Namespace) -> None:
    """Score one draft on recorded answers of a target."""
    from eval.recorded.page import headline
    from eval.recorded.score import USED_KEYS, score_recording

    require_recorded_words(options)
    settings = load_scoring(options.words)
    require_used(options.words, USED_KEYS)
    draft, out = resolve_checkpoint(options.draft), output_folder(options)
    with owned(out):
        scorecard = score_recording(read_recording(options, draft), draft, settings.eval, out, seed=settings.seed)
    print(f"scorecard: {out / 'scorecard.md'}\n\n{headline(scorecard)}")


def read_recording(options: argparse.Namespace, draft: Path) -> "Recording":
    """The answers in a folder of traces, or in a text file beside its prompts."""
    from eval.recorded.answers import read_recorded_text, read_recorded_traces

    if options.recorded.is_dir():
        return read_recorded_traces(options.recorded, draft)
    return read_recorded_text(options.recorded, recorded_prompts(options), draft)


def recorded_prompts(options: argparse.Namespace) -> str:
    """The one file of prompts that stands beside a text of answers."""
    paths = [source.path for source in prompt_sources(options.prompts) if source.task is None]
    if len(paths) != 1 or len(options.prompts) != 1:
        raise UserError(
            f"--prompts must name one file beside {options.recorded}, got {' and '.join(options.prompts)}. It holds a "
            "plain row for each answer, in their order."
        )
    return str(paths[0])


def require_recorded_words(options: argparse.Namespace) -> None:
    """Raise UserError unless the options are those of recorded answers."""
    if options.target is not None:
        raise UserError(
            "--target must be left out beside --recorded: its answers stand in its place. Give one of them."
        )
    if options.baseline is not None:
        raise UserError("--baseline must be left out beside --recorded: one draft is scored at a time.")
    if options.draft is None:
        raise UserError("--draft must be given too. Recorded answers score a draft.")
    if not options.recorded.exists():
        raise UserError(f"{options.recorded}: is not there. Give a folder of traces, or a text file of tensors.")
    if options.recorded.is_dir() and options.prompts is not None:
        raise UserError(f"--prompts must be left out: the traces in {options.recorded} hold theirs.")
    if not options.recorded.is_dir() and options.prompts is None:
        raise UserError(f"--prompts must be given too: {options.recorded} holds answers without their prompts.")


def require_used(words: Sequence[str], used: set[str]) -> None:
    """Raise UserError if words that were read as settings set a key that scoring without a target would ignore."""
    ignored = sorted(str(key) for key in OmegaConf.from_dotlist(list(words)).get("eval", {}) if key not in used)
    if ignored:
        names, counted = (", ".join(f"eval.{key}" for key in keys) for keys in (ignored, sorted(used)))
        raise UserError(
            f"{names} must be left out beside --recorded: answers and temperature are the recorded ones, nothing is "
            f"timed. What counts is {counted}."
        )


def output_folder(options: argparse.Namespace) -> Path:
    """Where a scorecard goes.

    Raises:
        UserError: If that is no folder.
    """
    out = options.out or Path(f"eval-{Path(options.draft).name}")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file, and a scorecard is a folder of files. Choose another place.")
    return out


def export_recorded(options: argparse.Namespace) -> None:
    """Write recorded answers as text."""
    from eval.recorded.export import export_recorded

    count = export_recorded(options.traces, resolve_checkpoint(options.tokenizer), options.to)
    print(f"{options.to}: {count} answers as ground_truth.txt and prompts.jsonl")


def rounds(options: argparse.Namespace) -> None:
    """Print the figures of the rounds in a file, of either form."""
    from architectures.files.reading import read_text

    if read_text(options.file).lstrip().startswith("{"):
        traced_rounds(options)
    else:
        matched_rounds(options)


def traced_rounds(options: argparse.Namespace) -> None:
    """Print the figures of a trace."""
    given = [f"--{name}" for name in ("recorded", "lookahead") if getattr(options, name) is not None]
    if given:
        raise UserError(
            f"{' and '.join(given)} must be left out: {options.file} is a trace, which says where texts end and what "
            "was proposed. They are for lines of totals."
        )
    from eval.report_inputs.round_figures import rounds_page
    from eval.rounds.round_trace import read_round_trace

    print(markdown(rounds_page(read_round_trace(options.file))))


def matched_rounds(options: argparse.Namespace) -> None:
    """Print what rounds matched that a file tells by their totals."""
    from eval.recorded.rounds_file import match_by_totals, match_with_answers, matched_table, read_rounds

    if options.lookahead is not None and options.lookahead < 1:
        raise UserError(f"--lookahead must be at least 1, got {options.lookahead}.")
    if options.recorded is None:
        print(matched_table(match_by_totals(read_rounds(options.file), lookahead=options.lookahead)))
        return
    if options.lookahead is None:
        raise UserError(
            "--lookahead must be given beside --recorded: prompts end lookahead + 2 tokens before their answer."
        )
    from eval.recorded.answers import answer_lengths

    lengths = answer_lengths(options.recorded)
    matched = match_with_answers(read_rounds(options.file), lengths, lookahead=options.lookahead)
    print(matched_table(matched, num_answers=len(lengths)))
