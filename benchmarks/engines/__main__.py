"""One pair in every engine that runs here, and in widedraft: speeds with and without the draft, for docs/engines.md.

    python -m benchmarks.engines whole=RUN/certificate.json own-tokenizer=... --speed speed.json --doc docs/engines.md

A certificate is what `widedraft certify` wrote beside one form of the draft, and its name that of the form. --speed is
what `widedraft benchmark --out` wrote of the same pair: the first draft there is the one that the table is of.
All speeds include the reading of the prompt.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from architectures.files import read_typed
from architectures.tables import Table, markdown, replace_between
from eval.engines.certificate import FORM, REMEDY, Certificate, pooled
from eval.engines.runs import shown
from eval.scorecard_tables import with_bounds

COLUMNS = (
    "decoded by",
    "form",
    "number type",
    "lookahead",
    "target alone, tokens/s",
    "with the draft",
    "speed-up",
    "accepted by position, in rounds",
    "exact replay",
    "texts as without",
)
BEGIN, END = "<!-- engines: begin -->", "<!-- engines: end -->"
OWN = (("n-gram lookup", "lookup, no draft"), ("draft", "the draft"), ("lookup beside", "the draft's policy"))
Cells = tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("certificates", nargs="+", metavar="FORM=FILE")
    parser.add_argument("--speed", type=Path, metavar="FILE", help="of our own decoding")
    parser.add_argument("--doc", type=Path, metavar="FILE", help="write it into this page, between its marks")
    options = parser.parse_args()
    rows = list(engine_rows(options.certificates))
    if options.speed is not None:
        rows += own_rows(json.loads(options.speed.read_text(encoding="utf-8")))
    if options.doc is None:
        print(markdown(Table(COLUMNS, rows)))
    else:
        page = options.doc.read_text(encoding="utf-8")
        options.doc.write_text(replace_between(page, BEGIN, END, markdown(Table(COLUMNS, rows))), encoding="utf-8")


def engine_rows(words: Sequence[str]) -> Iterator[Cells]:
    """One for each engine of each certificate."""
    for word in words:
        form, _, path = word.partition("=")
        for certificate in read_typed(Path(path), FORM, REMEDY).engines.values():
            yield engine_cells(certificate, form)


def engine_cells(certificate: Certificate, form: str) -> Cells:
    run, speed, counted = certificate.run, certificate.speed, pooled([text.counted for text in certificate.run.texts])
    equal = sum(text.plain_ids == text.drafted_ids for text in run.texts)
    return (
        f"{run.engine} {run.version}",
        form,
        run.dtype,
        str(run.lookahead),
        f"{speed.plain_tokens_per_s:.1f}",
        f"{speed.drafted_tokens_per_s:.1f}",
        with_bounds(speed.value, speed.interval, 2, "x"),
        f"{shown(counted)} in {counted.rounds:,}",
        f"{shown(certificate.replay, like=counted)} in {certificate.replay.rounds:,}",
        f"{equal} of {len(run.texts)}",
    )


def own_rows(speed: dict[str, Any]) -> Iterator[Cells]:
    """Our own decoding with lookup, with the draft, and with both by its policy: each at its fastest lookahead."""
    plain = next(way for way in speed["ways"] if way["way"] == "target alone")
    draft = next(iter(speed["drafts"]))
    for kind, label in OWN:
        ways = [way for way in speed["ways"] if way["way"] == kind and way["draft"] in (None, draft)]
        best = max(ways, key=lambda way: way["whole"]["speedup"]["value"])
        yield (
            f"widedraft, {label}",
            "small head",
            speed["target"]["dtype"],
            str(best["lookahead"]),
            f"{plain['whole']['tokens_per_s']:.1f}",
            f"{best['whole']['tokens_per_s']:.1f}",
            with_bounds(best["whole"]["speedup"]["value"], best["whole"]["speedup"]["interval"], 2, "x"),
            "" if best["tau"] is None else f"{best['tau']:.2f} tokens a round",
            "",
            "",
        )


if __name__ == "__main__":
    main()
