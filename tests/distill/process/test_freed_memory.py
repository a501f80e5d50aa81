"""A training on a processor asks the system for its memory once, not in every step."""

import platform
import sys

import pytest

from tests.processes import run

SCRIPT = """
import resource, torch
from distill.trainer import keep_freed_memory
def step():
    rows = [torch.ones(10 << 20) for _ in range(3)]  # 40 MiB each, which glibc never keeps by itself
    return sum(float(row[0]) for row in rows)
def pages():  # of each three steps
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(3):
            step()
        yield resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back = min(pages())
assert keep_freed_memory()
print(given_back, *pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_steps_after_the_first_ask_for_hardly_any_memory():
    given_back, *kept = map(int, run([sys.executable, "-c", SCRIPT], check=True).stdout.split())
    assert min(kept[1:]) < given_back / 10  # a fragmented heap still grows in some steps
    assert sum(kept) < 2 * given_back  # without it, six times as much
