"""Which shapes are candidates, which stay untrained, those in play train on, also by two; a recipe is the winner."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from architectures.errors import UserError
from distill import pipeline, train
from distill.checkpoints.checkpoint_files import find_checkpoints
from distill.choose import search
from distill.choose.candidates import DEPTHS, Candidate, ChooseSettings, candidates_of
from distill.choose.search import choose, in_play, measured_steps, short_run, trained_together, worth_training
from distill.recipe.recipe import load_recipe, save_recipe
from distill.run import Run
from eval import scorecard
from eval.intervals import Resampling
from eval.speedup import Prospect, Ranked, prospect, step_times
from tests.distill.run.test_progressive import TINY
from tests.eval.records import latency
from tests.rejections import rejects
from tests.sharing import by_processes

RESAMPLING = Resampling(0.95, 200, 17)


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ((1.0, 0.0), "a"),
        ((0.97, 0.03), "ab"),
        ((1.0, 0.0, 0.0), "ab"),
        ((0.9, 0.05, 0.0, 0.05), "abd"),
        ((0.9, 0.0, 0.0, 0.024, 0.076), "abce"),
    ],
)
def test_the_better_half_and_whoever_may_be_first_are_in_play(shares, kept):
    ranked = [Ranked(name, 4, 1.0, (0.9, 1.2), 20.0, share) for name, share in zip("abcde", shares, strict=False)]
    assert "".join(each.draft for each in in_play(ranked)) == kept
    unsure = [replace(each, interval=None) for each in ranked]
    assert in_play(unsure) == unsure


def test_hopeless_and_dominated_shapes_are_left_out(recipe, source):
    shapes = {"one": 1, "two": 2, "three": 3}
    candidates = [Candidate(name, replace(source, layers=layers), recipe) for name, layers in shapes.items()]
    hopeful, hopeless = Prospect(4, 0.3, 0.2, 2.5), Prospect(1, None, 1.2, 0.8)
    times = latency(40.0, {1: 42.0}, {"one": (8.0, 8.0), "two": (6.0, 6.0), "three": (48.0, 48.0)}, 0.01)
    kept, out = worth_training(candidates, times, {"one": hopeful, "two": hopeful, "three": hopeless}, RESAMPLING)
    assert [each.name for each in kept] == ["two"]  # deeper than one, and faster
    assert [each.candidate for each in out] == ["three", "one"]
    slower = latency(40.0, {1: 42.0}, {"one": (4.0, 4.0), "two": (6.0, 6.0), "three": (48.0, 48.0)}, 0.01)
    kept, _ = worth_training(candidates, slower, dict.fromkeys(shapes, hopeful), RESAMPLING)
    assert len(kept) == 3


def test_steps_are_measured_for_every_candidate(recipe, source, tiny_target):
    config = recipe.eval.model_copy(update={"num_speculative_tokens": (1, 2)})
    settings = ChooseSettings(recipe=Path("r.yaml"), layers=(1, 3), batch_size=2, context=8)
    candidates, _ = candidates_of(recipe, source, settings)
    timed = measured_steps(recipe.model_copy(update={"eval": config}), tiny_target, candidates, settings)
    assert (timed.batch, timed.context_tokens) == (2, 8)
    found = {name: prospect(each) for name, each in step_times(timed).items()}
    assert 0 < found["1-layers"].cost_ratio < found["3-layers"].cost_ratio


CACHED = "distill.teacher={source: cache}"  # candidates share responses and cache


@pytest.mark.usefixtures("step_times", "training_here")
def test_candidates_are_trained_and_the_winner_is_a_recipe(run_choose, recipe_file, tmp_path, capfd):
    own = (CACHED, "distill.max_duration=3ba")  # of the winner
    assert run_choose(*own, "--layers", 1, 2, 3, "--duration", "2ba", "--longest", "2ba") == 0
    run = tmp_path / "out"
    record = json.loads((run / "choose" / "choice.json").read_text())
    assert [each["candidate"] for each in record["left_out"]] == ["3-layers"]
    [ranked] = record["rankings"].values()
    assert {each["draft"] for each in ranked} == {"1-layers", "2-layers"}
    assert sorted(path.name for path in (run / "choose" / "2ba").iterdir()) == ["1-layers", "2-layers", "eval"]
    assert not (run / "draft").exists()
    chosen, given = load_recipe(run / "choose" / "recipe.yaml"), load_recipe(recipe_file, [*TINY, *own])
    assert chosen.run_name == f"tiny-{ranked[0]['draft']}"
    assert f"{chosen.architecture.layers}-layers" == ranked[0]["draft"]
    assert (chosen.architecture.intermediate, chosen.architecture.method) == (96, "first_last")
    assert (chosen.distill, chosen.data, chosen.eval) == (given.distill, given.data, given.eval)
    assert Path(chosen.run_dir) == run.with_name(chosen.run_name)
    capfd.readouterr()

    words = ("--layers", 1, 2, "--duration", "2ba", "--longest", "2ba", "--out", tmp_path / "mine.yaml")
    assert run_choose(*own, *words) == 0
    printed = capfd.readouterr().out
    for name in ("1-layers", "2-layers"):
        assert f"{run / 'choose' / '2ba' / name / 'draft'}: up to date" in printed
    assert load_recipe(tmp_path / "mine.yaml").architecture.intermediate == 96


@pytest.mark.parametrize(("given", "found"), [("0.05dur", "0.25dur"), ("0ba", None)])
def test_short_training_runs_warm_up_for_longer(recipe_file, given, found):
    recipe = load_recipe(recipe_file, [f"distill.scheduler.t_warmup={given}"])
    assert short_run(recipe, "9ba").get("distill.scheduler.t_warmup") == found


@pytest.mark.usefixtures("step_times")
@pytest.mark.parametrize("words", [("--layers", 3), ("--layers", 1, 2, 3, "--untrained")])
def test_nothing_is_trained_where_nothing_can_pay_or_nothing_was_asked(run_choose, tmp_path, words):
    assert run_choose(*words) == 0
    assert [path.name for path in (tmp_path / "out" / "choose").iterdir()] == ["choice.json"]


@pytest.mark.usefixtures("step_times", "training_here")
def test_a_search_that_was_stopped_goes_on_where_it_was(run_choose, tmp_path, capsys, monkeypatch):
    """The second training stops the first time; the first one's drafts and scorecard are then as they were."""
    words = ("--layers", 1, 2, "--duration", "2ba", "--longest", "4ba")
    scored = []

    def stopped(target, found, *rest, **named):
        scored.append(sorted(found))
        if len(scored) == 2:
            raise UserError("stopped")
        return score(target, found, *rest, **named)

    score = scorecard.score_drafts
    monkeypatch.setattr(scorecard, "score_drafts", stopped)
    assert run_choose(*words) == 2
    choose = tmp_path / "out" / "choose"
    assert run_choose(*words) == 0
    printed = capsys.readouterr().out
    assert scored == [["1-layers", "2-layers"]] * 3
    for made in ("2ba/1-layers/draft", "2ba/2-layers/draft", "4ba/1-layers/draft", "2ba/eval"):
        assert f"{choose / made}: up to date" in printed
    assert list(json.loads((choose / "choice.json").read_text())["rankings"]) == ["2ba", "4ba"]
    first, second = (choose / length / "1-layers" / "checkpoints" for length in ("2ba", "4ba"))
    assert [path.name for path in find_checkpoints(first)] == ["ep1-ba2-rank0.pt"]
    [earlier, later] = find_checkpoints(second)
    assert earlier.resolve() == (first / "ep1-ba2-rank0.pt").resolve()
    assert not later.is_symlink()
    lines = (second.parent / "logs" / "metrics.jsonl").read_text().splitlines()
    assert min(json.loads(line)["batch"] for line in lines) >= 2  # what was trained is not trained again
    assert (choose / "2ba" / "eval" / "responses").resolve() == (choose / "4ba" / "eval" / "responses").resolve()


