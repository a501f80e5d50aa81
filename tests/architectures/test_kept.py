"""Parts of a pass: whole or not there, of these inputs or not there, and gone when they are no longer asked for."""

import numpy as np
import pytest

from architectures.kept import SUFFIX, Kept, remove_kept

ARRAYS = {"z": np.array([[0.1, -0.0], [1e-300, 3.0]]), "one": np.array(2.5), "whole": np.array([2**53 + 1])}


@pytest.fixture
def kept(tmp_path):
    kept = Kept(tmp_path / "parts", {"target": "x", "text": "y"})
    kept.write("first", ARRAYS)
    return kept


def test_a_part_comes_back_to_the_last_bit(kept, tmp_path):
    back = Kept(tmp_path / "parts", {"text": "y", "target": "x"}).read("first")
    assert back is not None
    assert list(back) == list(ARRAYS)
    for name, values in ARRAYS.items():
        assert (back[name].dtype, back[name].shape, back[name].tobytes()) == (
            values.dtype,
            values.shape,
            values.tobytes(),
        )


def test_parts_of_other_inputs_or_versions_are_never_read(kept, tmp_path, monkeypatch):
    assert Kept(kept.folder, {"target": "x", "text": "z"}).read("first") is None
    monkeypatch.setattr("architectures.kept.package_version", lambda name: "9.9" if name == "torch" else "1")
    assert Kept(kept.folder, {"target": "x", "text": "y"}).read("first") is None


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_damaged_part_is_none(kept, share):
    file = kept.folder / f"first{SUFFIX}"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    assert kept.read("first") is None
    assert kept.read("second") is None


def test_nothing_of_a_whole_pass_stays(kept, tmp_path):
    remove_kept(kept.folder)
    remove_kept(kept.folder)  # nor is it missed
    assert not list(tmp_path.iterdir())
