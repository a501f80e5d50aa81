"""`widedraft speed`: its settings, and what it does. Imports torch only when it runs."""

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, model_validator

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.pages.markdown import markdown
from architectures.settings.flags import Flag
from architectures.settings.holding import TIMED, without_placing
from architectures.settings.kinds import (
    AUTO,
    Adaptive,
    BatchSize,
    Capture,
    Compile,
    Confidence,
    Drafts,
    LeastChance,
    LeastConfidence,
    Lookaheads,
    MaxNewTokens,
    MinP,
    NumberType,
    NumPrompts,
    NumThreads,
    OutFile,
    Plot,
    ProposeDoubted,
    Rehash,
    Repeats,
    RepetitionPenalty,
    Seed,
    Target,
    Temperature,
    TopK,
    TopP,
)
from eval.commands.steps import how_asked, one_end, one_way, opener_of, speculation_of
from eval.config import sampling_asked
from eval.models.execution import flags_of
from eval.profiling.option import PROFILED_ROUNDS, Profile, require_profile_folder
from eval.tasks import PromptWords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eval.acceptance.estimates import Resampling
    from eval.checks.loaded_pair import LoadedPair
    from eval.latency.measure import Latency
    from eval.policies.policy_file import TunedPolicy
    from eval.records.speed import MeasuredWith, SpeedFile
    from eval.speed.measure import Prompts, Times
    from eval.speed.ways import Setup

NUM_RESAMPLES = 2000
STEP_REPEATS = 100  # of every step at least, shared out between the turns
GROUPS, LEAST_PROMPTS = 12, 16  # by default; so many show a true 1.2x nearly always (docs/scoring.md)


class SpeedSettings(Section):
    """Which ways to decode are measured, and on what."""

    target: Target
    drafts: Drafts
    prompts: PromptWords = ()
    num_prompts: Annotated[
        NumPrompts | None, Flag(absent=f"{GROUPS} groups of --batch-size, and {LEAST_PROMPTS} at least")
    ] = None
    max_new_tokens: MaxNewTokens = 128
    lookaheads: Lookaheads = (1, 2, 3, 4, 5, 6)
    batch_size: BatchSize = 1
    adaptive: Adaptive = False
    least_confidence: LeastConfidence = 0.0
    least_chance: LeastChance = 0.0
    propose_doubted: ProposeDoubted = False
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: TopK = None
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    repeats: Repeats = Field(default=1, description="Repetitions of everything.")
    beside: Annotated[
        bool,
        Field(
            description="Measure each draft with looking up beside it too, by the policies that `widedraft lookup` "
            "wrote there."
        ),
    ] = False
    assisted: Annotated[bool, Field(description="Measure transformers' assisted generation too.")] = False
    compile: Compile = False
    capture: Capture = False
    dtype: NumberType = AUTO
    num_threads: NumThreads = None
    confidence: Confidence = 0.95
    seed: Seed = 17
    rehash: Rehash = False
    out: OutFile = None
    plot: Plot = Field(default=None, description="Draw speed against the lookahead.")
    profile: Profile = None
    left_out: ClassVar = without_placing(
        TIMED,
        bits="A packed target is timed by `widedraft latency --target-bits`, and its scorecard has speeds.",
    )

    _one_way = model_validator(mode="after")(one_way)
    _one_end = model_validator(mode="after")(one_end)

    @model_validator(mode="after")
    def _assisted_alone(self) -> "SpeedSettings":
        if self.assisted and self.batch_size > 1:
            raise UserError(
                "--assisted: transformers' assisted generation decodes one prompt at a time. Use --batch-size 1."
            )
        if self.assisted and (self.least_chance or (self.least_confidence and not self.propose_doubted)):
            raise UserError(
                "--assisted: transformers ends rounds behind the token of doubt and knows no chance. Give "
                "--least-confidence with --propose-doubted alone, or leave out --assisted."
            )
        return self

    @model_validator(mode="after")
    def _round_to_profile(self) -> "SpeedSettings":
        """Texts may end before the round that --profile records."""
        needed = PROFILED_ROUNDS * (self.lookaheads[0] + 1)
        if self.profile is not None and self.max_new_tokens < needed:
            raise UserError(
                f"--profile records round {PROFILED_ROUNDS} at lookahead {self.lookaheads[0]}, and --max-new-tokens "
                f"{self.max_new_tokens} may end before it. Ask for {needed} tokens at least."
            )
        return self


