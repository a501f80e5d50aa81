"""Tokens per second as a table and sentences. Pure, from the record."""

from architectures.pages.blocks import Caution, Section, Sentence, Table
from architectures.pages.counts import number_of
from eval.acceptance.intervals import least_units
from eval.pages.doubts import DISTRUSTED, chosen_words, doubt_words, is_distrusted
from eval.pages.verdict import decision, too_few_words, with_interval
from eval.records.speed import AgainstLookup, BehindFastest, BestWay, SpeedFile, SpeedWay
from eval.speed.ways import DRAFT, PLAIN

COLUMNS = (
    "way",
    "lookahead",
    "tau",
    "tokens/s",
    "speed of decoding",
    "predicted",
    "with the prompt",
    "ms of a round: draft + verify + rest",
)
CLOSE = 0.1  # a prediction farther away than this misses a term
PARTS = {
    "target": "a step of the target alone takes {:+.1f} ms",
    "draft": "a measured round has {:+.1f} ms of drafting",
    "verify": "a measured round has {:+.1f} ms of verification",
    "rest": "a measured round has {:+.1f} ms of the loop around the models",
}


def speed_page(record: SpeedFile) -> Section:
    """The table, then what it says."""
    rows = [way_cells(row) for row in record.ways]
    settings = record.settings
    title = (
        f"Batch {settings.batch}, {settings.sampling.words_at(settings.temperature)}, {settings.prompts} prompts, "
        f"{number_of(settings.repeats, 'repetition')}, {settings.how} steps{settings.rounds_words}"
    )
    told = [*best_sentences(record), *fastest_sentence(record), *lookup_sentence(record), error_sentence(record)]
    chosen = chosen_words(record.evidence)
    threads = [] if chosen is None else [Sentence(f"Measured with {chosen}.")]
    warnings = map(Caution, doubt_words(record.evidence))
    return Section(title, [*warnings, *threads, Table(COLUMNS, rows), *map(Sentence, told)])


def way_cells(row: SpeedWay) -> tuple[str, ...]:
    decode = row.decode or row.whole
    return (
        label_of(row),
        str(row.lookahead or ""),
        "" if row.tau is None else f"{row.tau:.2f}",
        f"{decode.tokens_per_s:.1f}",
        with_interval(row.decode.speedup, times=True) if row.decode else "not told apart",
        "" if row.predicted is None else with_interval(row.predicted, times=True),
        with_interval(row.whole.speedup, times=True),
        "" if row.round_ms is None else " + ".join(f"{ms:.1f}" for ms in vars(row.round_ms).values()),
    )


def label_of(way: SpeedWay | BestWay | BehindFastest | AgainstLookup) -> str:
    """What a way is called: a draft by its name."""
    if way.draft is None:
        return way.way
    return way.draft if way.way == DRAFT else f"{way.way}, {way.draft}"


def best_sentences(record: SpeedFile) -> list[str]:
    """Every draft at its best, and what is gained without one; then how these intervals are meant."""
    told = [best_sentence(way, record) for way in record.best]
    compared = record.best[0].compared if record.best else 0
    if compared > 1 and record.best[0].speedup.interval is not None:
        told.append(
            f"In these sentences intervals hold for all {compared} ways compared together, since the best was picked "
            "on the same turns; in the table each holds for its own row."
        )
    return told


def best_sentence(way: BestWay, record: SpeedFile) -> str:
    """What a way is worth where it is fastest, and whether that is decided."""
    decided = decision(way.speedup, too_few=too_few_groups(record))
    return (
        f"At its best of those measured, lookahead {way.lookahead}, {label_of(way)} gives "
        f"{with_interval(way.speedup, times=True)}, the reading of the prompt included. "
        f"{DISTRUSTED if is_distrusted(record.evidence) else decided}."
    )


def too_few_groups(record: SpeedFile) -> str:
    """Why there is no interval, and what to do."""
    settings = record.settings
    least = least_units(settings.confidence)
    return (
        f"{too_few_words(record.groups, 'group of prompts', 'groups of prompts', least)}; --num-prompts "
        f"{least * settings.batch} makes them at --batch-size {settings.batch}"
    )


def fastest_sentence(record: SpeedFile) -> list[str]:
    """Which of several drafts is the fastest, and how surely; nothing of one."""
    behind = record.behind
    if not behind:
        return []
    slower = {row.draft for row in behind}
    ahead = [way for way in record.best if way.draft is not None and way.draft not in slower]
    fastest = label_of(max(ahead, key=lambda way: way.speedup.value))
    told = [f"{label_of(row)} {with_interval(row.fastest, times=True)}" for row in behind]
    sentence = (
        f"Each at its best, {fastest} is the fastest. In the same turns it is so many times as fast as the others: "
        f"{', '.join(told)}. {fastest_decision(record)}."
    )
    return [sentence]


def lookup_sentence(record: SpeedFile) -> list[str]:
    """How much more each draft gives than looking up alone."""
    rows = record.against_lookup
    if not rows:
        return []
    told = [f"{label_of(row)} {with_interval(row.ratio, times=True)}" for row in rows]
    held = f", all {rows[0].compared} pairs of ways compared together" if rows[0].compared > 1 else ""
    return [f"Beside n-gram lookup alone, in the same turns and each at its best{held}: {', '.join(told)}."]


def fastest_decision(record: SpeedFile) -> str:
    """Whether the fastest is faster than all others."""
    if is_distrusted(record.evidence):
        return DISTRUSTED
    intervals = {row.draft: row.fastest.interval for row in record.behind}
    if None in intervals.values():
        return f"Not decided, because {too_few_groups(record)}"
    undecided = [draft for draft, interval in intervals.items() if interval is not None and interval[0] <= 1]
    return f"Not decided against {', '.join(undecided)}" if undecided else "Decided against all of them"


def error_sentence(record: SpeedFile) -> str:
    """How far prediction is from measurement, and where the time is that it misses."""
    error = record.largest_error
    if error is None:
        return "Nothing is predicted of rounds whose lengths differ, of several rows together."
    where = f"{error.draft} at lookahead {error.lookahead}"
    told = f"Predicted and measured differ by at most {abs(error.share):.0%}, with {where}"
    if abs(error.share) <= CLOSE or record.row(DRAFT, error.draft, error.lookahead).predicted_round_ms is None:
        return f"{told}."
    missing, shares = missing_ms(record, error.draft, error.lookahead)
    name = max(shares, key=lambda each: abs(shares[each]))
    return f"{told}: above all, {PARTS[name].format(missing[name])}."


def missing_ms(record: SpeedFile, draft: str, lookahead: int) -> tuple[dict[str, float], dict[str, float]]:
    """What decoding took more than its steps, by PARTS: milliseconds, and the share of what was predicted."""
    row, alone, step_ms = record.row(DRAFT, draft, lookahead), record.row(PLAIN, None, 0), record.steps_ms.target
    assert row.round_ms is not None
    assert row.predicted_round_ms is not None
    assert alone.pass_ms is not None
    missing = row.round_ms.less(row.predicted_round_ms)
    shares = {name: milliseconds / row.predicted_round_ms.total for name, milliseconds in missing.items()}
    target_ms = alone.pass_ms - step_ms
    return {**missing, "target": target_ms}, {**shares, "target": target_ms / step_ms}
