"""How right the time left is that a run tells: every line of progress beside what it then took.

    python benchmarks/time_left.py recipes/quickstart.yaml --debug
    python benchmarks/time_left.py my.yaml data.num_prompts=200 --every 5

runs a recipe as `widedraft run` does, with a line of progress every few seconds in place of a minute and one for each
batch of training, and prints for every loop how many of the times that were told lie within a factor of two of the
truth. The first items of a loop are left out, of which nothing is promised, and times of less than a few seconds, which
are told in whole seconds.
"""

import argparse
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from architectures.pages.blocks import Table
from architectures.pages.terminal import terminal
from architectures.progress import track
from architectures.progress.time_left import FIRST_ITEMS, TimeLeft
from architectures.progress.track import Advance

COLUMNS = ("loop", "seconds", "told", "within a factor of two", "farthest")
LOOP = re.compile(r"^(?P<name>.+): (?P<done>\d+) of \d+, \S+ gone, (?P<left>[\d:]+) left$")
TRAINING = re.compile(r"^batch (?P<done>\d+) \((?P<share>\d+)%\): .*, (?P<left>[\d:]+) left")
ENDED = re.compile(r"^ended: (?P<name>.+)$")
LEAST_LEFT_S = 5.0


@dataclass(frozen=True)
class Told:
    """A time left, as it was told.

    Attributes:
        at_s: When.
        done: Items by then.
        left_s: Told.
    """

    at_s: float
    done: int
    left_s: float


def main() -> None:
    """Run, read along, and say how right it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+", help="of `widedraft run`")
    parser.add_argument("--debug", action="store_true", help="as of `widedraft run`")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two lines")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    words = [*options.words, *(["--debug"] if options.debug else [])]
    if options.inside:
        sys.exit(run_here(words, options.every))
    told, ends = read_along([sys.executable, __file__, *words, "--inside", "--every", str(options.every)])
    rows = [row for name, times in told.items() if (row := row_of(name, times, ends.get(name))) is not None]
    print(terminal(Table(COLUMNS, rows)))


def run_here(words: Sequence[str], every_s: float) -> int:
    """The run, with lines in quick succession and one when a loop has ended."""
    import widedraft

    plain = track.lines

    @contextmanager
    def lines(description: str, total: int, time_left: TimeLeft) -> Iterator[Advance]:
        with plain(description, total, time_left) as advance:
            yield advance
        print(f"ended: {description}", file=sys.stderr, flush=True)

    track.lines, track.LINE_INTERVAL_S = lines, every_s
    return widedraft.main(["run", *words, "distill.progress_bar=false", "distill.console_log_interval=1ba"])


def read_along(command: Sequence[str]) -> tuple[dict[str, list[Told]], dict[str, float]]:
    """What was told of every loop, and when it ended; a loop that comes again has a number."""
    told: dict[str, list[Told]] = defaultdict(list)
    ends: dict[str, float] = {}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        now_s, text = time.monotonic(), line.strip()
        print(text, file=sys.stderr)
        if (found := LOOP.match(text)) is not None:
            told[name_of(found["name"], ends)].append(Told(now_s, int(found["done"]), seconds_of(found["left"])))
        elif (found := TRAINING.match(text)) is not None:
            told["training"].append(Told(now_s, int(found["done"]), seconds_of(found["left"])))
            ends["training"] = now_s
        elif (found := ENDED.match(text)) is not None:
            ends[name_of(found["name"], ends)] = now_s
    process.wait()
    return told, ends


def name_of(loop: str, ends: dict[str, float]) -> str:
    """A name that no loop has which has ended."""
    number = 1 + sum(name == loop or name.startswith(f"{loop}, again") for name in ends)
    return loop if number == 1 else f"{loop}, again {number}"


def seconds_of(text: str) -> float:
    """0:01:30 -> 90."""
    hours, minutes, seconds = (int(part) for part in text.split(":"))
    return 3600 * hours + 60 * minutes + seconds


def row_of(name: str, told: Sequence[Told], end_s: float | None) -> tuple[object, ...] | None:
    """How right it was; None of a loop that told nothing which is promised, or did not end."""
    if end_s is None:
        return None
    promised = [each for each in told if each.done >= FIRST_ITEMS and end_s - each.at_s >= LEAST_LEFT_S]
    if not promised:
        return None
    ratios = [max(each.left_s, 0.5) / (end_s - each.at_s) for each in promised]
    right = sum(0.5 <= ratio <= 2 for ratio in ratios)
    farthest = max(ratios, key=lambda ratio: max(ratio, 1 / ratio))
    lasted_s = end_s - told[0].at_s
    return name, f"{lasted_s:.0f}", len(promised), f"{right} ({right / len(promised):.0%})", f"{farthest:.2f} times"


if __name__ == "__main__":
    main()
