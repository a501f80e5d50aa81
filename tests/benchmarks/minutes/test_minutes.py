"""The bench at size tiny: cells are made, kept, continued, ranked and told, each in well under a second of training."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks.minutes.__main__ as asking
import benchmarks.minutes.fill as filling
from architectures.draft_vocabulary.head import head_ids
from architectures.errors import UserError
from benchmarks.minutes import training
from benchmarks.minutes.__main__ import main
from benchmarks.minutes.cells import CONFIGURATIONS, Cell, Configuration, Way
from benchmarks.minutes.inputs import OWN, UNSEEN, make_inputs, unseen_prompts
from benchmarks.minutes.merit import is_behind, merit, ranked, steps_by_shape, worths
from benchmarks.minutes.page import bench_page
from benchmarks.minutes.record import INPUTS_NAME, cell_path, read_finished, write_finished
from benchmarks.minutes.setting import Setting
from benchmarks.minutes.summary import BEGIN, END, summary, with_summary
from benchmarks.minutes.training import Clock
from eval.models.loading import load_model

pytestmark = pytest.mark.usefixtures("trainings_begin_at_once")
ROOT = Path(__file__).parents[3]
CELLS = ROOT / "benchmarks" / "results" / "minutes"
TOKENS, CACHED = "none-cross_entropy-4layers-all", "cache-negative_log_acceptance-1layers-all"
WITH_ALL_IDS = (*CONFIGURATIONS, Configuration(Way("none", ("cross_entropy",)), 4))  # the tiny target has 264
MINUTES = 0.005
HELD_OUT, NUM_UNSEEN = 7, 6

RECIPE = """\
run_name: tiny
target: {path: absent, dtype: float32}
architecture: {layers: 2, method: first_last}
data: {prompts: [{path: PROMPTS}], max_seq_len: 96, max_new_tokens: 10}
distill: {precision: fp32, global_train_batch_size: 4, scheduler: {t_warmup: 0ba}}
eval: {max_new_tokens: 8, dtype: float32}
"""


@pytest.fixture(scope="module")
def setting(tmp_path_factory, tiny_target) -> Setting:
    """Files of a tiny comparison."""
    folder = tmp_path_factory.mktemp("minutes")
    for name, count, row in (
        ("prompts", 27, lambda number: {"prompt": f"Add {number} and 2."}),
        ("unseen", 13, lambda number: {"turns": [f"Name {number} rivers.", "Which is the longest?"]}),
    ):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(count)))
    (folder / "tiny.yaml").write_text(RECIPE.replace("PROMPTS", str(folder / "prompts.jsonl")))
    return Setting(
        recipe=folder / "tiny.yaml",
        target=tiny_target,
        unseen=folder / "unseen.jsonl",
        work=folder / "work",
        out=folder / "out",
        threads=1,
        held_out=HELD_OUT,
        num_unseen=NUM_UNSEEN,
    )


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Everything in this process, which has imported what a new one would import."""
    at_hand(monkeypatch)


def at_hand(patch: pytest.MonkeyPatch) -> None:
    """No other process, and a second configuration that a tiny target has the ids for."""
    patch.setattr(filling, "in_its_own_process", lambda work, _: work())
    patch.setattr(asking, "CONFIGURATIONS", WITH_ALL_IDS)


def command(setting: Setting, *words: str) -> list[str]:
    files = {"recipe": setting.recipe, "target": setting.target, "unseen": setting.unseen}
    numbers = {"threads": 1, "held-out": HELD_OUT, "num-unseen": NUM_UNSEEN, "minutes": MINUTES, "finalists": 1}
    named = {**files, "work": setting.work, "out": setting.out, **numbers}
    options = [part for name, value in named.items() for part in (f"--{name}", str(value))]
    return [*options, "--only", TOKENS, CACHED, "--seeds", "1", "2", *words]


@pytest.fixture(scope="module")
def finished(setting):
    """The cells of two configurations and of the better one's second seed, made by the command."""
    with pytest.MonkeyPatch.context() as patch:
        at_hand(patch)
        assert main(command(setting)) == 0
    return read_finished(setting.cells)


