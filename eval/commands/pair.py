"""`widedraft verify`, `quality` and `compare`: their arguments, and what they do. Imports torch only when they run."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.files.number_types import dtype_here
from architectures.files.rehash import rehash_argument
from eval.models.execution import How
from eval.prompts.words import prompts_argument

if TYPE_CHECKING:
    from eval.checks.loaded import LoadedPair
    from eval.checks.verify import Finding
    from eval.decoding.policy import ProposalPolicy
    from eval.rounds.round_trace import Run
    from eval.steps.sequencer import Opener

DTYPES = ("auto", "float32", "bfloat16", "float16")


def pair_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, metavar="A", help="folder or hub id of the model to draft for")
    parser.add_argument("--draft", required=True, metavar="B", help="folder or hub id of the draft")
    parser.add_argument("--lookahead", type=int, default=4, metavar="N", help="tokens proposed per round (default: 4)")
    steps_arguments(parser)
    parser.add_argument(
        "--rounds",
        type=Path,
        metavar="FILE",
        help="write every round decoded with the draft as JSON lines; `widedraft rounds FILE` prints their figures",
    )
    rehash_argument(parser)


def steps_arguments(parser: argparse.ArgumentParser) -> None:
    """--compile or --capture."""
    parser.add_argument(
        "--compile", action="store_true", help="compile the models' steps first: minutes, then faster steps"
    )
    parser.add_argument(
        "--capture", action="store_true", help="capture the models' steps in CUDA graphs first: a GPU, no minutes"
    )


def asked_arguments(parser: argparse.ArgumentParser) -> None:
    """--prompts FILE|TASK[=FILE] --seed N."""
    prompts_argument(parser)
    parser.add_argument("--seed", type=int, default=17, help="of every random number (default: 17)")


def verify_arguments(parser: argparse.ArgumentParser) -> None:
    """--target A --draft B and more."""
    pair_arguments(parser)
    asked_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="number type (default: float32)")
    parser.add_argument("--num-prompts", type=int, default=8, metavar="N", help="prompts used at most (default: 8)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="of a text (default: 64)")
    parser.add_argument(
        "--beside", action="store_true", help="look up beside the draft, by the policies `widedraft lookup` wrote there"
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="of the distribution checks (default: 1)"
    )
    parser.add_argument(
        "--samples", type=int, default=4, metavar="N", help="texts drawn for each prompt and rule (default: 4)"
    )


def verify(options: argparse.Namespace) -> None:
    """Print every finding; exit code 1 where a law does not hold."""
    require_positive(options, "lookahead", "num_prompts", "max_new_tokens", "temperature", "samples")
    require_one_way(options)
    require_sensible_rounds(options)
    from eval.checks.loaded import load_pair, prompts_of
    from eval.checks.verify import Verification, verify_pair
    from eval.decoding.sampling import Sampling

    prompts = prompts_of(options.prompts, options.num_prompts)
    pair = load_pair(options.target, options.draft, dtype=dtype_here(options.dtype))
    ids = [pair.rendered(prompt) for prompt in prompts]
    pair.require_context(ids, options.max_new_tokens)
    wanted = Verification(
        max_new_tokens=options.max_new_tokens,
        stop_ids=pair.stop_ids,
        lookahead=options.lookahead,
        sampling=Sampling(options.temperature),
        samples=options.samples,
        seed=options.seed,
        opener=opener_of(options),
        beside=policies_of(options, pair) if options.beside else {},
    )
    holds, runs = tell(verify_pair(pair.target, pair.draft, ids, wanted))
    write_rounds(options, pair, runs, [prompt.source for prompt in prompts])
    print(f"{options.draft} drafts losslessly for {options.target}: {'yes' if holds else 'NO'}")
    if not holds:
        raise SystemExit(1)


def policies_of(options: argparse.Namespace, pair: "LoadedPair") -> "dict[float, ProposalPolicy]":
    """The draft's policies at the temperatures that are checked."""
    from eval.policies.policy_file import read_policies

    found = read_policies(*pair.folders)
    return {each: found.at(each, pair.folders[1]).policy for each in (0.0, options.temperature)}


def quality_arguments(parser: argparse.ArgumentParser) -> None:
    """--target A --draft B --check CHECK and more."""
    pair_arguments(parser)
    parser.add_argument(
        "--check",
        action="append",
        required=True,
        metavar="gsm8k[=FILE]|multiplication",
        help="questions to ask; may be given for each kind",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="number type (default: float32)")
    parser.add_argument("--num-prompts", type=int, default=100, metavar="N", help="of a kind at most (default: 100)")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="of an answer (default: 256 of gsm8k, 8 of multiplication)"
    )
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="answered together (default: 16)")
    parser.add_argument("--seed", type=int, help="of the numbers to multiply (default: 17)")


def quality(options: argparse.Namespace) -> None:
    """Print how many answers are right alone and with the draft; exit code 1 where the draft changed a text."""
    given = () if options.max_new_tokens is None else ("max_new_tokens",)
    require_positive(options, "lookahead", "num_prompts", "batch_size", *given)
    require_one_way(options)
    require_sensible_rounds(options)
    require_checks(options)
    from eval.checks.exams import open_exam
    from eval.checks.loaded import load_pair
    from eval.checks.quality import Asking, check_answers

    seed = 17 if options.seed is None else options.seed
    exams = [open_exam(word, options.num_prompts, seed=seed) for word in options.check]
    pair = load_pair(options.target, options.draft, dtype=dtype_here(options.dtype))
    asking = Asking(options.max_new_tokens, options.lookahead, options.batch_size, opener_of(options))
    holds, found = tell(check_answers(pair, exam, asking) for exam in exams)
    sources: list[str] = []
    runs: list[Run] = []
    for exam, run in zip(exams, found, strict=True):
        runs.append(replace(run, places=[len(sources) + place for place in run.places]))
        sources += [question.prompt.source for question in exam.questions]
    write_rounds(options, pair, runs, sources)
    print(f"{options.draft} leaves the answers of {options.target} as they are: {'yes' if holds else 'NO'}")
    if not holds:
        raise SystemExit(1)


