"""The cores that a process may use."""

import pytest

from eval.machine import usable_cores


@pytest.mark.parametrize(("limit", "most"), [("max 100000", None), ("150000 100000", 1)])
def test_the_quota_of_a_container_limits_cores(tmp_path, limit, most):
    path = tmp_path / "cpu.max"
    path.write_text(limit)
    assert usable_cores(path) <= (most or usable_cores(tmp_path / "absent"))
