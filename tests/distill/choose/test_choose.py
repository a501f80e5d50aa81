"""Choosing a shape: candidates are the recipe at other depths, hopeless ones stay untrained, a recipe is the winner."""

from pathlib import Path

import pytest

from architectures.errors import UserError
from architectures.shapes.shape import NAMED_SHAPES
from architectures.tables import markdown
from distill.choose.ranked import command
from distill.choose.ranked.page import GIVEN_ALPHAS, after_training, prospects_page, ranking_verdict
from distill.choose.shapes.candidates import DEPTHS
from distill.choose.steps.timed import Place
from distill.choose.trainings.trials import trained_together
from distill.recipe.recipe import load_recipe, save_recipe
from distill.run.run import Run
from eval.speedup import Prospect, Ranked, prospect, step_times
from tests.distill.choose.asked import candidates_of, run_choose
from tests.distill.run.test_progressive import TINY
from tests.eval.records import latency

LLAMA = NAMED_SHAPES["llama-7b"].shape
HOPEFUL, HOPELESS = Prospect(4, 0.3, 0.2, 2.5), Prospect(1, None, 1.2, 0.8)


def test_candidates_differ_in_depth_alone(recipe, source, tmp_path):
    found = candidates_of(recipe, source, [3, 1, 1], None)
    assert [one.name for one in found] == ["1-layers", "3-layers"]
    for one in found:
        assert one.shape.intermediate == 96
        assert one.shape.hidden == source.hidden
        assert one.recipe.run_dir == str(tmp_path / "out" / "choose" / one.name)
        assert (one.recipe.data, one.recipe.distill, one.recipe.seed) == (recipe.data, recipe.distill, recipe.seed)
        save_recipe(one.recipe, tmp_path / "one.yaml")
        assert load_recipe(tmp_path / "one.yaml") == one.recipe


def test_depths_by_default_are_fewer_than_the_targets(recipe, source):
    assert [one.shape.layers for one in candidates_of(recipe, source, [], None)] == [
        depth for depth in DEPTHS if depth < source.layers
    ]


@pytest.mark.parametrize("architecture", ["shape: wide-290m", "stages: [8, 4]", "layers: 2, heads: 16"])
def test_a_named_shape_or_stages_become_widths(recipe_file, architecture):
    text = recipe_file.read_text().replace("layers: 3, intermediate: 96, width_method: random", architecture)
    recipe_file.write_text(text)
    [one] = candidates_of(load_recipe(recipe_file), LLAMA, [2], None)
    assert (one.shape.layers, one.shape.hidden) == (2, 4096)
    assert one.shape.heads == (16 if "heads" in architecture else 32)
    assert (one.recipe.architecture.shape, one.recipe.architecture.stages) == (None, None)


def test_no_candidate_is_larger_than_allowed(recipe, source):
    one, two = candidates_of(recipe, source, [1, 2], None)
    bound = one.shape.parameters()
    assert candidates_of(recipe, source, [1, 2], bound) == [one]
    assert candidates_of(recipe, source, [1, 2], two.shape.parameters()) == [one, two]
    with pytest.raises(
        UserError, match=rf"--most-parameters {bound - 1}: the smallest candidate, 1-layers, has {bound}"
    ):
        candidates_of(recipe, source, [1, 2], bound - 1)


def test_what_cannot_be_chosen_from(recipe, source):
    masks = recipe.architecture.model_copy(update={"method": "learned_masks"})
    with pytest.raises(UserError, match=r"no short training. Choose with architecture.method=greedy"):
        candidates_of(recipe.model_copy(update={"architecture": masks}), source, [1], None)
    plan = recipe.architecture.model_copy(update={"plan": "plan.json"})
    with pytest.raises(UserError, match=r"architecture.plan says one shape"):
        candidates_of(recipe.model_copy(update={"architecture": plan}), source, [1], None)
    with pytest.raises(UserError, match="exceeds the target in layers 99"):
        candidates_of(recipe, source, [99], None)


