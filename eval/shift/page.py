"""What a stream says of its arms, as a page: sentences, tables, plots."""

from collections.abc import Callable, Sequence

from architectures.pages.blocks import Absent, Caution, Figure, Folded, Section, Sentence, Table
from architectures.pages.counts import number_of
from eval.acceptance.estimates import Estimate, Resampling
from eval.pages.verdict import with_interval
from eval.shift.curves import Ending
from eval.shift.plots import stream_figures, token_figures
from eval.shift.reading import Arm
from eval.shift.tokens import TokenScore, answer_ids, commonest, pooled, proposed_ids, token_scores

Words = Callable[[int], str]


def shift_page(
    arms: Sequence[Arm],
    at_end: Sequence[Ending],
    *,
    window: int,
    last_share: float,
    most_tokens: int,
    words: Words,
    resampling: Resampling,
) -> Section:
    """The whole page.

    Args:
        arms: Over the same requests.
        at_end: Of every source and arm.
        window: Requests that are averaged in plots.
        last_share: Of each source, that tables are of.
        most_tokens: Commonest tokens.
        words: What a token id is called.
        resampling: How intervals are made.
    """
    records = arms[0].records
    opening = f"{number_of(len(records), 'request')}, answered by {', '.join(arm.name for arm in arms)}."
    return Section(
        "Acceptance over a stream",
        [
            Sentence(opening),
            *answers_apart(arms),
            Section("Against records", stream_figures(arms, window, resampling)),
            Section("At the end of each source", ending_blocks(at_end, last_share, resampling)),
            Section("Commonest tokens", token_blocks(arms, most_tokens, words, resampling)),
        ],
    )


def answers_apart(arms: Sequence[Arm]) -> list[Caution]:
    """Whether arms answered alike, as a greedy target does."""
    answers = [[record.answer_ids for record in arm.records] for arm in arms]
    apart = [sum(map(tuple.__ne__, answers[0], others)) for others in answers[1:]]
    return [
        Caution(f"{number_of(count, 'answer')} of {arm.name} differ from those of {arms[0].name}.")
        for arm, count in zip(arms[1:], apart, strict=True)
        if count
    ]


def ending_blocks(at_end: Sequence[Ending], last_share: float, resampling: Resampling) -> list[Sentence | Table]:
    """The last part of each source's requests, in every arm."""
    gains = sum(each.alpha_gain is not None for each in at_end)
    told = (
        f"Of the last {last_share:.0%} of each source's requests: means over tokens (alpha) and rounds (tau), with "
        f"{resampling.confidence:.0%} intervals by bootstrap over requests."
    )
    if gains:
        told += (
            f" Gains are over {at_end[0].arm} on the same requests, resampled together. Each of these "
            f"{number_of(gains, 'gain')} in alpha is wrong by itself in {1 - resampling.confidence:.0%} of cases."
        )
    columns = ("source", "draft", "requests", "alpha", "gain in alpha", "tau", "gain in tau")
    return [Sentence(told), Table(columns, list(map(ending_cells, at_end)))]


def ending_cells(each: Ending) -> tuple[str, ...]:
    return (
        each.source,
        each.arm,
        f"{each.requests:,}",
        with_interval(each.alpha),
        gain_words(each.alpha_gain),
        with_interval(each.tau),
        gain_words(each.tau_gain),
    )


def gain_words(gain: Estimate | None) -> str:
    return "–" if gain is None else with_interval(gain)


def token_blocks(
    arms: Sequence[Arm], most: int, words: Words, resampling: Resampling
) -> list[Absent | Sentence | Table | Figure | Folded]:
    """Precision and recall of the tokens that answers hold most often."""
    token_ids = commonest(arms[0].records, most)
    if not any(proposed_ids(record) for arm in arms for record in arm.records):
        return [Absent("Not measured: the records hold no proposals.")]
    scores = [(arm.name, token_scores(arm, token_ids)) for arm in arms]
    return [
        Sentence(
            "Precision is the share of a token's proposals that were kept, recall the share of its occurrences in "
            f"answers that were proposed and kept; of the {number_of(len(token_ids), 'commonest token')} together:"
        ),
        Table(("draft", "precision", "recall"), [pooled_cells(arm, token_ids, resampling) for arm in arms]),
        *token_figures(scores),
        Folded("Each of them", [token_table(scores, words)]),
    ]


def pooled_cells(arm: Arm, token_ids: Sequence[int], resampling: Resampling) -> tuple[str, ...]:
    """An arm's precision and recall of all of some tokens."""
    shares = (pooled(arm, token_ids, below, resampling) for below in (proposed_ids, answer_ids))
    return (arm.name, *map(none_or, shares))


def none_or(estimate: Estimate | None) -> str:
    return "none" if estimate is None else with_interval(estimate)


def token_table(scores: Sequence[tuple[str, Sequence[TokenScore]]], words: Words) -> Table:
    """A row for each token."""
    columns = ["token", "occurrences", *(f"{name}: {share}" for name, _ in scores for share in ("precision", "recall"))]
    rows = [
        (
            words(first.token_id),
            f"{first.occurrences:,}",
            *cells(first),
            *(cell for each in others for cell in cells(each)),
        )
        for first, *others in zip(*(of_arm for _, of_arm in scores), strict=True)
    ]
    return Table(columns, rows)


def cells(score: TokenScore) -> tuple[str, str]:
    """Precision and recall of a token."""
    precision, recall = ("none" if share is None else f"{share:.3f}" for share in (score.precision, score.recall))
    return precision, recall