def speed(settings: SpeedSettings) -> None:
    """Measure, print and perhaps write."""
    if settings.profile is not None:
        require_profile_folder(settings.profile)
    from architectures.files.atomic import write_bytes
    from eval.acceptance.estimates import Resampling
    from eval.checks.loaded_pair import load_pairs, prompts_of
    from eval.latency.threads import chosen_threads
    from eval.scorecard_schema import write_record
    from eval.speed.page import speed_page
    from eval.speed.plot import speed_plot

    asked = prompts_of(settings.prompts, settings.num_prompts or default_prompts(settings.batch_size))
    warn_of_few_groups(settings, len(asked))
    loaded = load_pairs(settings.target, settings.drafts, dtype=settings.dtype)
    pairs = dict(zip(draft_names(settings.drafts), loaded, strict=True))
    prompts = [loaded[0].rendered(prompt) for prompt in asked]
    for pair in loaded:
        pair.require_context(prompts, settings.max_new_tokens)
    setup = setup_of(settings, pairs, policies_of(settings, pairs, prompts))
    resampling = Resampling(settings.confidence, NUM_RESAMPLES, settings.seed)
    with chosen_threads(
        settings.num_threads, lambda: setup.target, batch=min(settings.batch_size, len(prompts))
    ) as threads:
        record = measured(settings, setup, pairs, prompts, resampling)
        record = replace(record, evidence=threads.noted(record.evidence))
        print(markdown(speed_page(record), level=2))
        if settings.profile is not None:
            profile_a_round(settings, setup, prompts, settings.profile)
    if settings.plot is not None:
        write_bytes(speed_plot(record), settings.plot)
    if settings.out is not None:
        write_record(record, settings.out)
        print(f"\n{settings.out}: the figures")


def default_prompts(batch: int) -> int:
    """How many are taken where --num-prompts is not given."""
    return max(GROUPS * batch, LEAST_PROMPTS)


