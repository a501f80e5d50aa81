"""Speculative decoding with a draft trained there and then: beside the target alone and transformers' own loop.

The machinery is that of `widedraft speed`: every group of held-out prompts is decoded by every way in turn, in an order
drawn anew, and the groups are the units of the intervals. A cell of the table takes turns until its seconds are over.
Speeds count the reading of the prompts, which transformers does not tell apart.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from architectures.errors import UserError
from benchmarks.gpu.attempt import attempt_rows
from benchmarks.gpu.stage import Row, Setting, Size, SkippedError, lack_of_time, number_type
from benchmarks.gpu.steps import listed
from benchmarks.gpu.trained_draft import QUICKSTART, Trained, Training, trained_draft
from eval.acceptance.estimates import Resampling
from eval.checks.loaded_pair import LoadedPair, load_pair
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Limits, Seeds
from eval.latency.grid import repeated
from eval.latency.measure import Latency, measure_latency
from eval.latency.steps import Setting as StepSetting
from eval.models.execution import How
from eval.records.speed import SpeedWay, StepsMs
from eval.speed.measure import Prompts, Times, groups_of, take_turns, warm_up
from eval.speed.record import speed_figures
from eval.speed.ways import DRAFT, PLAIN, TRANSFORMERS, Run, Setup, Way, ways_to_decode
from eval.steps.openers import new_opener

NAME = "draft"  # what the draft is called among the ways
RESAMPLING = Resampling(confidence=0.95, num_resamples=2000, seed=17)
AROUND = 1.5  # times the seconds of its turns a cell takes, with the warm-up and the steps that are timed between them


@dataclass(frozen=True)
class Cell:
    """One table: all its ways take the same turns.

    Attributes:
        steps: How our loop runs the models.
        batch: Prompts decoded together.
        temperature: Of the texts.
        lookaheads: Of our loop.
        assisted: Of transformers' assisted generation, each among the lookaheads; one prompt at a time.
        seconds: After which no further turn begins.
    """

    steps: How
    batch: int
    temperature: float
    lookaheads: Sequence[int]
    assisted: Sequence[int]
    seconds: float

    @property
    def name(self) -> Row:
        """What its rows begin with."""
        return {"steps": self.steps, "batch": self.batch, "temperature": self.temperature}


@dataclass(frozen=True)
class Sizes:
    """What a size trains and measures.

    Attributes:
        training: Of the draft.
        cells: In order of worth.
        max_new_tokens: Of a text.
        most_groups: That take a turn in a cell, where its seconds allow.
        step_repeats: Of every step at least, shared out between those turns.
    """

    training: Training
    cells: Sequence[Cell]
    max_new_tokens: int
    most_groups: int
    step_repeats: int


# On a GPU the quickstart's draft: one layer that says 4,096 ids, and a cache of the teacher, so that many times as many
# steps fit into the time. transformers does not load it, so that it has no rows there. On a processor four layers:
# where launches are what a step takes, one of L of 30 layers takes about (L + 1) / 31 of the target's, so
# 2 to 4 layers are all cheap. At equal training four agree with the target on 0.30 of tokens, two and three on 0.20
# (docs/depths): at lookahead 1 that makes 1.30 / 1.16 against 1.20 / 1.10 times as fast.
SIZES: dict[Size, Sizes] = {
    "full": Sizes(
        Training(
            layers=1,
            calibration_tokens=1024,
            num_prompts=570,
            num_eval_prompts=160,
            self_written=(1500, 600, 0),  # what fills batches of 1,024 with the 410 others
            max_new_tokens=160,
            max_seq_len=512,
            answered_together=1024,
            trained_together=4,
            generate_s=40,
            train_s=80,
            timed_batches=16,
            recipe=QUICKSTART,
        ),
        (
            Cell("captured", 1, 0.0, (1, 2, 4), (), 8),
            Cell("captured", 1, 1.0, (1, 2, 4), (), 8),
            Cell("captured", 8, 0.0, (1, 2), (), 5),
            Cell("captured", 8, 1.0, (1, 2), (), 5),
        ),
        max_new_tokens=64,
        most_groups=12,
        step_repeats=36,
    ),
    "laptop": Sizes(
        Training(
            layers=4,
            calibration_tokens=1024,
            num_prompts=64,
            num_eval_prompts=16,
            self_written=(),
            max_new_tokens=48,
            max_seq_len=256,
            answered_together=16,
            trained_together=4,
            generate_s=40,
            train_s=60,
            timed_batches=6,
        ),
        (Cell("eager", 1, 0.0, (1, 2), (1,), 30), Cell("eager", 8, 0.0, (1,), (), 15)),
        max_new_tokens=16,
        most_groups=6,
        step_repeats=6,
    ),
    "tiny": Sizes(
        Training(
            layers=2,
            calibration_tokens=128,
            num_prompts=12,
            num_eval_prompts=6,
            self_written=(),
            max_new_tokens=8,
            max_seq_len=256,
            answered_together=8,
            trained_together=2,
            generate_s=5,
            train_s=1,
            timed_batches=4,
        ),
        (Cell("eager", 1, 0.0, (1, 2), (2,), 2), Cell("eager", 2, 1.0, (1,), (), 2)),
        max_new_tokens=6,
        most_groups=6,
        step_repeats=6,
    ),
}


def rows(setting: Setting) -> Iterator[Row]:
    """The training; then every cell.

    Raises:
        SkippedError: If the target is not there or broken, or time is too short to train.
    """
    sizes = SIZES[setting.size]
    if not (setting.target / "config.json").is_file():
        raise SkippedError(f"{setting.target}: no target there")
    trained = trained_draft(setting, within(sizes.training, setting))
    yield trained.row
    pair = loaded(setting, trained)
    prompts = trained.held_out()
    for cell in sizes.cells:
        yield from attempt_rows(cell.name, lambda cell=cell: rows_of(cell, pair, prompts, setting, sizes))


def within(training: Training, setting: Setting) -> Training:
    """The training, shortened to two thirds of what is left.

    Raises:
        SkippedError: If that is less than a tenth of it.
    """
    share = min(1.0, 2 / 3 * setting.left_s / training.seconds)
    if share < 0.1:
        raise SkippedError(f"training takes {training.seconds:.0f} s, and {max(0.0, setting.left_s):.0f} s are left")
    return replace(training, generate_s=share * training.generate_s, train_s=share * training.train_s)


def loaded(setting: Setting, trained: Trained) -> LoadedPair:
    """Target and draft on the device."""
    dtype = str(number_type(setting.device)).removeprefix("torch.")
    try:
        return load_pair(str(setting.target), str(trained.draft), dtype=dtype)
    except UserError as error:
        raise SkippedError(str(error)) from error


def rows_of(cell: Cell, pair: LoadedPair, prompts: Prompts, setting: Setting, sizes: Sizes) -> Iterator[Row]:
    """A row of each way of a cell, or one that says why it was left out."""
    groups = [group for group in groups_of(prompts, cell.batch) if len(group) == cell.batch][: sizes.most_groups]
    problem = lack_of_time(setting, AROUND * cell.seconds, "this cell")
    if problem is None and not groups:
        problem = f"{len(prompts)} held-out prompts make no group of {cell.batch}"
    if problem is not None:
        yield cell.name | {"skipped": problem}
        return
    times, latency = decode_and_time(cell, setup_of(cell, pair, sizes), groups, sizes.step_repeats)
    record = speed_figures(times, latency, RESAMPLING)
    for way in record.ways:
        yield (
            cell.name
            | figures(way)
            | step_figures(way, record.steps_ms)
            | {
                "groups": record.groups,
                "new_tokens": sizes.max_new_tokens,
                "dtype": str(pair.target.dtype).removeprefix("torch."),
            }
        )


def figures(way: SpeedWay) -> Row:
    """What a record of `widedraft speed` says of one way, flat."""
    return {
        "way": way.way,
        "lookahead": way.lookahead,
        "tokens_per_s": way.whole.tokens_per_s,
        "speedup": way.whole.speedup.value,
        "interval": listed(way.whole.speedup),
        "tau": way.tau,
        "decode_tokens_per_s": way.decode and way.decode.tokens_per_s,
        "decode_speedup": way.decode and way.decode.speedup.value,
        "decode_interval": way.decode and listed(way.decode.speedup),
        "predicted": way.predicted and way.predicted.value,
    }


def step_figures(way: SpeedWay, steps_ms: StepsMs) -> Row:
    """Milliseconds of a step of who writes or proposes, and of a verification, timed between the turns of our loop."""
    if way.way == PLAIN:
        return {"step_ms": steps_ms.target, "verify_ms": None}
    if way.way == DRAFT:
        return {"step_ms": steps_ms.drafts[NAME].draft, "verify_ms": steps_ms.verify[str(way.lookahead)]}
    return {"step_ms": None, "verify_ms": None}


def setup_of(cell: Cell, pair: LoadedPair, sizes: Sizes) -> Setup:
    """What all ways of a cell share."""
    return Setup(
        pair.target,
        {NAME: pair.draft},
        Limits(sizes.max_new_tokens, pair.stop_ids),
        Sampling(cell.temperature),
        Seeds.of(RESAMPLING.seed),
        new_opener(cell.steps),
    )


def ways_of(cell: Cell, setup: Setup) -> dict[Way, Run]:
    """The target alone, the draft at every lookahead, and transformers' loop with the draft where it is asked for."""
    every = ways_to_decode(setup, cell.lookaheads, assisted=bool(cell.assisted))
    wanted = {
        Way(PLAIN),
        *(Way(DRAFT, lookahead, NAME) for lookahead in cell.lookaheads),
        *(Way(TRANSFORMERS, lookahead, NAME) for lookahead in cell.assisted),
    }
    return {way: run for way, run in every.items() if way in wanted}


def decode_and_time(cell: Cell, setup: Setup, groups: Sequence[Prompts], step_repeats: int) -> tuple[Times, Latency]:
    """What every way took, and steps timed between the turns, as `widedraft speed` has them."""
    ways = ways_of(cell, setup)
    times: Times = {}
    warm_up(ways, groups[:1])
    turns = turns_within(cell.seconds, len(groups))
    pauses = take_turns(ways, groups, turns, np.random.default_rng(RESAMPLING.seed), times=times)
    context = repeated(groups[0][0], len(groups[0][0]) + setup.limits.max_new_tokens // 2)
    latency = measure_latency(
        setup.target,
        setup.drafts,
        StepSetting(context, cell.batch, setup.opener),
        lookaheads=cell.lookaheads,
        repetitions=(pause for pause in pauses for _ in range(-(-step_repeats // len(groups)))),
        resampling=RESAMPLING,
    )
    return times, latency


def turns_within(seconds: float, count: int) -> Iterator[tuple[int, int]]:
    """Turns of one repetition, at most so many, none of which begins later than so many seconds after the first."""
    start_s = time.monotonic()
    for turn in range(count):
        if turn and time.monotonic() - start_s > seconds:
            return
        yield (0, turn)