@pytest.mark.parametrize(
    ("words", "together"),
    [
        ([], False),
        (["distill.parallelism=fsdp2"], True),
        (["distill.teacher={parallelism: fsdp2}"], True),
    ],
)
def test_candidates_that_are_held_in_shards_are_trained_by_all_processes(recipe_file, words, together):
    recipe = load_recipe(recipe_file, [*TINY, "distill.device_train_microbatch_size=1", *words])
    assert trained_together(Run.of(recipe)) == together


def asked(**values) -> ChooseSettings:
    return ChooseSettings.model_validate({"recipe": Path("r.yaml"), **values}, strict=False)


def names(found) -> list[str]:
    return [each.name for each in found[0]]


def test_depths_of_the_recipe(recipe, source, tmp_path):
    found, out = candidates_of(recipe, source, asked(layers=(3, 1, 1)))
    assert ([one.name for one in found], out) == (["1-layers", "3-layers"], [])
    for one in found:
        assert (one.shape.intermediate, one.shape.hidden) == (96, source.hidden)
        assert one.recipe.run_dir == str(tmp_path / "out" / "choose" / one.name)
        assert (one.recipe.data, one.recipe.distill, one.recipe.seed) == (recipe.data, recipe.distill, recipe.seed)
        save_recipe(one.recipe, tmp_path / "one.yaml")
        assert load_recipe(tmp_path / "one.yaml") == one.recipe
    usual = [f"{depth}-layers" for depth in DEPTHS if depth < source.layers]
    assert names(candidates_of(recipe, source, asked())) == usual