def test_prospects_are_measured_for_every_candidate(recipe, source, tiny_target):
    config = recipe.eval.model_copy(update={"num_threads": 1, "lookaheads": (1, 2), "num_resamples": 20})
    recipe = recipe.model_copy(update={"eval": config})
    candidates = candidates_of(recipe, source, [1, 3], None)
    [latency_here, in_batch] = command.measured_steps(recipe, tiny_target, candidates, [Place(1, 16), Place(2, 8)])
    assert (in_batch.batch, in_batch.context_tokens) == (2, 8)
    steps = step_times(latency_here)
    found = {name: prospect(each) for name, each in steps.items()}
    assert list(found) == ["1-layers", "3-layers"]
    assert 0 < found["1-layers"].cost_ratio < found["3-layers"].cost_ratio
    assert all(one.lookahead in (1, 2) for one in found.values())


def test_the_page_says_what_cannot_pay(recipe, source):
    candidates = candidates_of(recipe, source, [1, 3], None)
    timed = [latency(40.0, {1: 42.0}, {"1-layers": (8.0, 8.0), "3-layers": (48.0, 48.0)})]

    def page(*found):
        return markdown(*prospects_page(candidates, dict(zip(("1-layers", "3-layers"), found, strict=True)), timed))

    some = page(HOPEFUL, HOPELESS)
    assert "Step times of untrained drafts: batch 1, 9 tokens of context" in some
    assert "| 1-layers | 1 × 64 |" in some
    assert "| 8.00 | 0.200 of the target's |" in some
    assert "| 0.200 of the target's | 2.50x | 0.30 at lookahead 4 |" in some
    assert "| 1.200 of the target's | 0.80x | none suffices |" in some
    assert "No acceptance makes these pay here: 3-layers." in some
    assert "No draft of these shapes can pay on this machine, whatever it learns" in page(HOPELESS, HOPELESS)
    assert "All can pay." in page(HOPEFUL, HOPEFUL)


@pytest.mark.parametrize(
    ("interval", "shares", "words"),
    [
        ((1.1, 1.3), (0.98, 0.02), "a promises most. It pays already."),
        ((1.1, 1.3), (0.97, 0.03), "a promises most. The fastest may as well be b. It pays already."),
        ((1.1, 1.3), (0.6, 0.2, 0.2), "a promises most. The fastest may as well be b or c. It pays already."),
        ((0.9, 1.3), (1.0, 0.0), "a promises most. Whether it pays already is not decided."),
        ((0.7, 0.9), (1.0, 0.0), "a promises most. After so short a training it does not pay yet"),
        (None, (1.0, 0.0), "a promises most. The fastest may as well be b. Whether it pays already is not decided."),
    ],
)
def test_the_verdict_says_how_sure_it_is(interval, shares, words):
    ranked = [Ranked(name, 4, 1.0, interval, 20.0, share) for name, share in zip("abc", shares, strict=False)]
    assert ranking_verdict(ranked, after_training("9ba")).startswith(words)


ANSWERING = "distill.teacher={source: cache, captured_while: answering}"  # candidates share answers and cache


@pytest.mark.usefixtures("prospects", "training_here")
def test_hopeful_candidates_are_trained_ranked_and_the_winner_is_a_recipe(recipe_file, tmp_path, capfd):
    assert run_choose(recipe_file, ANSWERING, "--layers", 1, 2, 3, "--duration", "2ba") == 0
    printed, run = capfd.readouterr().out, tmp_path / "out"
    assert "Predicted speed after 2ba of training, temperature 0, batch 1" in printed
    assert "Before any training: 1 of 3 shapes left out" in printed
    assert "| 3-layers | cannot pay | no acceptance makes it pay here |" in printed
    assert sorted(path.name for path in (run / "choose" / "2ba").iterdir()) == ["1-layers", "2-layers", "eval"]
    assert not (run / "draft").exists()
    chosen = load_recipe(run / "choose" / "recipe.yaml")
    assert f"{chosen.architecture.layers}-layers promises most" in printed
    given = load_recipe(recipe_file, [*TINY, ANSWERING])
    assert (chosen.architecture.intermediate, chosen.architecture.method) == (96, "first_last")
    assert (chosen.distill, chosen.data, chosen.eval) == (given.distill, given.data, given.eval)
    assert Path(chosen.run_dir) == run.with_name(chosen.run_name)
    assert chosen.run_name == f"tiny-{chosen.architecture.layers}-layers"

    words = ("--layers", 1, 2, "--duration", "2ba", "--out", tmp_path / "mine.yaml")
    assert run_choose(recipe_file, ANSWERING, *words) == 0
    printed = capfd.readouterr().out
    for name in ("1-layers", "2-layers"):
        assert f"{run / 'choose' / '2ba' / name / 'draft'}: up to date" in printed
    assert load_recipe(tmp_path / "mine.yaml").architecture.intermediate == 96


