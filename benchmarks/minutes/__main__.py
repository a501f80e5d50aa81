"""Which training makes the best draft in equal minutes on this processor.

    python -m benchmarks.minutes --target models/SmolLM2-135M-Instruct --unseen mt_bench.jsonl     # fill; or, with
        --dry-run                                                                                  # cells and minutes
        --retime                                                                                   # decoding changed
    python -m benchmarks.minutes --page                                                            # print the tables
    python -m benchmarks.minutes --doc docs/losses.md --cells benchmarks/results/minutes/AMD-EPYC  # one, into a page

19 configurations train for 3 minutes each, the better third of them for 6, the better third of these for 12, and the
six best with three seeds. A cell is cut, trained by the trainer that a recipe gets, and scored on the recipe's held-out
prompts and on prompts that nothing is trained on: acceptance greedily and at temperature 1, and step times beside the
target's in the same process. What it is ranked by is the speed that this promises (benchmarks/minutes/merit.py).

Every finished cell is a file of --out; run again after an interruption, and it continues. Answers and the cache of the
teacher are made once, in --work. Nothing else may run on the machine meanwhile.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from architectures.errors import UserError
from benchmarks.minutes.cells import CONFIGURATIONS, Cell, Configuration, Plan, stages
from benchmarks.minutes.merit import ranked
from benchmarks.minutes.page import bench_page, stage_lines
from benchmarks.minutes.record import read_finished
from benchmarks.minutes.setting import Setting
from benchmarks.minutes.summary import with_summary
from distill.process.exits import report_user_errors

RECIPE = Path(__file__).parents[1] / "smollm2.yaml"


def main(argv: Sequence[str] | None = None) -> int:
    """Fill the missing cells, or print what there is or would be; the exit code of the process."""
    return report_user_errors(lambda: run(parsed(argv)))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.minutes", description="Compare trainings in equal minutes."
    )
    parser.add_argument("--target", type=Path, help="folder of the model")
    parser.add_argument("--unseen", type=Path, help="JSON lines of prompts that nothing is trained on")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="prompts, batch, rates")
    parser.add_argument("--work", type=Path, default=Path("runs/minutes"), help="answers, cache, and the cell in work")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/minutes"))
    parser.add_argument("--minutes", type=float, nargs="+", default=[3, 6, 12], help="of each stage, ascending")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the configurations --dry-run names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--finalists", type=int, default=6, help="configurations that are trained with every seed")
    parser.add_argument("--final-minutes", type=float, help="of these; as the longest stage if left out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--held-out", type=int, default=32, help="prompts of the recipe that are scored on")
    parser.add_argument("--num-unseen", type=int, default=24, help="unseen prompts, spread over the file")
    parser.add_argument("--dry-run", action="store_true", help="name cells and minutes, and make nothing")
    parser.add_argument("--retime", action="store_true", help="time the steps of all cells again, and train nothing")
    parser.add_argument("--page", action="store_true", help="print the tables of --out, and make nothing")
    parser.add_argument("--doc", type=Path, help="a page whose short table is written anew; makes nothing")
    parser.add_argument("--cells", type=Path, help="the folder that --doc is a table of")
    options = parser.parse_args(argv)
    if (options.doc is None) != (options.cells is None):
        parser.error("--doc and --cells go together")
    if not (options.page or options.doc) and (options.target is None or options.unseen is None):
        parser.error("--target and --unseen are needed, but for --page and --doc")
    return options


def run(options: argparse.Namespace) -> None:
    if options.doc is not None:
        text = with_summary(options.doc.read_text(encoding="utf-8"), options.cells)
        options.doc.write_text(text, encoding="utf-8")
        return
    if options.page:
        print(bench_page(options.out))
        return
    setting = Setting(
        recipe=options.recipe,
        target=options.target,
        unseen=options.unseen,
        work=options.work,
        out=options.out,
        threads=options.threads,
        held_out=options.held_out,
        num_unseen=options.num_unseen,
    )
    if options.retime:
        from benchmarks.minutes.times import time_again

        time_again(setting)
        print(bench_page(options.out))
        return
    plan = plan_of(options)
    if options.dry_run:
        print("\n".join(dry_run(setting, plan)))
        return
    from benchmarks.minutes.fill import fill

    fill(setting, plan)
    print(bench_page(options.out))


def plan_of(options: argparse.Namespace) -> Plan:
    """The comparison that is asked for."""
    budgets = tuple(sorted(options.minutes))
    return Plan(
        configurations=chosen(options.only),
        budgets=budgets,
        seeds=tuple(options.seeds),
        finalists=options.finalists,
        final_minutes=budgets[-1] if options.final_minutes is None else options.final_minutes,
    )


def chosen(names: Sequence[str] | None) -> tuple[Configuration, ...]:
    """The configurations of these names; all of them if none is given.

    Raises:
        UserError: If there is none of a name.
    """
    by_name = {each.name: each for each in CONFIGURATIONS}
    for name in names or ():
        if name not in by_name:
            raise UserError(f"--only {name}: there is no such configuration. There are {', '.join(by_name)}.")
    return tuple(by_name[name] for name in names or by_name)


def dry_run(setting: Setting, plan: Plan) -> Iterator[str]:
    """Every stage whose cells are known, and of the others how many cells there will be."""
    done = read_finished(setting.cells)
    names, known = {result.cell.name for result in done}, True

    def as_they_stand(cells: Sequence[Cell]) -> Sequence[Cell]:
        return ranked(cells, done) if known else cells

    before: list[Cell] = []
    for stage in stages(plan, as_they_stand):
        lines = stage_lines(stage, done, before=before)
        yield from lines if known else [lines[0]]
        known = known and all(cell.name in names for cell in stage.cells)
        before += stage.cells


if __name__ == "__main__":
    sys.exit(main())
