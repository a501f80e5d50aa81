"""Where a round's time goes: drafting, the draft's catch-up, verification, and the loop around them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from architectures.pages.blocks import Absent, Block, Figure, Section, Sentence, Table, folded
from eval.acceptance.estimates import Estimate, Resampling, paired_ratio_difference
from eval.pages.verdict import with_interval
from eval.report_inputs.drafts import ScoredDraft
from eval.report_inputs.round_figures import texts_of
from eval.rounds.round_trace import TracedRound

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = ("draft", "catch-up", "verify", "rest")


@dataclass(frozen=True)
class RoundTime:
    """Milliseconds of a mean round; None for a part that is not told apart.

    Attributes:
        label: The draft, and where the times are from.
        draft_ms: One-token steps of the draft; with the catch-up where that is not told apart.
        catch_up_ms: What rounds after a wholly kept one need more, spread over all rounds.
        verify_ms: The target.
        rest_ms: The loop around the models.
    """

    label: str
    draft_ms: float
    catch_up_ms: float | None
    verify_ms: float
    rest_ms: float | None

    @property
    def parts(self) -> tuple[float | None, ...]:
        """In the order of PARTS."""
        return self.draft_ms, self.catch_up_ms, self.verify_ms, self.rest_ms

    @property
    def total_ms(self) -> float:
        return sum(part for part in self.parts if part is not None)


def round_time_section(drafts: Sequence[ScoredDraft]) -> Section:
    """Predicted and measured rounds of every draft that was decoded live."""
    live = [draft for draft in drafts if draft.live is not None]
    title = "Where a round's time goes"
    if not live:
        lacking = Absent("Live decoding: temperature 0 was not scored, so no round was timed.")
        return Section(title, [lacking], name="round")
    times = [time for draft in live for time in (predicted_time(draft), measured_time(draft))]
    blocks: list[Block] = [
        Sentence(
            "Predicted from the median step times, and measured while decoding. Catch-up is what the draft needs more "
            "after a round that kept everything: it reads two tokens then. The rest is the loop around the models, "
            "which no prediction counts."
        ),
        round_figure(times),
        round_table(times),
    ]
    return Section(title, [*blocks, *(told for draft in live for told in catch_up_notes(draft))], name="round")


def predicted_time(draft: ScoredDraft) -> RoundTime:
    """A round by the step times, at the lookahead of live decoding."""
    assert draft.live is not None
    lookahead = draft.live.lookahead
    draft_ms, two_ms = draft.steps.one_token.median_ms, draft.steps.two_tokens.median_ms
    return RoundTime(
        label=f"{draft.label}, predicted",
        draft_ms=lookahead * draft_ms,
        catch_up_ms=draft.row(draft.live.temperature).at(lookahead).full_rate * (two_ms - draft_ms),
        verify_ms=draft.card.record.latency.verify_at(lookahead).median_ms,
        rest_ms=None,
    )


def measured_time(draft: ScoredDraft) -> RoundTime:
    """A round as live decoding took it."""
    assert draft.live is not None
    spent, rounds = draft.live.speculative, draft.live.agreement.loop.rounds
    draft_ms, verify_ms, whole_ms = (
        1000 * seconds / rounds for seconds in (spent.draft_s, spent.verify_s, spent.decode_s)
    )
    catching_up = None if draft.card.rounds is None else catch_up(draft.card.rounds, draft.card.resampling)
    more_ms = (
        catching_up.more_ms.value * catching_up.share if catching_up is not None and catching_up.is_shown else None
    )
    return RoundTime(
        label=f"{draft.label}, measured",
        draft_ms=draft_ms - (more_ms or 0),
        catch_up_ms=more_ms,
        verify_ms=verify_ms,
        rest_ms=whole_ms - draft_ms - verify_ms,
    )


@dataclass(frozen=True)
class CatchUp:
    """Drafting in rounds that follow a wholly kept one, against all others that proposed as many tokens.

    Attributes:
        after_full: Rounds of the first kind.
        others: Rounds of the second.
        more_ms: What one of the first takes more, in the mean; noise may make it negative.
        share: Of all rounds, those that follow a wholly kept one.
    """

    after_full: int
    others: int
    more_ms: Estimate
    share: float

    @property
    def is_shown(self) -> bool:
        """Whether it is more than noise: the whole interval lies above 0."""
        return self.more_ms.interval is not None and self.more_ms.interval[0] > 0


def catch_up(rounds: Sequence[TracedRound], resampling: Resampling) -> CatchUp | None:
    """What catching up takes, by the seconds of every round; None where one kind of round is missing."""
    by_prompt: dict[str, list[tuple[bool, TracedRound]]] = {}
    for prompt, text in texts_of(rounds):
        by_prompt.setdefault(prompt, []).extend(
            (before is not None and 0 < before.proposed == before.accepted, round_)
            for before, round_ in zip([None, *text], text, strict=False)
        )
    after_full, others = (
        drafting_columns([round_ for full, round_ in followed if full is kind] for followed in by_prompt.values())
        for kind in (True, False)
    )
    num_after_full, num_others = (sum(counts) for _, counts in (after_full, others))
    if not num_after_full or not num_others:
        return None
    return CatchUp(
        after_full=num_after_full,
        others=num_others,
        more_ms=paired_ratio_difference(after_full, others, resampling),
        share=sum(full for followed in by_prompt.values() for full, _ in followed) / len(rounds),
    )


def drafting_columns(by_prompt: Iterable[Sequence[TracedRound]]) -> tuple[list[float], list[int]]:
    """Per prompt: milliseconds of drafting in the rounds that proposed all they may, and their number."""
    whole = [[round_.draft_s for round_ in rounds if round_.proposed == round_.lookahead] for rounds in by_prompt]
    return [1000 * sum(seconds) for seconds in whole], [len(seconds) for seconds in whole]


def catch_up_notes(draft: ScoredDraft) -> list[Block]:
    """Where the measured catch-up comes from, or why there is none."""
    if draft.card.rounds is None:
        return [
            Absent(f"{draft.label}, measured catch-up: no rounds.jsonl beside {draft.card.path}; it is within draft.")
        ]
    catching_up = catch_up(draft.card.rounds, draft.card.resampling)
    if catching_up is None:
        return [
            Absent(f"{draft.label}, measured catch-up: too few kinds of rounds to tell it apart; it is within draft.")
        ]
    told = (
        f"{draft.label}: drafting took {with_interval(catching_up.more_ms)} ms more in {catching_up.after_full} "
        f"rounds after a wholly kept one than in {catching_up.others} others."
    )
    return [
        Sentence(told) if catching_up.is_shown else Absent(f"{told} That is not decided; the catch-up is within draft.")
    ]


def round_figure(times: Sequence[RoundTime]) -> Figure:
    """A bar for every kind of round, parted."""

    def draw(axes: "Axes") -> None:
        from eval.pages.drawing import draw_parts

        draw_parts(axes, [time.label for time in times], PARTS, [time.parts for time in times])
        axes.set(xlabel="milliseconds")

    lines = max(folded(time.label).count("\n") + 1 for time in times)
    told = "; ".join(f"{time.label} {time.total_ms:.2f} ms: {part_words(time)}" for time in times)
    return Figure(
        name="round",
        alt=f"Parts of a round in milliseconds: {told}.",
        caption="A mean round, by part",
        draw=draw,
        height=1.6 + (0.27 + 0.18 * lines) * len(times),
    )


def part_words(time: RoundTime) -> str:
    """The parts that are told apart."""
    return ", ".join(f"{name} {ms:.2f}" for name, ms in zip(PARTS, time.parts, strict=True) if ms is not None)


def round_table(times: Sequence[RoundTime]) -> Table:
    """Milliseconds and shares of every part."""
    rows = [
        (time.label, *(part_cell(part, time.total_ms) for part in time.parts), f"{time.total_ms:.2f}") for time in times
    ]
    return Table(("round", *PARTS, "all"), rows, "Milliseconds of a round")


def part_cell(part_ms: float | None, total_ms: float) -> str:
    """Milliseconds of a part and its share."""
    return "not told" if part_ms is None else f"{part_ms:.2f} ({part_ms / total_ms:.0%})"
