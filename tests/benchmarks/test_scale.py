"""docs/scale.md is what recipes, the figures of a GPU and the measurements say; shares and bytes add up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale.__main__ import PRICE, asked_of, main, options_of
from benchmarks.scale.measure import SAID, SETTINGS, STEP, answers_of, training_of
from benchmarks.scale.measured import ANSWERS, TRAINING, Counted, Measured, compared, read_measured
from benchmarks.scale.page import DOC, WANTED, answers_gain, hours_cell, measured_blocks, scaled_recipes, with_scale
from benchmarks.scale.predicted import GPUS, Network, Scaled, scaled
from distill.commands.recipe_headers import nominal_device
from distill.expected_time.stage_time import Part, StageTime

RECIPES = Path(__file__).parents[2] / "recipes"
DEFAULT = asked_of(options_of([]))
NO_NETWORK = Network(of_gpu=1e12, of_node=1e12)


@pytest.fixture(scope="module")
def recipes():
    return {each.name: each for each in scaled_recipes(nominal_device())}


def measured_with(seconds) -> Measured:
    """Seconds by stage, processes and threads."""
    rows = [Counted(stage, *setting, 100, 5000, seconds[stage][setting]) for stage in seconds for setting in SETTINGS]
    return Measured("AMD EPYC, 2 cores", "2026-11-26T10:00:00+00:00", "0123456789", tuple(rows))


EVEN = measured_with(
    {ANSWERS: {(1, 2): 40.0, (1, 1): 60.0, (2, 1): 31.0}, TRAINING: {(1, 2): 25.0, (1, 1): 40.0, (2, 1): 25.0}}
)


def test_the_page_is_what_its_sources_say():
    """Else: python -m benchmarks.scale --write."""
    text = DOC.read_text(encoding="utf-8")
    assert with_scale(text, DEFAULT, read_measured()) == text


def test_every_recipe_stands_there_and_none_is_unknown(recipes):
    assert set(recipes) == {path.stem for path in RECIPES.glob("*.yaml")}
    assert all(each.seconds(1, NO_NETWORK) for each in recipes.values())


def test_a_recipe_for_a_gpu_has_six_times_the_answers_on_eight(recipes):
    measured = read_measured()
    efficiency = 1.0 if measured is None else measured.efficiency(ANSWERS)
    gains = {name: answers_gain(time) for name, each in recipes.items() for time in each.times if time.name == ANSWERS}
    large = [gain for name, gain in gains.items() if "7b" in name or "8b" in name]
    assert len(large) == 12
    assert all(gain is not None and gain * efficiency >= WANTED for gain in large)


def test_no_more_gpus_than_sequences_in_a_step(recipes):
    large = recipes["llama2-7b-wide-796m"]
    assert large.most_gpus == 64
    assert hours_cell(large, 512, DEFAULT) == "64 at most"
    assert large.memory_bytes(512) is None
    assert large.memory_bytes(64) is not None


def test_cost_is_that_of_all_gpus_until_the_last_is_done(recipes):
    large = recipes["llama2-7b-wide-796m"]
    hours = large.seconds(8, DEFAULT.network) / 3600
    assert hours_cell(large, 8, DEFAULT) == f"{hours:.3g} h, ${hours * 8 * PRICE:,.2f}"
    twice = replace(DEFAULT, price=2 * PRICE)
    assert hours_cell(large, 8, twice) == f"{hours:.3g} h, ${hours * 16 * PRICE:,.2f}"


def test_times_are_those_of_check_plus_what_is_sent(recipes):
    large = recipes["llama2-7b-wide-796m"]
    [training] = [time for time in large.times if time.steps]
    for gpus in (8, 64):
        sent_s = training.steps * Network(450, 400).seconds(large.traffic(training, gpus))
        assert large.stage_s(training, gpus, Network(450, 400)) == pytest.approx(training.on(gpus) + sent_s)
    assert large.seconds(1, Network(1e-3, 1e-3)) == sum(time.seconds for time in large.times)
    slow, fast = (large.stage_s(training, 64, Network(450, of_node)) for of_node in (10, 400))
    assert slow > fast
    assert large.stage_s(training, 8, Network(450, 10)) == large.stage_s(training, 8, Network(450, 400))


def test_more_gpus_are_never_slower_and_never_beyond_amdahl(recipes):
    for each in recipes.values():
        times = [each.seconds(gpus, NO_NETWORK) for gpus in GPUS if gpus <= each.most_gpus]
        assert times == sorted(times, reverse=True)
        assert times[-1] >= each.serial_s


def test_auto_is_what_it_is_on_a_gpu_whoever_asks(monkeypatch):
    for has in (True, False):
        monkeypatch.setattr("architectures.files.number_types.has_bfloat16", lambda has=has: has)
        monkeypatch.setattr("architectures.files.number_types.many_rows_gain", lambda has=has: has)
        recipe = scaled(RECIPES / "quickstart.yaml", nominal_device()).run.recipe
        assert (recipe.target.dtype, recipe.distill.precision, recipe.eval.dtype) == (
            "bfloat16",
            "amp_bf16",
            "bfloat16",
        )


def test_measurements_stand_beside_what_was_predicted_of_them():
    parts = {ANSWERS: (Part(10.0, 1), Part(20.0, 4)), TRAINING: (Part(30.0, 8, is_even=True),)}
    times = tuple(StageTime(name, sum(p.seconds for p in each), True, "", parts=each) for name, each in parts.items())
    answers, training = ([*compared(EVEN, Scaled("quickstart", None, times))][k : k + 3] for k in (0, 3))
    assert [row[6] for row in answers] == ["30", "", "40"]  # of two: 60 s, of which 10 of 30 cannot be shared
    assert [row[7] for row in answers] == ["1.33", "", "0.78"]
    assert [row[6] for row in training] == ["30", "", "20"]


def test_efficiency_is_half_the_time_of_one():
    assert EVEN.efficiency(ANSWERS) == pytest.approx(60 / 62)
    assert EVEN.efficiency(TRAINING) == pytest.approx(0.8)


def test_the_page_tells_of_measurements_where_there_are_some():
    words = str(measured_blocks(EVEN))
    assert "0.97 at answers, 0.80 at training" in words
    assert "Not measured yet" in str(measured_blocks(None))


def test_what_commands_say_is_counted(tmp_path):
    said = "eval: 32 answers, 1,280 tokens, 64 tokens/s\nelse\ntrain: 96 answers, 4,000 tokens, 100 tokens/s\n"
    assert answers_of(said, 2, 1) == Counted(ANSWERS, 2, 1, 128, 5280, 60.0)
    assert len(SAID.findall(said)) == 2
    steps = [{"batch": n, "step/save_s": 9.0} | {f"step/{s}_s": 0.5 for s in STEP} for n in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*steps, {"batch": 2, "time/token": 200.0}])))
    assert training_of(tmp_path / "metrics.jsonl", 1, 2) == Counted(TRAINING, 1, 2, 2, 200, 6.0)


def test_the_page_tells_of_the_defaults_alone(capsys):
    before = DOC.read_bytes()
    assert main(["--write", "--price", "3"]) == 2
    assert "--write writes docs/scale.md" in capsys.readouterr().err
    assert DOC.read_bytes() == before


def test_a_price_that_is_given_is_told_as_given(capsys):
    assert main(["--price", "4", "--of-node", "50"]) == 0
    said = capsys.readouterr().out
    assert "4 dollars a GPU and hour, as given" in said
    assert "50 GB/s from a node to others" in said


def test_a_recipe_of_ones_own_with_another_batch_takes_more_gpus(capsys, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text((RECIPES / "llama2-7b-wide-796m.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["--recipe", str(own), "distill.global_train_batch_size=512"]) == 0
    said = capsys.readouterr().out
    assert "`own`" in said
    assert "at most" not in said
    assert main(["--write", "--recipe", str(own)]) == 2


def test_a_recipe_that_is_not_there_is_told_as_every_command_tells_it(capsys):
    assert main(["--recipe", "missing.yaml"]) == 2
    assert capsys.readouterr().err.startswith("missing.yaml: cannot be read")
