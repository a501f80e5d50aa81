"""Tokens per second as a table and sentences. Pure text from the record."""

from typing import Any

from eval.scorecard.tables import table
from eval.scorecard.verdict import decision, with_interval
from eval.speed.ways import DRAFT, LOOKUP, PLAIN

Record = dict[str, Any]

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


def speed_page(record: Record) -> str:
    """The table, then what it says."""
    rows = [way_cells(row) for row in record["ways"]]
    settings = record["settings"]
    title = (
        f"## Batch {settings['batch']}, temperature {settings['temperature']:g}, {settings['prompts']} prompts, "
        f"{settings['repeats']} repetitions, {'compiled' if settings['compiled'] else 'eager'} steps"
    )
    return "\n\n".join([title, table(COLUMNS, rows), *best_sentences(record), error_sentence(record)])


def way_cells(row: Record) -> tuple[str, ...]:
    """One way."""
    decode = row["decode"] or row["whole"]
    return (
        row["way"],
        str(row["lookahead"] or ""),
        "" if row["tau"] is None else f"{row['tau']:.2f}",
        f"{decode['tokens_per_s']:.1f}",
        with_interval(row["decode"]["speedup"], times=True) if row["decode"] else "not told apart",
        "" if row["predicted"] is None else f"{row['predicted']:.2f}x",
        with_interval(row["whole"]["speedup"], times=True),
        "" if row["round_ms"] is None else " + ".join(f"{ms:.1f}" for ms in row["round_ms"].values()),
    )


def row_of(record: Record, kind: str, lookahead: int) -> Record:
    """The row of a way."""
    [row] = [row for row in record["ways"] if (row["way"], row["lookahead"]) == (kind, lookahead)]
    return row


def best_sentences(record: Record) -> list[str]:
    """The draft at its best, and what is gained without one."""
    best = {kind: row_of(record, kind, record["best"][kind]) for kind in (DRAFT, LOOKUP)}
    return [best_sentence(kind, row) for kind, row in best.items()]


def best_sentence(kind: str, row: Record) -> str:
    """What a way is worth where it is fastest, and whether that is decided."""
    speedup = row["whole"]["speedup"]
    return (
        f"With {'the draft' if kind == DRAFT else kind}, at lookahead {row['lookahead']}, its best of those measured, "
        f"the reading of the prompt included: {with_interval(speedup, times=True)}. {decision(speedup)}."
    )


def error_sentence(record: Record) -> str:
    """How far prediction is from measurement, and where the time is that it misses."""
    error = record["largest_error"]
    told = f"Predicted and measured differ by at most {abs(error['share']):.0%}, at lookahead {error['lookahead']}"
    if abs(error["share"]) <= CLOSE:
        return f"{told}."
    missing, shares = missing_ms(record, error["lookahead"])
    name = max(shares, key=lambda each: abs(shares[each]))
    return f"{told}: above all, {PARTS[name].format(missing[name])}."


def missing_ms(record: Record, lookahead: int) -> tuple[dict[str, float], dict[str, float]]:
    """What decoding took more than its steps, by PARTS: milliseconds, and the share of what was predicted."""
    row, step_ms = row_of(record, DRAFT, lookahead), record["steps_ms"]["target"]
    missing = {name: row["round_ms"][name] - row["predicted_round_ms"][name] for name in row["round_ms"]}
    round_ms = sum(row["predicted_round_ms"].values())
    shares = {name: milliseconds / round_ms for name, milliseconds in missing.items()}
    missing["target"] = row_of(record, PLAIN, 0)["pass_ms"] - step_ms
    return missing, shares | {"target": missing["target"] / step_ms}
