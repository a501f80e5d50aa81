"""What is broken, area by area, and which tests have to notice. No torch: both environments import this."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Area:
    """Packages of the source, and tests of them: folders or files."""

    packages: tuple[str, ...]
    tests: tuple[str, ...]

    def modules(self) -> list[Path]:
        """Files of the packages that hold more than a docstring."""
        return [
            file
            for package in self.packages
            for file in sorted((ROOT / package).glob("*.py"))
            if file.stem != "__init__"
        ]

    def test_files(self) -> list[str]:
        """From the root of the repository."""
        return sorted({file for test in self.tests for file in test_files(test)})


AREAS = {
    "losses": Area(
        ("distill/formulas", "distill/losses"),
        (
            "tests/distill/formulas",
            "tests/distill/losses",
            "tests/distill/test_model.py",
            "tests/distill/test_small_heads.py",
            "tests/distill/test_training_faults.py",
        ),
    ),
    "rules": Area(
        ("eval/decoding",),
        (
            "tests/eval/decoding",
            "tests/eval/checks/test_inflation.py",
            "tests/eval/checks/test_near_ties.py",
            "tests/eval/checks/test_verify.py",
        ),
    ),
    "caches": Area(
        ("distill/teacher_cache", "distill/teacher", "eval/steps"),
        ("tests/distill/teacher_cache", "tests/distill/teacher", "tests/eval/decoding"),
    ),
    "masks": Area(
        ("architectures/masks", "distill/masks"),
        ("tests/architectures/masks", "tests/distill/masks"),
    ),
    "resume": Area(
        ("distill/checkpoints", "distill/run", "distill/exporting", "eval/answers"),
        (
            "tests/distill/checkpoints",
            "tests/distill/run",
            "tests/eval/answers",
            "tests/distill/test_checkpoint_reading.py",
            "tests/distill/test_export.py",
            "tests/distill/test_train.py",
        ),
    ),
    "scoring": Area(
        ("eval/acceptance", "eval/scorecard", "eval/rounds", "eval/policies"),
        ("tests/eval/acceptance", "tests/eval/scorecard", "tests/eval/rounds", "tests/eval/policies"),
    ),
}


def test_files(test: str) -> list[str]:
    """Of a folder, or the file itself."""
    path = ROOT / test
    files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    return [str(file.relative_to(ROOT)) for file in files]


@cache
def naming(module: str) -> frozenset[str]:
    """Test files of the whole project that import a module of the source, given as `eval.decoding.rules`."""
    package, name = module.rsplit(".", 1)
    named = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b")
    return frozenset(file for file in test_files("tests") if named.search((ROOT / file).read_text(encoding="utf-8")))


def chosen_tests(area: str, file: str, seconds: dict[str, float]) -> list[str]:
    """Which files to run: those of its own package, then those that import what is broken, then those of its area.

    Args:
        area: Of the broken file.
        file: That is broken.
        seconds: Of test files; those that end sooner come first.
    """
    importing, own_tests = naming(file.removesuffix(".py").replace("/", ".")), f"tests/{Path(file).parent}/"
    everything = {*importing, *AREAS[area].test_files()}
    return sorted(
        everything, key=lambda test: (not test.startswith(own_tests), test not in importing, seconds.get(test, 0))
    )