@pytest.mark.usefixtures("prospects")
@pytest.mark.parametrize("words", [("--layers", 3), ("--layers", 1, 2, 3, "--untrained")])
def test_nothing_is_trained_where_nothing_can_pay_or_nothing_was_asked(recipe_file, tmp_path, capsys, words):
    assert run_choose(recipe_file, *words) == 0
    assert "Step times of untrained drafts" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out" / "choose").iterdir()] == ["choice.json"]


@pytest.mark.usefixtures("prospects")
@pytest.mark.parametrize(
    ("alphas", "layers", "words"),
    [
        (("1=0.5", "2=0.5", "3=1"), 1, "1-layers promises most. It pays."),
        (("1=0.2", "2=0.9", "3=1"), 2, "2-layers promises most. It pays."),
        (("1=0", "2=0.01", "3=1"), 1, "With so little accepted it does not pay."),
    ],
)
def test_acceptance_that_is_given_ranks_without_training(recipe_file, tmp_path, capsys, alphas, layers, words):
    assert run_choose(recipe_file, "--alphas", *alphas) == 0
    printed, run = capsys.readouterr().out, tmp_path / "out"
    assert GIVEN_ALPHAS.title in printed
    assert words in printed
    assert load_recipe(run / "choose" / "recipe.yaml").architecture.layers == layers
    assert not (run / "data").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--alphas", "1=0.2", "--layers", 1, 2),
            "--alphas are given for 1=0.2, and the candidates are 1-layers, 2-layers. Give each one once",
        ),
        (("--alphas", "1=0.2", "1=0.3"), "--alphas are given for 1=0.2, 1=0.3, and the candidates are 1-layers."),
        (("--alphas", "1=0.2", "1=0.2"), "--alphas are given for 1=0.2, 1=0.2, and the candidates are 1-layers."),
        (("--alphas", "1=0.2", "2=0.3", "--layers", 1), "--alphas are given for 1=0.2, 2=0.3"),
        (("--duration", "soon"), "--duration must be a Composer time such as 1ep"),
        (("--out", "."), "--out .: is a folder"),
        (("--layers", 99), "exceeds the target in layers 99"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(recipe_file, tmp_path, capsys, words, message):
    assert run_choose(recipe_file, *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "data").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--alphas", "1=0.2", "--duration", "2ba"), "--duration and --alphas: shapes are chosen by one of them."),
        (("--alphas", "1=0.2", "--untrained"), "--alphas and --untrained: shapes are chosen by one of them."),
        (("--alphas", "1:0.2"), "--alphas must be LAYERS=ALPHA, such as 4=0.35 or 4x4096=0.35, got '1:0.2'."),
        (("--alphas", "1=1.2"), "--alphas must have an acceptance between 0 and 1, got '1=1.2'."),
        (("--alphas", "1=nan"), "--alphas must be LAYERS=ALPHA, such as 4=0.35 or 4x4096=0.35, got '1=nan'."),
    ],
)
def test_words_that_make_no_sense(recipe_file, capsys, words, message):
    assert run_choose(recipe_file, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "together"),
    [
        ([], False),
        (["distill.parallelism=fsdp2"], True),
        (["distill.parallelism=hsdp"], True),
        (["distill.teacher={parallelism: fsdp2}"], True),
    ],
)
def test_candidates_that_are_held_in_shards_are_trained_by_all_processes(recipe_file, words, together):
    recipe = load_recipe(recipe_file, [*TINY, "distill.device_train_microbatch_size=1", *words])
    assert trained_together(Run.of(recipe)) == together
