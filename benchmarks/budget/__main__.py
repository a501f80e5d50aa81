"""How acceptance grows with answers, readings, text, layers and ids: trainings, and the law fitted to them.

    python -m benchmarks.budget recipes/smollm2-chat.yaml variables.data=DIR --text output=alpaca.jsonl --text wiki.txt
    python -m benchmarks.budget --page FILE            # the law, and how it foretells trainings it was not fitted to
    python -m benchmarks.budget --doc docs/choosing.md --page FILE       # the same, into a page

Answers and the cache are the run's own, and made where they are missing. Then 16 trainings that read 20,000 to 400,000
answer tokens, the draft of the recipe's own run if it is finished, and two trainings that the law of all others
foretells before they are made. Each is cut, trained by the trainer
that a recipe gets, and replayed greedily along the held-out prompts. Every finished one is in FILE; run again after an
interruption, and it continues. `widedraft choose --budget FILE` reads it. Nothing else may run on the machine
meanwhile: minutes are measured too.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.budget.page import law_page, with_law
from distill.budget.record import read_trainings
from distill.process.exits import report_user_errors


def main(argv: Sequence[str] | None = None) -> int:
    """Fill the missing trainings, or tell of those there are; the exit code of the process."""
    return report_user_errors(lambda: run(parsed(argv)))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budget", description="Fit what a budget makes of a draft."
    )
    parser.add_argument("recipe", type=Path, nargs="?", help="whose target, answers, rates and batches are taken")
    parser.add_argument("words", nargs="*", metavar="key=value", help="recipe values to change")
    parser.add_argument(
        "--text", type=text_domain, action="append", default=[], metavar="[FIELD=]FILE", help="plain text, or its field"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/budget"), help="of the training in work")
    parser.add_argument("--out", type=Path, default=Path("runs/budget/trainings.json"), metavar="FILE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--page", type=Path, metavar="FILE", help="print the law of these trainings, and make nothing")
    parser.add_argument("--doc", type=Path, metavar="FILE", help="write it into this page, between its marks")
    options = parser.parse_intermixed_args(argv)
    if (options.recipe is None) == (options.page is None):
        parser.error("give a recipe, or --page FILE")
    if options.doc is not None and options.page is None:
        parser.error("--doc goes with --page")
    return options


def text_domain(word: str) -> Mapping[str, str]:
    """A domain of text, as a recipe has it, of a word such as output=alpaca.jsonl or wiki.txt."""
    field, is_named, path = word.rpartition("=")
    domain = {"name": Path(path).name.split(".")[0], "path": path}
    return {**domain, "field": field} if is_named else domain


def run(options: argparse.Namespace) -> None:
    if options.page is None:
        from benchmarks.budget.fill import fill
        from benchmarks.budget.setting import Setting

        setting = Setting(
            recipe=options.recipe,
            words=tuple(options.words),
            text=tuple(options.text),
            work=options.work,
            out=options.out,
            threads=options.threads,
        )
        fill(setting)
    record = read_trainings(options.page or options.out)
    if options.doc is None:
        print(law_page(record))
    else:
        options.doc.write_text(with_law(options.doc.read_text(encoding="utf-8"), record), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
