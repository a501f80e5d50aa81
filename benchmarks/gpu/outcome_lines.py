"""A plugin of pytest that writes what happens to each test, one line of JSON as it happens, also with xdist.

WIDEDRAFT_TEST_LINES=FILE pytest -p benchmarks.gpu.outcome_lines ...
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "WIDEDRAFT_TEST_LINES"


def pytest_configure(config: pytest.Config) -> None:
    """Write in the one process that hears of everything."""
    if VARIABLE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Lines(Path(os.environ[VARIABLE])))


class Lines:
    """The hooks that are told of tests."""

    def __init__(self, path: Path):
        self.path = path

    def write(self, **line: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The tests that will run here."""
        if session.items:  # none where workers collect them
            self.write(kind="collected", ids=[item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ARG002
        """The tests of all workers, as each of them found them."""
        self.write(kind="collected", ids=ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be imported."""
        if report.failed:
            self.write(kind="broken", id=report.nodeid, reason=reason_of(report), traceback=report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setting up, running or cleaning up ended."""
        told = {"reason": reason_of(report), "traceback": report.longreprtext} if report.failed else {"reason": None}
        self.write(kind=report.when, id=report.nodeid, outcome=report.outcome, seconds=report.duration, **told)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """One line of why something failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash is not None else str(report.longrepr)).strip().splitlines() or [""]
    return (lines[0] if crash is not None else lines[-1])[:300]
