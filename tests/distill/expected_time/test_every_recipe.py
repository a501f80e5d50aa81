"""Every recipe on every kind of device: a time that can be, or the reason why there is none."""

from math import isfinite
from pathlib import Path

import pytest

from distill.checking.check import timed_run
from distill.checking.planned_cut import planned
from distill.estimates.expected_work import unwritten_work
from distill.expected_time.devices import Device, find_device
from distill.expected_time.page import time_rows, time_title
from distill.expected_time.stages import stage_times
from distill.recipe.recipe import load_recipe
from distill.recipe.sections.teacher import Cache, keeps_states
from eval.prompts import Prompt

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
SMALL = ("quickstart", "smollm2-chat", "smollm2-gsm8k", "smollm2")
HOUR = 3600.0
SENSIBLE_S = {  # least and most of a whole run, by device and kind of recipe
    ("published", "small"): (5.0, 0.5 * HOUR),
    ("published", "flagship"): (5.0, 0.5 * HOUR),
    ("published", "large"): (1.0 * HOUR, 10 * HOUR),
    ("h100", "small"): (5.0, 0.5 * HOUR),
    ("h100", "flagship"): (5.0, 0.5 * HOUR),
    ("h100", "large"): (1.0 * HOUR, 10 * HOUR),
    ("cores", "small"): (3 * 60.0, 1.0 * HOUR),
    ("cores", "flagship"): (1.0 * HOUR, 3.0 * HOUR),  # it took 2.2 hours beside other work
    ("cores", "large"): (1000 * HOUR, 1e5 * HOUR),
}


@pytest.fixture
def device(request, device_file, records, tmp_path) -> Device:
    if request.param == "nobody":
        return Device("Some Processor, 4 cores")
    if request.param == "published":
        return find_device("nvidia-h100-80gb-hbm3", (tmp_path / "none",))
    return find_device(str(device_file(records[request.param])))


def run_of(path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str):
    for name in ("has_bfloat16", "many_rows_gain"):
        monkeypatch.setattr(f"architectures.files.number_types.{name}", lambda: True)  # what `auto` is on any of these
    if path.stem in SMALL and not (ROOT / "models" / "SmolLM2-135M-Instruct" / "config.json").is_file():
        pytest.skip("models/SmolLM2-135M-Instruct is not there; `make test` fetches it")
    monkeypatch.chdir(ROOT)
    recipe = load_recipe(path, overrides)
    question = Prompt("test:1", ({"role": "user", "content": "Why does bread rise when you bake it?" * 3},))
    sources = [
        [question] * (source.num_prompts or 570) if path.stem in SMALL else None for source in recipe.data.prompts
    ]
    return timed_run(recipe, planned(recipe), unwritten_work(recipe, sources), sources)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("device", ["published", "h100", "cores"], indirect=True)
def test_a_known_device_has_a_time_for_every_stage(path, device, request, monkeypatch):
    found = stage_times(run_of(path, monkeypatch), device)
    teacher = load_recipe(path).distill.teacher
    cached = isinstance(teacher, Cache) and not keeps_states(teacher)
    assert [time.name for time in found] == ["answers", *(["teacher cache"] if cached else []), "training", "scorecard"]
    seconds = [time.seconds for time in found]
    assert all(each is not None and isfinite(each) and each > 0 for each in seconds)
    kind = "flagship" if path.stem == "smollm2-chat" else "small" if path.stem in SMALL else "large"
    least, most = SENSIBLE_S[request.node.callspec.params["device"], kind]
    assert least < sum(each or 0 for each in seconds) < most
    assert all("assumed" in time.words or time.measured or time.name == "scorecard" for time in found)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("device", ["nobody"], indirect=True)
def test_an_unknown_one_says_how_to_measure_it(path, device, monkeypatch):
    [(title, words)] = time_rows(run_of(path, monkeypatch), device)
    assert title == "not estimated"
    assert words.startswith("`python -m benchmarks.gpu --size laptop` in a checkout measures it")
    assert time_title(device) == "time on Some Processor, 4 cores (unknown: it has not been measured)"


@pytest.mark.parametrize("device", ["cores"], indirect=True)
def test_a_run_of_two_cores_takes_about_as_long_as_it_took(device, monkeypatch):
    """The quickstart as it was at commit 9cbd9e0: generate 112, distill 225, eval 116 s, with loading.

    It decoded 12 prompts live, all greedily; six at each of two temperatures are as many.
    """
    run = run_of(ROOT / "benchmarks" / "smollm2.yaml", monkeypatch, "eval.live_prompts=6")
    assert len(run.recipe.eval.temperatures) == 2
    times = {time.name: time for time in stage_times(run, device)}
    took = {"answers": 112, "training": 225, "scorecard": 116}
    for name, seconds in took.items():
        assert times[name].seconds == pytest.approx(seconds, rel=0.5), name
    assert (times["answers"].measured, times["training"].measured) == (True, True)


@pytest.mark.parametrize(
    ("device", "title"),
    [
        ("published", "(assumed: nobody has measured it, speeds follow from what its maker publishes)"),
        ("h100", "(measured 2026-12-01, "),
    ],
    indirect=["device"],
)
def test_the_title_says_measured_with_its_file_or_assumed(device, title):
    said = time_title(device)
    assert said.startswith(f"time on NVIDIA H100 80GB HBM3 {title}")
    assert device.figures is None or said.endswith(f"{device.figures.file})")