def test_every_width_and_head_with_every_depth(recipe, source):
    settings = asked(layers=(1, 2), hidden_sizes=("0.5x", "all"), vocabularies=("all", 260))
    found, _ = candidates_of(recipe, source, settings)
    bodies = ["1-layers-32-hidden", "1-layers", "2-layers-32-hidden", "2-layers"]
    assert [one.name for one in found] == [name for body in bodies for name in (f"{body}-260-ids", body)]
    assert {(one.shape.hidden, one.shape.head_rows) for one in found} == {(32, 260), (32, 264), (64, 260), (64, 264)}


def test_no_candidate_is_larger_than_allowed(recipe, source):
    [small, large], _ = candidates_of(recipe, source, asked(layers=(1, 2)))
    bound = small.shape.parameters()
    kept, [out] = candidates_of(recipe, source, asked(layers=(1, 2), max_parameters=bound))
    assert ([one.name for one in kept], out.candidate) == ([small.name], large.name)
    with rejects("1-layers"):
        candidates_of(recipe, source, asked(layers=(1, 2), max_parameters=bound - 1))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"layers": (99,)}, "layers 99"),
        ({"heads": (8,)}, "--heads 8"),
        ({"vocabularies": (264,)}, "--vocabularies 264"),
    ],
)
def test_sizes_that_cannot_be(recipe, source, values, named):
    with rejects(named):
        candidates_of(recipe, source, asked(**values))


@pytest.mark.parametrize(("key", "value"), [("method", "learned_masks"), ("plan", "plan.json")])
def test_recipes_with_one_shape_only(recipe, source, key, value):
    of_one = recipe.architecture.model_copy(update={key: value})
    with rejects(f"architecture.{key}"):
        candidates_of(recipe.model_copy(update={"architecture": of_one}), source, asked(layers=(1,)))


