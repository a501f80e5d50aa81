"""No checkpoint runs code: a planted one is refused wherever one is read, unless the user says it is trusted."""

import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import widedraft
from architectures.errors import UserError
from distill.checkpoints.checkpoint_files import OPTION, REJECT_CODE, TRUST, VALIDATION_VARIABLE, find_checkpoints
from distill.checkpoints.folders import damage
from distill.checkpoints.saving import is_free_of_code, read_checkpoint
from distill.export import saved_models
from distill.run import Run
from distill.train import main, train
from tests.distill.after_training import assert_equal, in_a_pickle, last_state, plant
from tests.rejections import rejects

ROOT = Path(__file__).parents[2]


def in_an_algorithm(saved: dict[str, Any], mark: Path) -> None:
    """Composer evaluates this text."""
    text = f"Alibi.__name__ and __import__('os').system('touch {mark}')"
    saved["state"]["algorithms"].append(("Alibi", {"repr": text}))


def in_an_algorithm_of_an_old_name(saved: dict[str, Any], mark: Path) -> None:
    in_an_algorithm(saved, mark)
    saved["state"]["_algorithms"] = saved["state"].pop("algorithms")


PLANTED = {
    in_a_pickle: "posix.system",
    in_an_algorithm: "Alibi",
    in_an_algorithm_of_an_old_name: "Alibi",
}


@pytest.fixture(autouse=True)
def untrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VALIDATION_VARIABLE, "")  # put back after the test


@pytest.fixture
def trained(make_run: Callable[..., Any]) -> Any:
    """A recipe whose run has one checkpoint and asks for another batch."""
    train(make_run(max_duration="1ba"))
    recipe = make_run("longer", max_duration="2ba")
    (Path(recipe.run_dir).parent / "run" / "checkpoints").rename(Path(recipe.run_dir) / "checkpoints")
    return recipe


def only_checkpoint(recipe: Any, folder: str = "checkpoints") -> Path:
    return find_checkpoints(Path(recipe.run_dir) / folder)[-1]


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_checkpoint_is_neither_continued_nor_exported(trained, tmp_path, capsys, what):
    path, mark, recipe = only_checkpoint(trained), tmp_path / "mark", str(Path(trained.run_dir) / "recipe.yaml")
    plant(path, what, mark)
    for command in (lambda: main([recipe]), lambda: widedraft.main(["export", recipe, "export.checkpoint=latest"])):
        assert command() == 2
        said = capsys.readouterr().err
        assert f"{path}:" in said
        assert PLANTED[what] in said
    with rejects(path, PLANTED[what]):
        saved_models(Run.of(trained))
    assert not mark.exists()


@pytest.mark.parametrize("what", [in_a_pickle, in_an_algorithm])
def test_trust_is_given_by_the_option_alone(trained, tmp_path, what):
    mark, recipe = tmp_path / "mark", str(Path(trained.run_dir) / "recipe.yaml")
    plant(only_checkpoint(trained), what, mark)
    assert main([recipe]) == 2
    assert os.environ[VALIDATION_VARIABLE] == REJECT_CODE
    assert not mark.exists()
    if what is in_a_pickle:  # Composer cannot train on with the other, and neither reads it before
        assert main([recipe, OPTION]) == 0
    else:
        with rejects(error=ValueError):
            main([recipe, OPTION])
    assert os.environ[VALIDATION_VARIABLE] == TRUST
    assert mark.exists()


def test_the_option_without_checkpoints_to_read_is_refused(trained, capsys):
    recipe = str(Path(trained.run_dir) / "recipe.yaml")
    assert widedraft.main(["eval", recipe, OPTION]) == 2
    assert f"{OPTION}: needs --checkpoints" in capsys.readouterr().err


def test_an_honest_checkpoint_reads_as_it_was_written(trained):
    path = only_checkpoint(trained)
    assert is_free_of_code(path)
    saved = read_checkpoint(path)
    assert_equal(saved["state"]["model"], last_state(trained)["model"])
    assert_equal(saved["state"]["optimizers"], last_state(trained)["optimizers"])


class Length:
    """Names a function that does no harm, which is still no class that a training saves."""

    def __reduce__(self) -> tuple[Any, ...]:
        return len, ("abc",)


def test_anything_but_what_trainings_save_is_refused_by_its_name(trained):
    path = only_checkpoint(trained)
    foreign = {"builtins.len": Length(), "pathlib": Path("x"), "numpy._core.multiarray.scalar": np.float64(1)}
    for name, value in foreign.items():
        torch.save({**torch.load(path, weights_only=False), "more": value}, path)
        with rejects(path, name, OPTION):
            read_checkpoint(path)
        saved = torch.load(path, weights_only=False)
        del saved["more"]
        torch.save(saved, path)


