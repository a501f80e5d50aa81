"""The folder of --profile: made where there is none, older profiles left until they are replaced, a file refused."""

import re

import pytest

from architectures.errors import UserError
from eval.profiling.option import require_profile_folder


def test_a_folder_is_made_with_those_above_it(tmp_path):
    require_profile_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []  # what was tried is gone


def test_what_is_in_it_stays(tmp_path):
    (tmp_path / "round.txt").write_text("older")
    require_profile_folder(tmp_path)
    assert (tmp_path / "round.txt").read_text() == "older"


def test_a_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(UserError, match=re.escape(f"--profile {tmp_path / 'x'}: is a file. Name a folder.")):
        require_profile_folder(tmp_path / "x")
    with pytest.raises(UserError, match="cannot be written to"):
        require_profile_folder(tmp_path / "x" / "y")


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("eval.profiling.option.TemporaryFile", refuse)  # root may write anywhere
    with pytest.raises(UserError, match=re.escape("cannot be written to (Permission denied). Name another folder.")):
        require_profile_folder(tmp_path)
