"""What more GPUs gain: tables of docs/scale.md, those of your own prices, and the measurements they are held against.

python -m benchmarks.scale                       # prints them; with --write into docs/scale.md
python -m benchmarks.scale --recipe my.yaml distill.global_train_batch_size=256
python -m benchmarks.scale measure               # one process and two, on this machine's processor
"""

import argparse
import sys
from pathlib import Path

from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.pages.terminal import terminal
from benchmarks.scale.measure import measure
from benchmarks.scale.measured import FILE, read_measured
from benchmarks.scale.page import DOC, Asked, blocks, scaled_recipes, with_scale
from benchmarks.scale.predicted import Network, Scaled, scaled
from distill.commands.recipe_headers import nominal_device
from distill.expected_time.devices import Device, find_device
from distill.process.exits import report_user_errors

PRICE = 2.5
PRICE_WORDS = "2.50 dollars a GPU and hour, a round number that is nobody's offer"


def options_of(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("tables", "measure"), default="tables")
    parser.add_argument("--device", help="as `widedraft check` takes it (default: the GPU of recipe headers)")
    parser.add_argument("--price", type=positive, help=f"dollars a GPU and hour (default: {PRICE})")
    parser.add_argument("--of-gpu", type=positive, default=Network.of_gpu, help="GB/s of a GPU within its node")
    parser.add_argument("--of-node", type=positive, default=Network.of_node, help="GB/s of a node to others")
    parser.add_argument(
        "--recipe", nargs="+", metavar="WORD", help="a recipe of your own, and key=value words, in the place of all"
    )
    parser.add_argument("--write", action="store_true", help="write docs/scale.md")
    parser.add_argument("--out", type=Path, default=FILE, help="of measure")
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"), help="of measure's runs")
    return parser.parse_args(words)


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def asked_of(options: argparse.Namespace) -> Asked:
    """The GPU, the network and the price that are wanted."""
    device = nominal_device() if options.device is None else find_device(options.device)
    given = options.price is not None
    words = f"{options.price:g} dollars a GPU and hour, as given" if given else PRICE_WORDS
    return Asked(device, Network(options.of_gpu, options.of_node), options.price if given else PRICE, words)


def recipes_of(options: argparse.Namespace, device: Device) -> list[Scaled]:
    """The recipe that is named, or all that come with widedraft."""
    if options.recipe is None:
        return scaled_recipes(device)
    path, *overrides = options.recipe
    return [scaled(Path(path), device, *overrides)]


def tables(options: argparse.Namespace) -> None:
    """Print the tables, or write those of the page.

    Raises:
        UserError: If the page is to be written for anything but what it always tells of.
    """
    asked = asked_of(options)
    if not options.write:
        print(terminal(*blocks(recipes_of(options, asked.device), asked, read_measured())))
        return
    if options.recipe or asked != asked_of(options_of([])):
        raise UserError("--write writes docs/scale.md, which tells of the defaults. Leave the others out.")
    write_text(with_scale(DOC.read_text(encoding="utf-8"), asked, read_measured()), DOC)


def main(words: list[str] | None = None) -> int:
    options = options_of(words)
    if options.what == "measure":
        return report_user_errors(lambda: measure(options.out, options.folder))
    return report_user_errors(lambda: tables(options))


if __name__ == "__main__":
    sys.exit(main())