def test_every_cell_is_a_file_that_agrees_with_itself(setting, finished):
    assert len(finished) == 3
    assert {one.cell.configuration.name for one in finished} == {TOKENS, CACHED}
    assert sorted(one.cell.seed for one in finished) == [1, 1, 2]
    for one in finished:
        (phase,) = one.phases
        assert phase.answers == 27 - HELD_OUT
        assert phase.epochs == pytest.approx(phase.steps / 5)  # batches of 4 of 20 answers
        assert phase.answer_tokens_seen == pytest.approx(10 * 20 * phase.epochs, rel=0.3)  # answers may stop earlier
        assert phase.budget_s == pytest.approx(60 * MINUTES)
        assert one.missed_by == pytest.approx(phase.seconds / phase.budget_s - 1)
        assert one.wall_s > one.train_s
        rows = {(row["set"], row["temperature"]): row for row in one.acceptance}
        assert list(rows) == [(OWN, 0.0), (OWN, 1.0), (UNSEEN, 0.0), (UNSEEN, 1.0)]
        assert [row["prompts"] for row in rows.values()] == [HELD_OUT, HELD_OUT, NUM_UNSEEN, NUM_UNSEEN]
        for row in rows.values():
            assert [entry["lookahead"] for entry in row["lookahead"]] == [1, 2, 3, 4]
            assert 0 <= row["alpha"]["value"] <= 1
        assert one.machine.threads == 1
        assert [draft["draft"] for draft in one.latency["drafts"]] == [one.cell.name]
        assert str(setting.work.parent) not in cell_path(setting.cells, one.cell).read_text()
    assert (setting.cells / INPUTS_NAME).is_file()


def test_a_second_run_makes_what_is_missing_and_nothing_else(setting, finished, monkeypatch):
    made, make_cell = [], filling.make_cell

    def noted(setting, cell, inputs):
        made.append(cell.name)
        make_cell(setting, cell, inputs)

    monkeypatch.setattr(filling, "make_cell", noted)
    before = {path: path.read_bytes() for path in setting.cells.iterdir()}
    assert main(command(setting)) == 0
    assert made == []
    assert {path: path.read_bytes() for path in setting.cells.iterdir()} == before
    gone = next(path for path in before if path.name.startswith(CACHED) and "seed1" in path.name)
    gone.unlink()
    assert main(command(setting)) == 0
    assert f"{made[0]}.json" == gone.name  # and perhaps another finalist, now that its figures are others
    kept = {path: path.read_bytes() for path in before if path != gone}
    assert {path: content for path, content in before.items() if path != gone} == kept


def test_steps_are_timed_again_and_nothing_is_trained(setting, finished, monkeypatch):
    monkeypatch.setattr("benchmarks.minutes.times.in_its_own_process", lambda work, _: work())
    before, made = {path: path.read_text() for path in setting.cells.iterdir()}, read_finished(setting.cells)
    assert main(command(setting, "--retime")) == 0
    found = read_finished(setting.cells)
    assert [replace(one, latency={}) for one in found] == [replace(one, latency={}) for one in made]
    assert all([draft["draft"] for draft in one.latency["drafts"]] == [one.cell.name] for one in found)
    times = {one.cell.name: steps_by_shape([one]) for one in found}
    assert len({str(each) for each in times.values()}) == 2  # of two shapes, in three cells
    assert all(one.latency != old.latency for one, old in zip(found, made, strict=True))
    for path, content in before.items():
        path.write_text(content)


def test_cells_of_other_inputs_are_refused(setting, finished, capsys):
    assert main(command(setting, "--threads", "2")) == 2
    said = capsys.readouterr().err
    assert "was made from other recipe, threads than this bench has now" in said
    assert "Give another --out" in said


def test_a_dry_run_makes_nothing_and_names_all(setting, finished, capsys):
    assert main(command(setting, "--dry-run", "--out", str(setting.out / "elsewhere"))) == 0
    said = capsys.readouterr().out
    assert not (setting.out / "elsewhere").exists()
    assert "0.005 minutes: 2 cells, 2 to do" in said
    assert f"     {CACHED}-0.005min-seed1" in said
    assert (
        "2 seeds of the best at 0.005 minutes: 2 cells, 1 to do" in said
    )  # the first seed is that of the stage before
    assert main(command(setting, "--dry-run")) == 0
    assert f"done {CACHED}-0.005min-seed1" in capsys.readouterr().out


def test_an_unknown_configuration_is_named(setting, capsys):
    assert main([*command(setting), "--only", "seven-layers"]) == 2
    assert "--only seven-layers: there is no such configuration. There are none-cross_entropy-1layers-4096," in (
        capsys.readouterr().err
    )


def test_the_page_marks_the_best_and_tells_what_was_seen(setting, finished):
    page = bench_page(setting.out)
    steps = steps_by_shape(finished)
    groups = {name: [one for one in finished if one.cell.configuration.name == name] for name in (TOKENS, CACHED)}
    best = max(groups, key=lambda name: merit(groups[name], steps).value)
    assert f"Best: {best}" in page
    assert "### 0.005 minutes" in page
    assert "| none cross_entropy | 4 | all | " in page
    assert "| cache negative_log_acceptance | 1 | all | " in page
    assert page.count("| best |") == 1
    assert "held out, T = 1" in page
    assert "Made once for all cells, and not counted: answers " in page


