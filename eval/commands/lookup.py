"""`widedraft lookup`: its settings, and what it does. Imports torch only when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from architectures.files.section import Section
from architectures.pages.markdown import markdown
from architectures.settings.flags import Flag
from architectures.settings.holding import TIMED, without_placing
from architectures.settings.kinds import (
    AUTO,
    BatchSize,
    Lookaheads,
    MaxNewTokens,
    MinP,
    NumberType,
    NumPrompts,
    NumThreads,
    Rehash,
    RepetitionPenalty,
    Seed,
    Target,
    Temperatures,
    TopK,
    TopP,
)
from eval.config import sampling_asked
from eval.tasks import PromptWords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval.checks.loaded_pair import LoadedPair
    from eval.policies.policy_file import PolicyFile
    from eval.prompts import Prompt

BUILT_IN_FROM = 64  # `widedraft speed` takes the first of them
STEP_REPEATS = 30


def own_folder(path: Path) -> Path:
    """The path of a draft, where a file can be written beside it."""
    if not path.is_dir():
        raise ValueError(f"{path}: is no folder. Download the draft into one; the file goes there.")
    return path


class LookupSettings(Section):
    """What policies are tuned on, and how."""

    target: Target
    draft: Annotated[Path, Field(description="Folder of the draft."), AfterValidator(own_folder), Flag(metavar="B")]
    prompts: PromptWords = ()
    num_prompts: NumPrompts = 32
    max_new_tokens: MaxNewTokens = 128
    temperatures: Temperatures = (0.0, 1.0)
    top_p: TopP = 1.0
    top_k: TopK = None
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    lookaheads: Lookaheads = Field(
        default=(1, 2, 3, 4, 5, 6), description="Numbers of tokens either may propose per round, each once."
    )
    batch_size: BatchSize = 16
    dtype: NumberType = AUTO
    num_threads: NumThreads = None
    seed: Seed = 17
    rehash: Rehash = False
    left_out: ClassVar = without_placing(
        TIMED,
        bits="Policies are tuned on the target as it is; those of target.bits are tuned with a scorecard.",
    )


def lookup(settings: LookupSettings) -> None:
    """Tune, write the file into the draft's folder, and say what it is worth."""
    from eval.checks.loaded_pair import load_pair
    from eval.commands.lookup_page import policies_page
    from eval.latency.threads import chosen_threads
    from eval.policies.policy_file import write_policies

    prompts = prompts_to_tune_on(settings)
    pair = load_pair(settings.target, str(settings.draft), dtype=settings.dtype)
    rendered = [pair.rendered(prompt) for prompt in prompts]
    pair.require_context(rendered, settings.max_new_tokens)
    with chosen_threads(settings.num_threads, lambda: pair.target):
        tuned = tuned_file(settings, pair, rendered)
    path = write_policies(tuned, settings.draft)
    print(markdown(*policies_page(tuned)))
    print(f"\n{path}: for `widedraft speed --beside`, on prompts other than these")


def prompts_to_tune_on(settings: LookupSettings) -> "list[Prompt]":
    """Those that are named; of the built-in ones others than `widedraft speed` takes."""
    from eval.checks.loaded_pair import prompts_of

    if settings.prompts:
        return prompts_of(settings.prompts, settings.num_prompts)
    return prompts_of(None, None)[BUILT_IN_FROM:][: settings.num_prompts]


def tuned_file(settings: LookupSettings, pair: "LoadedPair", prompts: "Sequence[Sequence[int]]") -> "PolicyFile":
    """Answer, replay, time steps, and tune at every temperature."""
    import torch

    from architectures.checkpoints.fingerprint import fingerprint_checkpoint
    from architectures.checkpoints.manifest import processor_name
    from eval.commands.lookup_record import recorded_answers, steps_of
    from eval.decoding.sampling import Sampling
    from eval.policies.policy_file import SCHEMA, PolicyFile, TunedPolicy, prompt_fingerprint
    from eval.policies.tune import tune

    answers = {
        temperature: recorded_answers(
            pair,
            prompts,
            max_new_tokens=settings.max_new_tokens,
            sampling=Sampling.of(temperature, sampling_asked(settings)),
            batch=settings.batch_size,
            seed=settings.seed,
        )
        for temperature in settings.temperatures
    }
    steps = steps_of(pair, answers[settings.temperatures[0]], settings.lookaheads, STEP_REPEATS, seed=settings.seed)
    tuned = {temperature: tune(group, steps) for temperature, group in answers.items()}
    return PolicyFile(
        schema=SCHEMA,
        target=fingerprint_checkpoint(pair.folders[0]),
        draft=fingerprint_checkpoint(pair.folders[1]),
        policies=tuple(TunedPolicy(temperature=temperature, **vars(policy)) for temperature, policy in tuned.items()),
        prompts=tuple(map(prompt_fingerprint, prompts)),
        processor=processor_name(),
        threads=torch.get_num_threads(),
        dtype=str(pair.target.dtype).removeprefix("torch."),
        sampling=sampling_asked(settings),
    )
