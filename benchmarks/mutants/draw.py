"""Draws mutants of every area: places by a seed, at each one of the operators that fit. Needs cosmic-ray alone.

python -m benchmarks.mutants.draw --seed 17 --number 60 --out mutants.jsonl
"""

import argparse
import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from benchmarks.mutants.areas import AREAS, ROOT
from benchmarks.mutants.mutant import Mutant, write_mutants

DULL = ("Variable", "RemoveDecorator", "Shift", "_Is", "USub_Not", "ExceptionReplacer", "Bit")  # many that say little


@dataclass(frozen=True)
class Breach:
    """One way of breaking one place."""

    operator: str
    occurrence: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--number", type=int, default=60, help="of each area, in the order in which they are tried")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    mutants = [mutant for area in AREAS for mutant in drawn(area, options.number, seed=options.seed)]
    write_mutants(mutants, options.out)
    print(f"{len(mutants)} mutants of {len(AREAS)} areas: {options.out}")


def drawn(area: str, number: int, *, seed: int) -> list[Mutant]:
    """Positions without replacement, each broken in one way that Python can read."""
    generator = random.Random(f"{seed} {area}")
    breakable = [(file, ways) for file in AREAS[area].modules() for ways in breaches(file).values()]
    generator.shuffle(breakable)
    mutants = (broken(area, file, generator.choice(ways)) for file, ways in breakable)
    return list(islice((mutant for mutant in mutants if mutant is not None), number))


def breaches(file: Path) -> dict[tuple[int, int], list[Breach]]:
    """What can be broken at each position of a file, in the order of the file."""
    by_position = defaultdict(list)
    nodes = list(ast_nodes(get_ast(file.read_text(encoding="utf-8"))))
    for name, operator in operators().items():
        positions = [(start, node) for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (start, node) in enumerate(positions):
            if not is_declaration(node):
                by_position[start].append(Breach(name, occurrence))
    return dict(sorted(by_position.items()))


@cache
def operators() -> dict[str, Any]:
    """Those that leave a program that can run."""
    names = sorted(name for name in operator_names() if not any(word in name for word in DULL))
    return {name: get_operator(name)() for name in names}


def is_declaration(node: Any) -> bool:
    """Whether nothing is computed there: the type of a name, a decorator, the bare `*` of arguments given by name."""
    return any(
        parent.type in ("decorator", "tname")
        or (parent.type == "annassign" and child is parent.children[1])
        or (parent.type in ("parameters", "param") and child.type == "operator")
        for parent, child in above(node)
    )


def above(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each node that holds this one, with its child on the way."""
    while node.parent is not None:
        yield node.parent, node
        node = node.parent


def broken(area: str, file: Path, breach: Breach) -> Mutant | None:
    """The lines that differ; None where nothing that can be read is left, as of a bare `*` among arguments."""
    text = file.read_text(encoding="utf-8")
    mutated = mutate_code(text, operators()[breach.operator], breach.occurrence)
    try:
        ast.parse(mutated)
    except SyntaxError:
        return None
    before, after = text.splitlines(), mutated.splitlines()
    blocks = SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes()
    [(_, first, last, start, end)] = [block for block in blocks if block[0] != "equal"]
    name, operator = str(file.relative_to(ROOT)), breach.operator.removeprefix("core/")
    return Mutant(area, name, first + 1, operator, tuple(before[first:last]), tuple(after[start:end]))


if __name__ == "__main__":
    main()