def zipped(path: Path, pickled: bytes, **entries: bytes) -> Path:
    """What torch.save would have written around a pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"data.pkl": pickled, "version": b"3\n", "byteorder": b"little", **entries}.items():
            archive.writestr(f"archive/{name}", content)
    return path


PICKLES = {
    "no end": b"\x80\x02}",
    "another protocol": pickle.dumps({"state": {"model": {}}}, protocol=5),
    "a stack that is not there": b"\x80\x020.",
    "a memo that is not there": b"\x80\x02h\x07.",
    "no model": b"\x80\x02}X\x05\x00\x00\x00state}s.",
    "a call of what is not callable": b"\x80\x02K\x07)R.",
    "an old global": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
    "an instance": b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n.",
    "a global from the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "an algorithm that is a number": pickle.dumps({"state": {"model": {}, "algorithms": 5}}, protocol=2),
}


@pytest.mark.parametrize("name", PICKLES)
def test_bytes_that_no_training_wrote_are_refused_with_one_message(tmp_path, name):
    path = zipped(tmp_path / "ep0-ba1-rank0.pt", PICKLES[name])
    with rejects(path):
        read_checkpoint(path)


def test_a_script_of_torch_is_no_checkpoint(tmp_path):
    path = zipped(
        tmp_path / "ep0-ba1-rank0.pt", pickle.dumps({}, protocol=2), **{"constants.pkl": b"", "code/x.py": b""}
    )
    with rejects(path):
        read_checkpoint(path)


def test_a_pickle_without_an_archive_is_damage(tmp_path):
    path = tmp_path / "ep0-ba1-rank0.pt"
    torch.save({"state": {"model": {}}}, path, _use_new_zipfile_serialization=False)
    assert damage(path) is not None
    with rejects(path):
        read_checkpoint(path)


def test_an_archive_that_grows_when_it_is_unpacked_is_not_unpacked(tmp_path):
    path = tmp_path / "ep0-ba1-rank0.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10_000_000))
    assert path.stat().st_size < 20_000
    assert damage(path) == "its entries are larger than the file"


def test_a_pipe_is_no_checkpoint(tmp_path):
    os.mkfifo(tmp_path / "ep0-ba1-rank0.pt")
    assert find_checkpoints(tmp_path) == []


@pytest.mark.usefixtures("warm")
def test_composer_asks_before_it_reads(trained, tmp_path):
    """Without the check of our own, as a Trainer that somebody else makes would."""
    mark = tmp_path / "mark"
    plant(only_checkpoint(trained), in_a_pickle, mark)
    code = "import sys; from composer.utils.checkpoint import safe_torch_load; safe_torch_load(sys.argv[1])"
    environment = {**os.environ, VALIDATION_VARIABLE: REJECT_CODE, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(only_checkpoint(trained))]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "architectures.errors.UserError" in completed.stderr
    assert not mark.exists()


@pytest.fixture(scope="module")
def small_archive(tmp_path_factory) -> Path:
    """A file with the kinds of values that a checkpoint has."""
    path = tmp_path_factory.mktemp("small") / "ep0-ba1-rank0.pt"
    state = {
        "model": {"a": torch.zeros(2)},
        "algorithms": [("GradientNorm", {"repr": "x"})],
        "wct": timedelta(seconds=1),
    }
    torch.save({"state": state, "rng": [np.random.default_rng(3).bit_generator.state, np.zeros(3)]}, path)
    return path


@settings(max_examples=100, deadline=timedelta(seconds=5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 2000),
)
@example(edits=[(1, 0)], cut=0)  # another protocol of pickles, which torch warns of
def test_any_bytes_are_a_checkpoint_or_refused(small_archive, tmp_path, edits, cut):
    with zipfile.ZipFile(small_archive) as archive:
        entries = {entry.filename.split("/", 1)[1]: archive.read(entry) for entry in archive.infolist()}
    pickled = bytearray(entries.pop("data.pkl"))
    for place, byte in edits:
        pickled[place % len(pickled)] = byte
    path = zipped(tmp_path / "ep0-ba1-rank0.pt", bytes(pickled[: len(pickled) - cut % 100]), **entries)
    try:
        assert "model" in read_checkpoint(path)["state"]
    except UserError as error:
        assert str(path) in str(error)  # noqa: PT017  # either will do
