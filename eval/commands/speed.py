"""`widedraft speed`: its arguments, and what it does. Imports torch only when it runs."""

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.files.number_types import dtype_here
from architectures.files.rehash import rehash_argument
from architectures.pages.markdown import markdown
from eval.commands.pair import (
    DTYPES,
    how_asked,
    opener_of,
    require_one_way,
    require_plot_name,
    require_positive,
    steps_arguments,
)
from eval.models.execution import flags_of
from eval.profiling.option import PROFILED_ROUNDS, profile_option, require_profile_folder
from eval.prompts.words import prompts_argument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eval.acceptance.estimates import Resampling
    from eval.checks.loaded import LoadedPair
    from eval.latency.measure import Latency
    from eval.policies.policy_file import TunedPolicy
    from eval.records.speed import SpeedFile, SpeedSettings
    from eval.speed.measure import Prompts, Times
    from eval.speed.ways import Setup

NUM_RESAMPLES = 2000
STEP_REPEATS = 100  # of every step at least, shared out between the turns
GROUPS, LEAST_PROMPTS = 12, 16  # by default; so many show a true 1.2x nearly always (docs/scoring.md)


def speed_arguments(parser: argparse.ArgumentParser) -> None:
    """--target A --draft B and more."""
    parser.add_argument("--target", required=True, metavar="A", help="folder or hub id of the model to draft for")
    parser.add_argument(
        "--draft", required=True, nargs="+", metavar="B", help="folder or hub id of the draft, or of several"
    )
    prompts_argument(parser)
    parser.add_argument(
        "--num-prompts",
        type=int,
        default=None,
        metavar="N",
        help=f"prompts used at most (default: {GROUPS} groups of --batch, and {LEAST_PROMPTS} at least)",
    )
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="of a text (default: 128)")
    parser.add_argument(
        "--lookahead",
        type=int,
        nargs="+",
        default=[1, 2, 3, 4, 5, 6],
        metavar="N",
        help="tokens proposed per round, one or several (default: 1 2 3 4 5 6)",
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="prompts decoded together (default: 1)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of the texts (default: 0)")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="of everything (default: 1)")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="measure each draft with looking up beside it too, by the policies that `widedraft lookup` wrote there",
    )
    parser.add_argument("--assisted", action="store_true", help="measure transformers' assisted generation too")
    steps_arguments(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="number type (default: auto)")
    parser.add_argument(
        "--num-threads", type=int, default=None, metavar="N", help="of the processor (default: OMP_NUM_THREADS, or all)"
    )
    parser.add_argument("--confidence", type=float, default=0.95, metavar="P", help="of intervals (default: 0.95)")
    parser.add_argument("--seed", type=int, default=17, help="of every random number (default: 17)")
    rehash_argument(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw speed against the lookahead")
    profile_option(parser, "a decoding round after everything is measured")


def speed(options: argparse.Namespace) -> None:
    """Measure, print and perhaps write."""
    require_sensible(options)
    from architectures.files.atomic import write_bytes
    from eval.acceptance.estimates import Resampling
    from eval.checks.loaded import load_pairs, prompts_of
    from eval.latency.machine import torch_threads
    from eval.records.files import write_record
    from eval.speed.page import speed_page
    from eval.speed.plot import speed_plot

    asked = prompts_of(options.prompts, options.num_prompts or default_prompts(options.batch))
    warn_of_few_groups(options, len(asked))
    loaded = load_pairs(options.target, options.draft, dtype=dtype_here(options.dtype))
    pairs = dict(zip(draft_names(options.draft), loaded, strict=True))
    prompts = [loaded[0].rendered(prompt) for prompt in asked]
    for pair in loaded:
        pair.require_context(prompts, options.max_new_tokens)
    setup = setup_of(options, pairs, policies_of(options, pairs, prompts))
    with torch_threads(options.num_threads):
        record = measured(options, setup, pairs, prompts, Resampling(options.confidence, NUM_RESAMPLES, options.seed))
        print(markdown(speed_page(record), level=2))
        if options.profile is not None:
            profile_a_round(options, setup, prompts)
    if options.plot is not None:
        write_bytes(speed_plot(record), options.plot)
    if options.out is not None:
        write_record(record, options.out)
        print(f"\n{options.out}: the figures")


def default_prompts(batch: int) -> int:
    """How many are taken where --num-prompts is not given."""
    return max(GROUPS * batch, LEAST_PROMPTS)


def warn_of_few_groups(options: argparse.Namespace, num_prompts: int) -> None:
    """Say before minutes are spent that they will decide nothing."""
    from eval.acceptance.intervals import least_units

    groups, least = -(-num_prompts // options.batch), least_units(options.confidence)
    if groups < least:
        print(
            f"Nothing will be decided: {num_prompts} prompts at --batch {options.batch} are {groups} "
            f"group{'s' if groups > 1 else ''}, and {least} are the least that give an interval. Take at least "
            f"{least * options.batch} prompts: --num-prompts, and --prompts where there are not so many.",
            file=sys.stderr,
        )


def draft_names(drafts: "Sequence[str]") -> list[str]:
    """What each draft is called; nothing but a draft is called so."""
    return [f"draft {draft}" for draft in drafts] if len(drafts) > 1 else ["draft"]


def measured(
    options: argparse.Namespace,
    setup: "Setup",
    pairs: "Mapping[str, LoadedPair]",
    prompts: "Prompts",
    resampling: "Resampling",
) -> "SpeedFile":
    """The record of all ways."""
    import torch

    from eval.checks.loaded import identity_of
    from eval.latency.machine import machine_state
    from eval.records.origin import Machine, Provenance
    from eval.records.speed import SpeedFile
    from eval.speed.measure import groups_of
    from eval.speed.record import speed_figures

    any_pair = next(iter(pairs.values()))
    device = any_pair.target.device
    before = machine_state(device)
    times, latency = decode_and_time(options, setup, groups_of(prompts, options.batch), resampling)
    return SpeedFile(
        target=identity_of(any_pair.folders[0], any_pair.target),
        drafts={name: pair.draft_identity() for name, pair in pairs.items()},
        settings=settings_of(options, len(prompts)),
        machine=Machine(before=before, after=machine_state(device), threads=torch.get_num_threads()),
        **vars(speed_figures(times, latency, resampling)),
        provenance=Provenance.of_this_process(),
    )


def policies_of(
    options: argparse.Namespace, pairs: "Mapping[str, LoadedPair]", prompts: "Prompts"
) -> "dict[str, TunedPolicy]":
    """The lookup policy of every draft, if that is asked for; none was tuned on one of the prompts."""
    if not options.beside:
        return {}
    from eval.policies.policy_file import FILE_NAME, read_policies, refuse_tuned_on

    found = {}
    for name, pair in pairs.items():
        policies = read_policies(*pair.folders)
        refuse_tuned_on(policies, prompts, pair.folders[1] / FILE_NAME)
        found[name] = policies.at(options.temperature, pair.folders[1])
    return found


def setup_of(
    options: argparse.Namespace, pairs: "Mapping[str, LoadedPair]", policies: "dict[str, TunedPolicy]"
) -> "Setup":
    from eval.decoding.sampling import Sampling
    from eval.decoding.texts import Limits, Seeds
    from eval.speed.ways import Setup

    any_pair = next(iter(pairs.values()))
    return Setup(
        any_pair.target,
        {name: pair.draft for name, pair in pairs.items()},
        Limits(options.max_new_tokens, any_pair.stop_ids),
        Sampling(options.temperature),
        Seeds.of(options.seed),
        opener_of(options),
        policies,
    )


def decode_and_time(
    options: argparse.Namespace, setup: "Setup", groups: "Sequence[Prompts]", resampling: "Resampling"
) -> "tuple[Times, Latency]":
    """What every way took; and steps timed between the turns, in the middle of the texts and at this batch."""
    import numpy as np

    from architectures.files.progress import track
    from eval.latency.grid import repeated
    from eval.latency.measure import measure_latency
    from eval.latency.steps import Setting
    from eval.speed.measure import take_turns, warm_up
    from eval.speed.ways import ways_to_decode

    ways = ways_to_decode(setup, options.lookahead, assisted=options.assisted)
    is_eager = how_asked(options) == "eager"
    warm_up(ways, groups[:1] if is_eager else groups)  # steps of each capacity are made before clocks run
    turns = list(product(range(options.repeats), range(len(groups))))
    ticks = track(turns, description="decoding by every way", total=len(turns))
    context = repeated(groups[0][0], len(groups[0][0]) + options.max_new_tokens // 2)
    times: Times = {}
    pauses = take_turns(ways, groups, ticks, np.random.default_rng(options.seed), found=times)
    latency = measure_latency(
        setup.target,
        setup.drafts,
        Setting(context, len(groups[0]), setup.opener),
        lookaheads=lookaheads_timed(options.lookahead, setup),
        repetitions=(pause for pause in pauses for _ in range(-(-STEP_REPEATS // len(turns)))),
        resampling=resampling,
    )
    return times, latency


def lookaheads_timed(asked: "Sequence[int]", setup: "Setup") -> list[int]:
    """Those whose verification decoding takes: a policy looks up any number of tokens up to its own."""
    found = set(asked)
    for tuned in setup.policies.values():
        found |= {tuned.lookahead, *range(1, tuned.policy.lookahead + 1)}
    return sorted(found)


def profile_a_round(options: argparse.Namespace, setup: "Setup", prompts: "Prompts") -> None:
    """Record a round of the first group by the first draft at the first lookahead, and say what came of it."""
    from eval.speed.measure import groups_of, row_seeds_of
    from eval.speed.profiled_round import profile_round

    groups, (name, draft) = groups_of(prompts, options.batch), next(iter(setup.drafts.items()))
    lookahead, row_seeds = options.lookahead[0], row_seeds_of(groups, 0, 0)
    found = profile_round(setup, draft, lookahead, groups[0], row_seeds=row_seeds, folder=options.profile)
    print(f"\n{options.profile}: a round of {name} at lookahead {lookahead}: {found.describe()}")
    print("\n".join(f"  {path.name}" for path in found.files))


def settings_of(options: argparse.Namespace, num_prompts: int) -> "SpeedSettings":
    from eval.records.speed import SpeedSettings

    return SpeedSettings(
        prompts=num_prompts,
        max_new_tokens=options.max_new_tokens,
        batch=options.batch,
        temperature=options.temperature,
        repeats=options.repeats,
        beside=options.beside,
        **flags_of(how_asked(options)),
        confidence=options.confidence,
        seed=options.seed,
    )


def require_sensible(options: argparse.Namespace) -> None:
    """Raise UserError for numbers nothing can be measured with."""
    counts = ("max_new_tokens", "batch", "repeats")
    require_one_way(options)
    require_positive(options, *counts, *(["num_prompts"] if options.num_prompts is not None else []))
    for lookahead in options.lookahead:
        if lookahead < 1 or options.lookahead.count(lookahead) > 1:
            named = " ".join(map(str, options.lookahead))
            raise UserError(f"--lookahead {named}: numbers above 0, each once.")
    if twice := [draft for draft in options.draft if options.draft.count(draft) > 1]:
        raise UserError(f"--draft {twice[0]}: is named twice. Name each draft once.")
    if options.temperature < 0:
        raise UserError(f"--temperature must be 0 or more, got {options.temperature:g}.")
    if not 0 < options.confidence < 1:
        raise UserError(f"--confidence must be between 0 and 1, got {options.confidence:g}.")
    if options.num_threads is not None and options.num_threads < 1:
        raise UserError(f"--num-threads must be above 0, got {options.num_threads}.")
    if options.assisted and options.batch > 1:
        raise UserError("--assisted: transformers' assisted generation decodes one prompt at a time. Use --batch 1.")
    if options.out is not None and options.out.is_dir():
        raise UserError(f"--out {options.out}: is a folder. Name a file in it.")
    require_plot_name(options.plot)
    if options.profile is not None:
        require_tokens_for_a_round(options)
        require_profile_folder(options.profile)


def require_tokens_for_a_round(options: argparse.Namespace) -> None:
    """Raise UserError where texts end before the round that --profile records."""
    needed = PROFILED_ROUNDS * (options.lookahead[0] + 1)
    if options.max_new_tokens < needed:
        raise UserError(
            f"--profile records round {PROFILED_ROUNDS} at lookahead {options.lookahead[0]}, and --max-new-tokens "
            f"{options.max_new_tokens} may end before it. Ask for {needed} tokens at least."
        )
