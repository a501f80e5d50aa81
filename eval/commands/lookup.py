"""`widedraft lookup`: its arguments, and what it does. Imports torch only when it runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from architectures.errors import UserError
from architectures.files.number_types import dtype_here
from architectures.files.rehash import rehash_argument
from architectures.pages.markdown import markdown
from eval.commands.pair import DTYPES, require_positive
from eval.prompts.words import prompts_argument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval.checks.loaded import LoadedPair
    from eval.policies.policy_file import PolicyFile
    from eval.prompts.forms import Prompt

BUILT_IN_FROM = 64  # `widedraft speed` takes the first of them
STEP_REPEATS = 30


def lookup_arguments(parser: argparse.ArgumentParser) -> None:
    """--target A --draft B and more."""
    parser.add_argument("--target", required=True, metavar="A", help="folder or hub id of the model to draft for")
    parser.add_argument("--draft", required=True, type=Path, metavar="B", help="folder of the draft")
    prompts_argument(parser)
    parser.add_argument("--num-prompts", type=int, default=32, metavar="N", help="prompts used at most (default: 32)")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="of a text (default: 128)")
    parser.add_argument(
        "--temperature", type=float, nargs="+", default=[0.0, 1.0], metavar="T", help="of the texts (default: 0 1)"
    )
    parser.add_argument(
        "--lookahead", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6], metavar="N",
        help="tokens either may propose per round (default: 1 2 3 4 5 6)",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="prompts answered together (default: 16)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="number type (default: auto)")
    parser.add_argument(
        "--num-threads", type=int, default=None, metavar="N", help="of the processor (default: OMP_NUM_THREADS, or all)"
    )
    parser.add_argument("--seed", type=int, default=17, help="of every random number (default: 17)")
    rehash_argument(parser)


def lookup(options: argparse.Namespace) -> None:
    """Tune, write the file into the draft's folder, and say what it is worth."""
    require_sensible(options)
    from eval.checks.loaded import load_pair
    from eval.commands.lookup_page import policies_page
    from eval.latency.machine import torch_threads
    from eval.policies.policy_file import write_policies

    prompts = prompts_to_tune_on(options)
    pair = load_pair(options.target, str(options.draft), dtype=dtype_here(options.dtype))
    rendered = [pair.rendered(prompt) for prompt in prompts]
    pair.require_context(rendered, options.max_new_tokens)
    with torch_threads(options.num_threads):
        found = tuned_file(options, pair, rendered)
    path = write_policies(found, options.draft)
    print(markdown(*policies_page(found)))
    print(f"\n{path}: for `widedraft speed --beside`, on prompts other than these")


def prompts_to_tune_on(options: argparse.Namespace) -> "list[Prompt]":
    """Those that are named; of the built-in ones others than `widedraft speed` takes."""
    from eval.checks.loaded import prompts_of

    if options.prompts is not None:
        return prompts_of(options.prompts, options.num_prompts)
    return prompts_of(None, None)[BUILT_IN_FROM:][: options.num_prompts]


def tuned_file(options: argparse.Namespace, pair: "LoadedPair", prompts: "Sequence[Sequence[int]]") -> "PolicyFile":
    """Answer, replay, time steps, and tune at every temperature."""
    import torch

    from architectures.checkpoints.fingerprint import fingerprint_checkpoint
    from architectures.checkpoints.manifest import processor_name
    from eval.commands.lookup_record import recorded_answers, steps_of
    from eval.policies.policy_file import SCHEMA, PolicyFile, TunedPolicy, prompt_fingerprint
    from eval.policies.tune import tune

    answers = {
        temperature: recorded_answers(
            pair,
            prompts,
            max_new_tokens=options.max_new_tokens,
            temperature=temperature,
            batch=options.batch,
            seed=options.seed,
        )
        for temperature in options.temperature
    }
    steps = steps_of(pair, answers[options.temperature[0]], options.lookahead, STEP_REPEATS, seed=options.seed)
    tuned = {temperature: tune(group, steps) for temperature, group in answers.items()}
    return PolicyFile(
        schema=SCHEMA,
        target=fingerprint_checkpoint(pair.folders[0]),
        draft=fingerprint_checkpoint(pair.folders[1]),
        policies=tuple(TunedPolicy(temperature=temperature, **vars(one)) for temperature, one in tuned.items()),
        prompts=tuple(map(prompt_fingerprint, prompts)),
        processor=processor_name(),
        threads=torch.get_num_threads(),
        dtype=str(pair.target.dtype).removeprefix("torch."),
    )


def require_sensible(options: argparse.Namespace) -> None:
    """Raise UserError for numbers nothing can be tuned with, and for a draft that no file can be written beside."""
    require_positive(options, "num_prompts", "max_new_tokens", "batch")
    for name in ("lookahead", "temperature"):
        values = getattr(options, name)
        least = 1 if name == "lookahead" else 0
        if min(values) < least or len(set(values)) < len(values):
            raise UserError(f"--{name} {' '.join(f'{value:g}' for value in values)}: from {least} on, each once.")
    if not options.draft.is_dir():
        raise UserError(f"--draft {options.draft}: is no folder. Download the draft into one; the file goes there.")
    if options.num_threads is not None and options.num_threads < 1:
        raise UserError(f"--num-threads must be above 0, got {options.num_threads}.")
