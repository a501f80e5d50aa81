"""Whether the parts of a scorecard fit each other, so that a report finds every entry that it looks for."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from architectures.errors import UserError

Record = dict[str, Any]


def require_consistent(record: Record, path: Path) -> None:
    """Raise UserError naming the first two parts that do not fit each other; fields have been checked before."""
    for part, found, due in pairs_of_parts(record):
        if found != due:
            raise UserError(
                f"{path}: {part} must be {due}, as the rest of the file has it, got {found}. The file is damaged: take "
                "the original, or take its folder away and run `widedraft eval` again."
            )


def pairs_of_parts(record: Record) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """(name, what a part holds, what the others say it should hold) of all parts."""
    drafts = [model["draft"] for model in record["drafts"]]
    yield "drafts", drafts, list(dict.fromkeys(drafts))
    yield "drafts of latency", sorted(one["draft"] for one in record["latency"]["drafts"]), sorted(drafts)
    temperatures = [one["temperature"] for one in record["prompts"]["answers"]]
    for part in ("acceptance", "speedup"):
        found = sorted([row["draft"], row["temperature"]] for row in record[part])
        yield f"drafts and temperatures of {part}", found, sorted(map(list, product(drafts, temperatures)))
    if (live := record["live"]) is not None:
        yield "draft and temperature of live", [live["draft"], live["temperature"]], [drafts[-1], 0]
        yield "temperatures of live", [live["temperature"]], [one for one in temperatures if one == 0]
    if policies := record.get("policies"):
        yield "temperatures of policies", [row["temperature"] for row in policies], temperatures
    yield from pairs_of_lookaheads(record)
    yield from pairs_of_coverage(record)
    for number, row in enumerate(record["acceptance"]):
        yield from pairs_of_sums(row.get("by_prompt"), record, f"acceptance[{number}].by_prompt")


def pairs_of_lookaheads(record: Record) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The same of all lists of lookaheads, and of those that were chosen out of them."""
    due = lookaheads_of(record["latency"]["verify"])
    for section in ("acceptance", "speedup", "differences"):
        for number, row in enumerate(record[section]):
            yield f"lookaheads of {section}[{number}]", lookaheads_of(row["lookahead"]), due
            for part in (one for parted in row.get("bins", ()) for one in parted["bins"]):
                yield f"lookaheads of {section}[{number}], {part['bin']}", lookaheads_of(part["lookahead"]), due
    chosen = [row["best_lookahead"] for row in record["speedup"]]
    chosen += [] if record["live"] is None else [record["live"]["lookahead"]]
    yield "chosen lookaheads that were not scored", [one for one in chosen if one not in due], []


def pairs_of_coverage(record: Record) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The same of coverage: all figures of a draft whose head says some ids alone have one, and no others."""
    small = {model["draft"] for model in record["drafts"] if model.get("head_vocab_size") is not None}
    for number, row in enumerate(record["acceptance"]):
        parts = [row, *(one for parted in row.get("bins", ()) for one in parted["bins"])]
        found = [part.get("coverage") is not None for part in parts]
        if (sums := row.get("by_prompt")) is not None:
            found.append(sums.get("sayable") is not None)
        yield f"whether figures of acceptance[{number}] have a coverage", found, [row["draft"] in small] * len(found)


def pairs_of_sums(sums: Record | None, record: Record, part: str) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The same of the sums of every prompt, where there are any."""
    if sums is None:
        return
    yield f"lookaheads of {part}", lookaheads_of(sums["rounds"]), lookaheads_of(record["latency"]["verify"])
    named = [sums[name] for name in ("tokens", "alpha", "greedy_match", "sayable") if sums.get(name) is not None]
    columns = [*named, *(one["counts"] for one in sums["rounds"])]
    yield f"numbers of prompts of {part}", sorted(set(map(len, columns))), [len(record["prompts"]["sources"])]


def lookaheads_of(rows: Sequence[Record]) -> list[int]:
    return [row["lookahead"] for row in rows]
