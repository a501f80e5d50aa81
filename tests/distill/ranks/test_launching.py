"""Commands in several processes: how many are started, by which words, and which commands refuse to be."""

import os
import sys

import pytest

import widedraft
from distill import distributed
from distill.distributed import reject_differing
from tests.rejections import rejects


@pytest.fixture
def launched(monkeypatch):
    """The programs that a command turned into; none is started."""
    programs: list[tuple[list[str], str]] = []

    def become(_: str, words: list[str], environment: dict[str, str]) -> None:
        programs.append((words, environment["PYTHONSAFEPATH"]))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    return programs


LAUNCHER = [sys.executable, "-m", "composer", "-n"]


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["run", "r.yaml", "--processes", "3", "seed=5"], ["3", "-m", "widedraft", "run", "r.yaml", "seed=5"]),
        (["generate", "--processes=2", "r.yaml"], ["2", "-m", "widedraft", "generate", "r.yaml"]),
        (["choose", "r.yaml", "--layers", "1", "2", "--processes", "2"],
         ["2", "-m", "widedraft", "choose", "r.yaml", "--layers", "1", "2"]),
    ],
)  # fmt: skip
def test_a_command_becomes_the_launcher_of_as_many_as_it_is_told(launched, words, given):
    with pytest.raises(SystemExit):
        widedraft.main(words)
    assert launched == [([*LAUNCHER, *given], "1")]


SHARED = ["prune", "generate", "cache", "eval", "choose", "run"]
RECIPE = """
run_name: r
run_dir: {folder}/run
target: {{path: {folder}/none, placement: {placement}}}
architecture: {{layers: 2, method: first_last}}
data: {{prompts: [{{path: {folder}/none.jsonl}}]}}
distill: {{teacher: {{source: cache}}}}
"""


@pytest.fixture
def recipe_of(tmp_path):
    """The file of a recipe whose target is held so."""

    def of(placement):
        file = tmp_path / f"{placement}.yaml"
        file.write_text(RECIPE.format(folder=tmp_path, placement=placement))
        return str(file)

    return of


@pytest.mark.parametrize("command", SHARED)
@pytest.mark.parametrize("placement", ["whole", "layers"])
def test_there_is_one_process_for_every_gpu(launched, monkeypatch, recipe_of, command, placement):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    words = [command, recipe_of(placement)]
    with pytest.raises(SystemExit):
        widedraft.main(words)
    assert launched == [([*LAUNCHER, "8", "-m", "widedraft", *words], "1")]


@pytest.mark.parametrize("command", SHARED)
def test_a_spread_target_has_all_gpus_for_one_process_unless_a_number_is_named(
    launched, monkeypatch, recipe_of, capsys, command
):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    words = [command, recipe_of("whole"), "target.placement=spread"]
    assert widedraft.main(words) == 2  # its target is not there
    out, err = capsys.readouterr()
    assert out.count("target.placement is spread: ") == 1
    assert "none" in err
    assert not launched
    with pytest.raises(SystemExit):
        widedraft.main([*words, "--processes", "2"])
    assert launched == [([*LAUNCHER, "2", "-m", "widedraft", *words], "1")]


def test_a_spread_target_of_no_recipe_has_them_too(launched, monkeypatch, capsys):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    words = ["eval", "--target", "none", "--draft", "none", "--prompts", "none"]
    assert widedraft.main([*words, "--target-placement", "spread"]) == 2
    assert "GPUs" in capsys.readouterr().out
    assert not launched
    with pytest.raises(SystemExit):
        widedraft.main(words)
    assert launched[0][0][:5] == [*LAUNCHER, "8"]


def test_a_recipe_that_is_wrong_is_told_before_processes_are_started(launched, monkeypatch, capsys):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    assert widedraft.main(["run", "missing.yaml"]) == 2
    assert "missing.yaml" in capsys.readouterr().err
    assert not launched


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "missing.yaml", "--processes", "1"],
        ["cache", "missing.yaml", "--verify"],
        ["eval", "--recorded", "missing", "--draft", "missing"],
        ["distill", "missing.yaml"],  # whose training has processes of its own
        ["check", "missing.yaml"],
    ],
)
def test_what_one_process_does_is_started_once(launched, monkeypatch, words, capsys):
    monkeypatch.setattr(distributed, "gpus_here", lambda: 8)
    assert widedraft.main(words) == 2
    assert not launched
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("world", "words", "refused"),
    [
        (2, ["report", "r"], "2 processes"),
        (2, ["check", "r.yaml"], "widedraft check"),
        (2, ["cache", "r.yaml", "--verify"], "widedraft cache"),
        (2, ["run", "r.yaml", "--processes", "2"], "--processes"),
        (1, ["cache", "r.yaml", "--verify", "--processes", "2"], "--processes"),
        (1, ["eval", "--recorded", "a", "--draft", "b", "--processes", "2"], "--processes"),
        (1, ["run", "r.yaml", "--processes", "0"], "--processes"),
    ],
)
def test_what_processes_cannot_share_is_refused(launched, monkeypatch, capsys, world, words, refused):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    assert widedraft.main(words) == 2
    assert refused in capsys.readouterr().err
    assert not launched


def test_processes_that_differ_are_told_of_the_first_keys():
    same = {"seed": "17", "data.batch_size": "8"}
    reject_differing("recipe", [same, same, dict(same)])
    with rejects(0, 2, 3, "more", "seed", 17, 18):
        reject_differing("recipe", [same, same, {**same, "seed": "18", "more": "a" * 64}])