@pytest.mark.parametrize("processor", sorted(path.name for path in CELLS.iterdir()))
def test_the_table_of_the_docs_is_that_of_the_cells(processor):
    page = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    assert with_summary(page, CELLS / processor) == page


def test_the_short_table_has_a_row_for_each_configuration_and_marks_one(setting, finished, tmp_path, capsys):
    doc = tmp_path / "page.md"
    begin, end = (mark.format(setting.cells.name) for mark in (BEGIN, END))
    doc.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    assert main(["--doc", str(doc), "--cells", str(setting.cells)]) == 0
    head, *rows = doc.read_text(encoding="utf-8").split("\n\n")[1].splitlines()[:1] + summary(finished).splitlines()[2:]
    assert len(rows) == len({one.cell.configuration for one in finished})
    assert sum("| best |" in row for row in rows) == 1
    assert "| none, `cross_entropy` | 4 | all | 0.005 | " in "\n".join(rows)
    assert head.count("|") == rows[0].count("|")
    with pytest.raises(SystemExit):
        main(["--doc", str(doc)])
    assert "--doc and --cells go together" in capsys.readouterr().err


def test_two_phases_share_the_minutes_and_the_second_begins_with_the_firsts_draft(setting, finished):
    tokens, cached = Way("none", ("cross_entropy",)), Way("cache", ("forward_kl",))
    cell = Cell(Configuration(cached, 2, 259, before=tokens, epochs=1), MINUTES, 5)
    filling.make_cell(setting, cell, dict(finished[0].inputs))
    one = next(one for one in read_finished(setting.cells) if one.cell == cell)
    assert [phase.budget_s for phase in one.phases] == pytest.approx([30 * MINUTES] * 2)
    assert all(phase.steps <= 5 for phase in one.phases)
    first, second = (setting.work / "cell" / f"phase-{place}" for place in (0, 1))
    drafts = [load_model(folder, dtype="float32") for folder in (first / "draft", second / "init")]
    ours, theirs = (model.state_dict() for model in drafts)
    assert all(ours[name].equal(theirs[name]) for name in ours)
    assert [len(head_ids(model)) for model in drafts] == [259, 259]  # of 264, the others being padding
    cell_path(setting.cells, cell).unlink()


def test_unseen_prompts_are_spread_over_the_file_and_asked_once(setting):
    found = unseen_prompts(setting)
    assert [prompt.source.rsplit(":", 1)[1] for prompt in found] == ["1", "3", "5", "7", "9", "11"]
    assert not any(prompt.later_turns for prompt in found)


def test_inputs_are_made_once(setting, finished):
    again = make_inputs(setting)
    assert again["inputs"] == finished[0].inputs
    assert again["seconds"].keys() == {"answers", "cache", "scored answers"}


def other(
    one,
    *,
    name: str | None = None,
    seed: int = 1,
    draft_ms: float | None = None,
    verify_ms: float | None = None,
    better: float = 1.0,
    **machine,
):
    """A made-up cell like another one: its tokens a round, its step time and its machine changed."""
    latency, acceptance = json.loads(json.dumps([one.latency, one.acceptance]))
    if draft_ms is not None:
        for kind in ("one_token", "two_tokens"):
            latency["drafts"][0][kind]["median_ms"] = draft_ms * latency["target"]["median_ms"]
    for entry in [] if verify_ms is None else latency["verify"]:
        entry["median_ms"] = verify_ms * latency["target"]["median_ms"]
    for row in acceptance:
        for entry in row["lookahead"]:
            entry["tau"]["value"] *= better
        row["by_prompt"]["tokens"] = [count * better for count in row["by_prompt"]["tokens"]]
    configuration = one.cell.configuration if name is None else next(c for c in CONFIGURATIONS if c.name == name)
    return replace(
        one,
        cell=Cell(configuration, one.cell.minutes, seed),
        acceptance=acceptance,
        latency=latency,
        machine=replace(one.machine, **machine),
    )


def test_cells_of_one_shape_share_their_step_times(finished):
    base = next(one for one in finished if one.cell.configuration.name == TOKENS)
    cells = [other(base, seed=seed, draft_ms=time) for seed, time in ((1, 0.1), (2, 0.3), (3, 0.2))]
    steps = steps_by_shape(cells)
    assert steps[4, None].draft_s == pytest.approx(0.2)
    assert steps[4, None].target_s == 1
    values = [[worth.value for worth in worths(one, steps).values()] for one in cells]
    assert values[0] == values[1] == values[2]


