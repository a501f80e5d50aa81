"""One pair in every engine that runs here, and in widedraft: speeds with and without the draft.

    python -m benchmarks.engines whole=A.json own-tokenizer=B.json --speed speed.json --doc docs/benchmarks.md

A certificate is what `widedraft certify` wrote beside one form of the draft, and its name that of the form. --speed is
what `widedraft benchmark --out` wrote of the same pair: the first draft there is the one that the table is of.
All speeds include the reading of the prompt.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from architectures.console import Table, markdown, replace_between
from architectures.files import read_typed
from eval.benchmark import DRAFT, LOOKUP, LOOKUP_FIRST, PLAIN, BenchmarkFile
from eval.engines.certificate import FORM, HINT, Certificate, pooled
from eval.engines.runs import shown
from eval.scorecard_tables import with_bounds

COLUMNS = (
    "engine",
    "form",
    "dtype",
    "k",
    "plain tokens/s",
    "with draft",
    "speedup",
    "accepted by position in verification steps",
    "exact replay",
    "equal texts",
)
BEGIN, END = "<!-- engines: begin -->", "<!-- engines: end -->"
Cells = tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("certificates", nargs="+", metavar="FORM=FILE")
    parser.add_argument("--speed", type=Path, metavar="FILE", help="of our own decoding")
    parser.add_argument("--doc", type=Path, metavar="FILE", help="write it into this page, between its marks")
    options = parser.parse_args()
    rows = list(engine_rows(options.certificates))
    if options.speed is not None:
        rows += own_rows(
            read_typed(options.speed, TypeAdapter(BenchmarkFile), "Make it again: widedraft benchmark --out.")
        )
    if options.doc is None:
        print(markdown(Table(COLUMNS, rows)))
    else:
        page = options.doc.read_text(encoding="utf-8")
        options.doc.write_text(replace_between(page, BEGIN, END, markdown(Table(COLUMNS, rows))), encoding="utf-8")


def engine_rows(words: Sequence[str]) -> Iterator[Cells]:
    """One for each engine of each certificate."""
    for word in words:
        form, _, path = word.partition("=")
        for certificate in read_typed(Path(path), FORM, HINT).engines.values():
            yield engine_cells(certificate, form)


def engine_cells(certificate: Certificate, form: str) -> Cells:
    run, speed, counted = certificate.run, certificate.speed, pooled([text.counted for text in certificate.run.texts])
    equal = sum(text.plain_ids == text.drafted_ids for text in run.texts)
    return (
        f"{run.engine} {run.version}",
        form,
        run.dtype,
        str(run.num_speculative_tokens),
        f"{speed.plain_tokens_per_s:.1f}",
        f"{speed.drafted_tokens_per_s:.1f}",
        with_bounds(speed.value, speed.interval, 2, "x"),
        f"{shown(counted)} in {counted.steps:,}",
        f"{shown(certificate.replay, like=counted)} in {certificate.replay.steps:,}",
        f"{equal} of {len(run.texts)}",
    )


def own_rows(speed: BenchmarkFile) -> Iterator[Cells]:
    """Our own decoding with the first draft, with prompt lookup, and with both: each at its fastest k."""
    plain = next(row for row in speed.rows if row.method == PLAIN)
    draft = next(iter(speed.drafts))
    for method in (LOOKUP, DRAFT, LOOKUP_FIRST):
        rows = [row for row in speed.rows if row.method == method and row.draft in (None, draft)]
        if not rows:
            continue
        best = max(rows, key=lambda row: row.speedup.value)
        yield (
            f"widedraft, {method}",
            "as trained",
            speed.target.dtype,
            str(best.num_speculative_tokens),
            f"{plain.tokens_per_s:.1f}",
            f"{best.tokens_per_s:.1f}",
            with_bounds(best.speedup.value, best.speedup.interval, 2, "x"),
            "" if best.acceptance_length is None else f"{best.acceptance_length:.2f} tokens per step",
            "",
            "",
        )


if __name__ == "__main__":
    main()
