"""A training on a processor asks the system for its memory once, not in every step."""

import platform
import subprocess
import sys

import pytest

STEPS = 40
SCRIPT = f"""
import resource, sys, torch
from distill.trainer import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def step():
    rows = [torch.ones(10 << 20) for _ in range(3)]  # 40 MiB each, which glibc never keeps by itself
    return sum(float(row[0]) for row in rows)
for _ in range(10):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(how: str) -> int:
    """Pages that the system had to give during the steps."""
    found = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_steps_after_the_first_ask_for_hardly_any_memory():
    assert pages("kept") < pages("given back") / 10