@pytest.mark.parametrize(
    ("first", "longest", "lengths"),
    [
        ("100ba", None, ["100ba", "200ba", "400ba"]),
        ("100ba", "100ba", ["100ba"]),
        ("100ba", "300ba", ["100ba", "200ba", "300ba"]),
        ("1_000tok", "4000tok", ["1_000tok", "2000tok", "4000tok"]),
    ],
)
def test_training_runs_are_twice_as_long_each_time(first, longest, lengths):
    assert asked(duration=first, longest=longest).lengths == lengths


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--longest", "99ba"), "--longest 99ba"),
        (("--longest", "2ep"), "--longest 2ep"),
        (("--duration", "soon"), "--duration"),
        (("--untrained", "--out", "mine.yaml"), "--out"),
        (("--out", "."), "--out ."),
        (("--hidden-sizes", "2x"), "--hidden-sizes"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(run_choose, tmp_path, capsys, words, flag):
    assert run_choose(*words) == 2
    assert flag in capsys.readouterr().err
    assert not (tmp_path / "out" / "data").exists()


LAYERS = (1, 2)


@pytest.fixture
def fatal() -> list[int]:
    """The how-manieth training nobody ends."""
    return []


@pytest.fixture
def trained(monkeypatch, trainings_begin_at_once, step_times, fatal) -> list[str]:
    """Folders of the trainings that were begun; who begins the one that its fixture `fatal` names is killed."""
    begun = list[str]()

    def run_training(run: Run) -> None:
        begun.append(run.folder.name)
        if len(begun) in fatal:
            fatal.clear()
            raise MemoryError("killed")
        train.main(run.training_words)

    monkeypatch.setattr(pipeline, "run_training", run_training)
    monkeypatch.setattr(train, "restore_signals", lambda: None)
    return begun


def found(recipe: Path) -> tuple[dict[str, bytes], object]:
    """Weights of all candidates, and their acceptance."""
    folder = recipe.parent / "out" / "choose" / "2ba"
    weights = {path.parent.parent.name: path.read_bytes() for path in folder.glob("*/draft/model.safetensors")}
    return weights, json.loads((folder / "eval" / "scorecard.json").read_text())["acceptance"]


def choose_by(processes: int, recipe: Path, *words: str, longest: str = "2ba") -> None:
    settings = ChooseSettings(recipe=recipe, layers=LAYERS, duration="2ba", longest=longest)
    words = (str(recipe), *TINY, *words)
    by_processes(processes, lambda share: choose(Run.of(load_recipe(recipe, words[1:]), share, words), settings))


def test_a_lost_process_costs_the_training_it_was_at_and_two_make_the_drafts_of_one(recipe_file, trained, fatal):
    fatal.append(2)
    with pytest.raises(MemoryError):
        choose_by(2, recipe_file)
    assert len(trained) == 2
    ended = trained[0]
    trained.clear()
    choose_by(2, recipe_file)
    assert sorted(trained) == sorted(f"{layers}-layers" for layers in LAYERS if f"{layers}-layers" != ended)
    resumed = found(recipe_file)
    (recipe_file.parent / "out").rename(recipe_file.parent / "resumed")
    trained.clear()
    choose_by(1, recipe_file)
    assert len(trained) == 2
    assert found(recipe_file) == resumed


@pytest.mark.usefixtures("trained")
def test_longer_trainings_go_on_from_sharded_checkpoints(recipe_file, monkeypatch):
    """As from whole ones; those of the shorter training stay."""
    monkeypatch.setattr(search, "in_play", list)
    words = ("distill.checkpoints=sharded", "distill.save_num_checkpoints_to_keep=1")
    choose_by(2, recipe_file, *words, longest="4ba")
    for layers in LAYERS:
        shorter, longer = (
            recipe_file.parent / "out" / "choose" / length / f"{layers}-layers" for length in ("2ba", "4ba")
        )
        lines = (longer / "logs" / "metrics.jsonl").read_text().splitlines()
        assert min(json.loads(line)["batch"] for line in lines) >= 2
        assert [path.name for path in find_checkpoints(shorter / "checkpoints")] == ["ep1-ba2"]
        assert [path.name for path in find_checkpoints(longer / "checkpoints")] == ["ep3-ba4"]
