"""Processes whose folders are not one are told before they work, and not when a stage misses what another one made."""

import pytest

from architectures.errors import UserError
from architectures.sharing import ALONE
from distill import distributed
from distill.distributed import require_one_folder
from tests.sharing import by_processes


def test_processes_that_see_one_folder_leave_nothing_in_it(tmp_path):
    by_processes(3, lambda share: require_one_folder(share, tmp_path))
    require_one_folder(ALONE, tmp_path / "absent")
    assert not list(tmp_path.iterdir())


def test_folders_of_the_same_name_on_two_machines_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "SEEN_S", 0.0)
    told = []

    def work(share):
        folder = tmp_path / ("other" if share.index == 2 else "first")
        folder.mkdir(exist_ok=True)
        with pytest.raises(UserError) as caught:
            require_one_folder(share, folder)
        told.append(str(caught.value))

    by_processes(3, work)
    assert len(told) == 3
    assert all("process 2 of" in each for each in told)
    assert not list(tmp_path.glob("*/*"))
