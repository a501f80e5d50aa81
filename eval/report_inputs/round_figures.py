"""Figures of decoding, made of a trace of its rounds and nothing else; and the page that `widedraft rounds` prints.

Tokens proposed behind the end of a text were drafted, but the text had no room for them: no rate counts them, as
eval/acceptance/counts.py counts. Texts that are decoded together share the seconds of a round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from architectures.pages.blocks import Section, Sentence, Table
from architectures.pages.counts import number_of
from eval.acceptance.counts import Counts, count_proposals, pool, ratio
from eval.acceptance.estimates import INTERVALS, Resampling
from eval.config import EvalConfig
from eval.pages.acceptance_page import position_section, tau_table
from eval.pages.verdict import with_interval
from eval.records.acceptance import Rounds
from eval.rounds.round_trace import RoundTrace, RunSettings, TracedRound
from eval.scorecard.acceptance_record import PromptCounts, rounds_at

DEFAULTS = EvalConfig()
RESAMPLING = Resampling(DEFAULTS.confidence, DEFAULTS.num_resamples, seed=17)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of draft and target, and of a round: once for all the texts that went through it together."""

    draft_s: float
    verify_s: float
    steps: float
    num_rounds: int

    @property
    def draft_share(self) -> float | None:
        return ratio(self.draft_s, self.draft_s + self.verify_s)

    @property
    def draft_ms_per_round(self) -> float:
        return 1000 * self.draft_s / self.steps

    @property
    def verify_ms_per_round(self) -> float:
        return 1000 * self.verify_s / self.steps

    @property
    def ms_per_round(self) -> float:
        return self.draft_ms_per_round + self.verify_ms_per_round

    @property
    def rows_per_round(self) -> float:
        return self.num_rounds / self.steps


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Raw counts, rates and times of the rounds of one run; `lookahead` as a scorecard has it."""

    rule: str
    prompts: int
    texts: int
    rounds: int
    drafted: int
    accepted: int
    emitted: int
    lookahead: tuple[Rounds, ...]
    times: Times


def run_figures(rounds: Sequence[TracedRound], resampling: Resampling = RESAMPLING) -> RunFigures:
    """Of all rounds of a run, at least one.

    Args:
        rounds: Of the run.
        resampling: How intervals over prompts are made.
    """
    longest = max(round_.lookahead for round_ in rounds)
    by_prompt = PromptCounts([{longest: counts} for counts in counts_by_prompt(rounds, longest)])
    return RunFigures(
        rule=rounds[0].rule,
        prompts=len(by_prompt.counts),
        texts=sum(round_.start == 0 for round_ in rounds),
        rounds=len(rounds),
        drafted=sum(round_.proposed for round_ in rounds),
        accepted=sum(round_.accepted for round_ in rounds),
        emitted=sum(round_.emitted for round_ in rounds),
        lookahead=(rounds_at(by_prompt, longest, resampling),),
        times=times_of(rounds),
    )


def counts_by_prompt(rounds: Iterable[TracedRound], most: int) -> list[Counts]:
    """Counts of each prompt's texts together, for positions up to `most`."""
    prompts: dict[str, list[Counts]] = {}
    for prompt, text in texts_of(rounds):
        told = ((round_.start, round_.proposed, round_.accepted) for round_ in text)
        num_tokens = sum(round_.emitted for round_ in text)
        prompts.setdefault(prompt, []).append(count_proposals(told, num_tokens=num_tokens, most=most))
    return [pool(counts) for counts in prompts.values()]


def texts_of(rounds: Iterable[TracedRound]) -> list[tuple[str, list[TracedRound]]]:
    """The prompt and the rounds of each text."""
    texts: dict[tuple[str, int], list[TracedRound]] = {}
    for round_ in rounds:
        texts.setdefault((round_.prompt, round_.sample), []).append(round_)
    return [(prompt, text) for (prompt, _), text in texts.items()]


def times_of(rounds: Sequence[TracedRound]) -> Times:
    return Times(
        draft_s=sum(round_.draft_s / round_.rows for round_ in rounds),
        verify_s=sum(round_.verify_s / round_.rows for round_ in rounds),
        steps=sum(1 / round_.rows for round_ in rounds),
        num_rounds=len(rounds),
    )


def rounds_page(trace: RoundTrace) -> Section:
    """What a person reads of a trace: every run, its raw counts first."""
    header = trace.header
    origin = header.provenance
    told = (
        f"Number types {header.draft.dtype} and {header.target.dtype}, on {header.device} with "
        f"{number_of(header.threads, 'thread')}; "
        f"commit {origin.get('git_commit') or 'unknown'}, {origin.get('created')}. Intervals: "
        f"{100 * RESAMPLING.confidence:g} % {INTERVALS} over prompts, {RESAMPLING.num_resamples} "
        f"resamples, seed {RESAMPLING.seed}."
    )
    runs = [run_section(run, trace.rounds_of(run.label)) for run in header.runs]
    return Section(f"Rounds of {header.draft.path} drafting for {header.target.path}", [*runs, Sentence(told)])


def run_section(run: RunSettings, rounds: Sequence[TracedRound]) -> Section:
    """One run: counts, rates, positions, times."""
    if not rounds:
        return Section(run.label, [Sentence("No prompt was decoded, so there is no round.")])
    record = run_figures(rounds)
    [entry] = record.lookahead
    behind = record.drafted - entry.proposed
    texts = f"{number_of(record.texts, 'text')} of {number_of(record.prompts, 'prompt')}"
    how = f"Rule {record.rule}, {settings_words(run)}; {texts}."
    rates = f"alpha of rounds {with_interval(entry.alpha_of_rounds)}, utilisation {with_interval(entry.utilisation)}"
    counts = Table(
        ("rounds", "drafted", "of them behind a text's end", "accepted", "emitted"),
        [(record.rounds, record.drafted, f"{behind:g}", record.accepted, record.emitted)],
    )
    positions = position_section(run.drafter, run.sampling.temperature, entry)
    tau, times = tau_table({run.drafter: record.lookahead}), Sentence(times_words(record.times))
    return Section(run.label, [Sentence(how), counts, tau, Sentence(rates), positions, times])


def settings_words(run: RunSettings) -> str:
    """How a run was decoded."""
    adaptive = " at first, adaptive" if run.adaptive else ""
    return f"temperature {run.sampling.temperature:g}, lookahead {run.lookahead}{adaptive}"


def times_words(times: Times) -> str:
    """Where the time went; draft and verification alone, not the loop around them."""
    together = "" if times.rows_per_round == 1 else f", of {times.rows_per_round:.1f} texts together,"
    share = "none" if times.draft_share is None else f"{times.draft_share:.1%}"
    return (
        f"time: {times.draft_s + times.verify_s:.3f} s, {share} of it the draft's; a round{together} takes "
        f"{times.ms_per_round:.2f} ms, {times.draft_ms_per_round:.2f} of the draft and "
        f"{times.verify_ms_per_round:.2f} of the target"
    )