def warn_of_few_groups(settings: SpeedSettings, num_prompts: int) -> None:
    """Say before minutes are spent that they will decide nothing."""
    from eval.acceptance.intervals import least_units

    groups, least = -(-num_prompts // settings.batch_size), least_units(settings.confidence)
    if groups < least:
        print(
            f"Nothing will be decided: {num_prompts} prompts at --batch-size {settings.batch_size} are {groups} "
            f"group{'s' if groups > 1 else ''}, and {least} are the least that give an interval. Take at least "
            f"{least * settings.batch_size} prompts: --num-prompts, and --prompts where there are not so many.",
            file=sys.stderr,
        )


def draft_names(drafts: "Sequence[str]") -> list[str]:
    """What each draft is called; nothing but a draft is called so."""
    return [f"draft {draft}" for draft in drafts] if len(drafts) > 1 else ["draft"]


def measured(
    settings: SpeedSettings,
    setup: "Setup",
    pairs: "Mapping[str, LoadedPair]",
    prompts: "Prompts",
    resampling: "Resampling",
) -> "SpeedFile":
    """The record of all ways."""
    import torch

    from eval.checks.loaded_pair import identity_of
    from eval.latency.machine import machine_state
    from eval.records.grid import Machine
    from eval.records.speed import SpeedFile
    from eval.scorecard_schema import Provenance
    from eval.speed.measure import groups_of
    from eval.speed.record import speed_figures

    any_pair = next(iter(pairs.values()))
    device = any_pair.target.device
    before = machine_state(device)
    times, latency = decode_and_time(settings, setup, groups_of(prompts, settings.batch_size), resampling)
    return SpeedFile(
        target=identity_of(any_pair.folders[0], any_pair.target),
        drafts={name: pair.draft_identity() for name, pair in pairs.items()},
        settings=measured_with(settings, len(prompts)),
        machine=Machine(before=before, after=machine_state(device), threads=torch.get_num_threads()),
        **vars(speed_figures(times, latency, resampling, setup.speculation)),
        provenance=Provenance.of_this_process(),
        evidence=latency.evidence,
    )


def policies_of(
    settings: SpeedSettings, pairs: "Mapping[str, LoadedPair]", prompts: "Prompts"
) -> "dict[str, TunedPolicy]":
    """The lookup policy of every draft, if that is asked for; none was tuned on one of the prompts."""
    if not settings.beside:
        return {}
    from eval.policies.policy_file import FILE_NAME, read_policies, refuse_tuned_on

    tuned = {}
    for name, pair in pairs.items():
        policies = read_policies(*pair.folders)
        refuse_tuned_on(policies, prompts, pair.folders[1] / FILE_NAME)
        tuned[name] = policies.at(settings.temperature, sampling_asked(settings), pair.folders[1])
    return tuned


def setup_of(settings: SpeedSettings, pairs: "Mapping[str, LoadedPair]", policies: "dict[str, TunedPolicy]") -> "Setup":
    from eval.decoding.sampling import Sampling
    from eval.decoding.texts import Limits, Seeds
    from eval.speed.ways import Setup

    any_pair = next(iter(pairs.values()))
    return Setup(
        any_pair.target,
        {name: pair.draft for name, pair in pairs.items()},
        Limits(settings.max_new_tokens, any_pair.stop_ids),
        Sampling.of(settings.temperature, sampling_asked(settings)),
        Seeds.of(settings.seed),
        opener_of(settings),
        policies,
        speculation_of(settings, settings.lookaheads[0]),
    )


def decode_and_time(
    settings: SpeedSettings, setup: "Setup", groups: "Sequence[Prompts]", resampling: "Resampling"
) -> "tuple[Times, Latency]":
    """What every way took; and steps timed between the turns, in the middle of the texts and at this batch."""
    import numpy as np

    from architectures.progress.track import track
    from eval.latency.grid import repeated
    from eval.latency.measure import measure_latency
    from eval.latency.steps import Setting
    from eval.speed.measure import take_turns, warm_up
    from eval.speed.ways import ways_to_decode

    ways = ways_to_decode(setup, settings.lookaheads, assisted=settings.assisted)
    is_eager = how_asked(settings) == "eager"
    warm_up(ways, groups[:1] if is_eager else groups)  # steps of each capacity are made before clocks run
    turns = list(product(range(settings.repeats), range(len(groups))))
    ticks = track(turns, description="decoding by every way", total=len(turns))
    context = repeated(groups[0][0], len(groups[0][0]) + settings.max_new_tokens // 2)
    times: Times = {}
    pauses = take_turns(ways, groups, ticks, np.random.default_rng(settings.seed), times=times)
    latency = measure_latency(
        setup.target,
        setup.drafts,
        Setting(context, len(groups[0]), setup.opener),
        lookaheads=lookaheads_timed(settings.lookaheads, setup),
        repetitions=(pause for pause in pauses for _ in range(-(-STEP_REPEATS // len(turns)))),
        resampling=resampling,
    )
    return times, latency


def lookaheads_timed(asked: "Sequence[int]", setup: "Setup") -> list[int]:
    """Those whose verification decoding takes: a policy looks up any number of tokens up to its own, as doubt does."""
    lookaheads = set(asked)
    if setup.speculation.adaptive:
        lookaheads |= set(range(1, setup.speculation.most + 1))
    elif setup.speculation.stopping.is_on:
        lookaheads |= set(range(1, max(asked) + 1))
    for tuned in setup.policies.values():
        lookaheads |= {tuned.lookahead, *range(1, tuned.policy.lookahead + 1)}
    return sorted(lookaheads)


def profile_a_round(settings: SpeedSettings, setup: "Setup", prompts: "Prompts", folder: Path) -> None:
    """Record a round of the first group by the first draft at the first lookahead, and say what came of it."""
    from eval.speed.measure import groups_of, row_seeds_of
    from eval.speed.profiled_round import profile_round

    groups, (name, draft) = groups_of(prompts, settings.batch_size), next(iter(setup.drafts.items()))
    lookahead, row_seeds = settings.lookaheads[0], row_seeds_of(groups, 0, 0)
    profile = profile_round(setup, draft, lookahead, groups[0], row_seeds=row_seeds, folder=folder)
    print(f"\n{folder}: a round of {name} at lookahead {lookahead}: {profile.describe()}")
    print("\n".join(f"  {path.name}" for path in profile.files))


def measured_with(settings: SpeedSettings, num_prompts: int) -> "MeasuredWith":
    """The settings as the file names them."""
    from eval.records.speed import MeasuredWith

    return MeasuredWith(
        prompts=num_prompts,
        max_new_tokens=settings.max_new_tokens,
        batch=settings.batch_size,
        temperature=settings.temperature,
        repeats=settings.repeats,
        beside=settings.beside,
        **flags_of(how_asked(settings)),
        confidence=settings.confidence,
        seed=settings.seed,
        sampling=sampling_asked(settings),
        adaptive=settings.adaptive,
        least_confidence=settings.least_confidence,
        least_chance=settings.least_chance,
        propose_doubted=settings.propose_doubted,
    )