def test_a_verification_costs_what_it_costs_in_all_cells(finished):
    """The target is the same whatever the draft's shape is."""
    base = next(one for one in finished if one.cell.configuration.name == TOKENS)
    wide = "live-negative_log_acceptance-6layers-all"
    cells = [other(base, verify_ms=1.1), other(base, seed=2, verify_ms=1.3), other(base, name=wide, verify_ms=1.2)]
    for times in steps_by_shape(cells).values():
        assert times.verify_s == pytest.approx(dict.fromkeys(times.verify_s, 1.2))


def test_the_order_is_that_of_the_merit_and_seeds_are_pooled(finished):
    base = next(one for one in finished if one.cell.configuration.name == TOKENS)
    wide = "live-negative_log_acceptance-6layers-all"
    cells = [other(base, draft_ms=0.1), other(base, name=wide, draft_ms=0.4)]
    steps = steps_by_shape(cells)
    merits = [merit([one], steps).value for one in cells]
    expected = sorted((one.cell for one in cells), key=lambda cell: -merits[[one.cell for one in cells].index(cell)])
    assert ranked([one.cell for one in cells], cells) == expected
    slow = [other(base, seed=seed, draft_ms=9.0) for seed in (7, 8, 9)]  # made later
    assert ranked([one.cell for one in cells], [*cells, *slow]) == expected
    better = other(base, seed=2, better=1.2)
    alone, both = merit([base], steps), merit([base, better], steps)
    assert both.value == pytest.approx(alone.value * 1.2**0.5)
    assert is_behind(alone, merit([better], steps))
    assert not is_behind(merit([better], steps), alone)
    assert not is_behind(alone, alone)
    low, high = alone.interval
    assert low <= alone.value <= high


def test_another_processors_cells_stand_apart_and_other_versions_are_said(finished, tmp_path):
    base = finished[0]
    write_finished(base, tmp_path / "one")
    write_finished(other(base, processor="Other CPU", torch="1.0"), tmp_path / "two")
    page = bench_page(tmp_path)
    assert page.count("## ") == 2 + page.count("### ")
    assert "## Other CPU\n\ntorch 1.0, 1 threads" in page
    assert "NOT ALL ALIKE" not in page
    write_finished(other(base, seed=9, torch="1.0"), tmp_path / "one")
    assert "NOT ALL ALIKE" in bench_page(tmp_path)
    assert bench_page(tmp_path / "nothing").endswith("no cell yet.")


def test_a_file_that_is_no_cell_is_named(finished, tmp_path):
    write_finished(finished[0], tmp_path)
    path = cell_path(tmp_path, finished[0].cell)
    (tmp_path / "renamed.json").write_text(path.read_text())
    with pytest.raises(UserError, match=rf"renamed\.json: holds {finished[0].cell.configuration.name}"):
        read_finished(tmp_path)
    (tmp_path / "renamed.json").write_text("{}")
    with pytest.raises(UserError, match=r"renamed\.json: schema: Field required"):
        read_finished(tmp_path)


@pytest.mark.parametrize(
    ("warm_s", "real_s", "epochs", "steps", "trainings"),
    [
        (0.1, 0.1, None, 100, 1),
        (0.1, 0.11, None, 100, 1),
        (0.1, 0.2, None, 50, 2),  # twice as slow as the warm-up: half of the steps
        (0.4, 0.1, None, 100, 2),
        (0.1, 0.3, 4, 20, 1),  # an epoch is 5 steps; a bound is no mistake
        (99.0, 0.1, None, 100, 2),  # one step at least
    ],
)
def test_a_training_that_missed_its_minutes_is_made_again(
    setting, finished, monkeypatch, warm_s, real_s, epochs, steps, trainings
):
    recipe = setting.load(setting.shared_run, ["architecture.layers=2"])
    answers = training.answers_in(training.sets_of(setting, recipe)[0])
    per_token = 5 * warm_s / sum(len(example.input_ids) for example in answers.examples)
    monkeypatch.setattr(training, "warm_seconds_per_token", lambda *_: per_token)
    monkeypatch.setattr(training, "fit_from_the_start", lambda timed, _: real_s * int(timed.distill.max_duration[:-2]))
    monkeypatch.setattr(training, "export", lambda *_: None)
    phase = training.train_phase(setting, recipe, 10.0, most_epochs=epochs)
    assert (phase.steps, phase.trainings) == (steps, trainings)
    assert phase.seconds == pytest.approx(real_s * steps)
    assert phase.epochs == pytest.approx(steps / 5)


def test_a_step_is_known_by_its_tokens():
    clock = Clock()
    clock.start_s, clock.ends_s, clock.tokens = 0.0, [5.0, 6.0, 8.0, 9.0], [10, 20, 40, 50]
    assert clock.seconds == 9.0
    assert clock.seconds_per_token == pytest.approx((9 - 6) / (50 - 20))  # the first two allocate
    clock.ends_s, clock.tokens = [5.0], [10]
    assert clock.seconds_per_token == pytest.approx(0.5)