def require_checks(options: argparse.Namespace) -> None:
    """Raise UserError for a kind of question that is named twice, and for a seed that nothing would use."""
    kinds = [word.partition("=")[0] for word in options.check]
    if len(set(kinds)) < len(kinds):
        raise UserError(f"--check must name each kind once, got {' and '.join(options.check)}. Ask them one by one.")
    if options.seed is not None and "multiplication" not in kinds:
        raise UserError("--seed must be left out: it draws the numbers of multiplication, which is not asked.")


def tell(findings: Iterable["Finding"]) -> tuple[bool, list["Run"]]:
    """Print findings as they come; whether all hold, and what was decoded for them."""
    holds, runs = True, []
    for finding in findings:
        holds &= finding.holds
        runs.append(finding.run)
        print(f"{'holds' if finding.holds else 'FAILS':6} {finding.name}: {finding.detail}", flush=True)
    return holds, runs


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """--target A --draft B and more."""
    pair_arguments(parser)
    asked_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="number type (default: auto)")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="of an answer (default: 128)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    parser.add_argument(
        "--num-threads", type=int, default=None, metavar="N", help="of the processor (default: OMP_NUM_THREADS, or all)"
    )


def compare(options: argparse.Namespace) -> None:
    """Answer prompts from a file, or from the keyboard, with and without the draft."""
    require_positive(options, "lookahead", "max_new_tokens")
    require_one_way(options)
    require_sensible_rounds(options)
    if options.temperature < 0:
        raise UserError(f"--temperature must be 0 or more, got {options.temperature:g}.")
    from rich.console import Console

    from eval.checks.compare import Comparison, compare, compared_run, typed_prompts
    from eval.checks.loaded import load_pair, prompts_of
    from eval.decoding.sampling import Sampling
    from eval.decoding.texts import Limits, Seeds, Speculation
    from eval.latency.machine import torch_threads

    console = Console()
    from_file = prompts_of(options.prompts, count=None) if options.prompts else None
    pair = load_pair(options.target, options.draft, dtype=dtype_here(options.dtype))
    wanted = Comparison(
        Limits(options.max_new_tokens, pair.stop_ids),
        Speculation(options.lookahead),
        Sampling(options.temperature),
        Seeds.of(options.seed),
        opener_of(options),
    )
    with torch_threads(options.num_threads):
        answered = compare(pair, from_file or typed_prompts(console), wanted, console)
        run = compared_run(wanted, [text for _, text in answered])
        write_rounds(options, pair, [run], [source for source, _ in answered])


def write_rounds(
    options: argparse.Namespace, pair: "LoadedPair", runs: Sequence["Run"], prompts: Sequence[str]
) -> None:
    """Write the trace of some runs if a file is named, and say so."""
    path: Path | None = options.rounds
    if path is None:
        return
    from eval.rounds.round_trace import write_round_trace

    target, draft = pair.identities()
    device, how = str(pair.target.device), how_asked(options)
    write_round_trace(path, runs, prompts, target=target, draft=draft, device=device, how=how)
    print(f"{path}: {sum(len(text.rounds) for run in runs for text in run.decoded)} rounds")


def require_sensible_rounds(options: argparse.Namespace) -> None:
    """Raise UserError where a trace cannot be written, or nothing is fingerprinted, before anything is decoded."""
    if options.rounds is not None and options.rounds.is_dir():
        raise UserError(f"--rounds {options.rounds}: is a folder. Name a file in it.")
    if options.rehash and options.rounds is None and not getattr(options, "beside", False):  # verify alone has it
        raise UserError("--rehash is for the fingerprints that --rounds writes: give --rounds FILE, or leave it out.")


def require_plot_name(path: Path | None) -> None:
    """Raise UserError where a plot cannot be written, before anything is measured."""
    if path is not None and (path.suffix != ".png" or path.is_dir()):
        raise UserError(f"--plot {path}: must name a file that ends in .png.")


def opener_of(options: argparse.Namespace) -> "Opener":
    from eval.steps.openers import new_opener

    if options.compile:
        print("compiling the models' steps, half a minute or so for each shape ...", file=sys.stderr, flush=True)
    return new_opener(how_asked(options))


def how_asked(options: argparse.Namespace) -> How:
    """How the models are to be run."""
    if options.compile:
        return "compiled"
    return "captured" if options.capture else "eager"


def require_one_way(options: argparse.Namespace) -> None:
    """Raise UserError where steps are to be made in two ways."""
    if options.compile and options.capture:
        raise UserError(
            "--compile and --capture both make the steps beforehand, and each step is run in one way only. Leave out "
            "--compile for steps that are made in milliseconds, or --capture for faster ones that take minutes to make."
        )


def require_positive(options: argparse.Namespace, *names: str) -> None:
    """Raise UserError for a number that is not above 0."""
    for name in names:
        value = getattr(options, name)
        if value <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0, got {value:g}.")
