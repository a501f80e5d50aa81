"""Heads that may be chosen: every depth with every size, acceptance for each, step time beside what it covers."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import widedraft
from architectures.errors import UserError
from architectures.pruning.plan import needed_scores
from architectures.shapes.requested_shape import draft_shape
from architectures.shapes.shape import Shape
from architectures.tables import markdown
from architectures.targets.target import read_config
from architectures.vocabulary import Tokens
from distill.choose.ranked import command
from distill.choose.ranked.vocabulary_page import vocabulary_page
from distill.choose.shapes.given_alphas import GivenAlpha, alphas_of, known_alpha, require_ids
from distill.choose.trainings import trials
from distill.recipe.recipe import load_recipe, save_recipe
from distill.run.run import Run
from distill.vocabulary.coverage import IdCounts
from distill.vocabulary.output_ids import tokens_in
from eval.latency import untrained_models
from eval.models.loading import load_model
from eval.speedup import Prospect
from tests.distill.choose.asked import candidates_of
from tests.distill.run.test_progressive import TINY
from tests.eval.records import latency

VOCAB = 264
OWN = "architecture.vocabulary={size: 50}"
LISTED = "architecture.vocabulary={size: 50, from: ids.json}"
ALL_LISTED = "architecture.vocabulary={from: ids.json}"
ON_TEXT = ("distill.train_on=text", "text={domains: [{name: wiki, path: wiki.txt}], max_seq_len: 64}")
PROSPECT = Prospect(4, 0.3, 0.2, 2.5)
TOKENS = Tokens(frozenset(range(VOCAB)), frozenset(), frozenset(), frozenset())
SAID = IdCounts(Counter({1: 5, 2: 3, 3: 2}), {"code": Counter({1: 6, 9: 2}), "maths": Counter({2: 1, 3: 1})}, TOKENS)


@pytest.fixture
def recipe_file(tiny_target, tmp_path, monkeypatch):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"What comes after {i}?"}) + "\n" for i in range(6)))
    (tmp_path / "wiki.txt").write_text("Once upon a time.")
    (tmp_path / "ids.json").write_text(json.dumps([*range(0, 200, 2), 1, 3]))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "recipe.yaml"
    file.write_text(
        f"run_name: tiny\nrun_dir: {tmp_path / 'out'}\ntarget: {{path: {tiny_target}, dtype: float32}}\n"
        f"architecture: {{method: first_last, layers: 3}}\n"
        f"data: {{prompts: [{{path: {prompts}}}], num_eval_prompts: 2}}\n"
    )
    return file


@pytest.fixture
def source(tiny_target):
    return Shape.from_config(read_config(tiny_target))


def heads(candidates):
    return [(one.name, one.shape.head_vocab, one.recipe.architecture.vocabulary) for one in candidates]


@pytest.mark.parametrize("overrides", [(), (OWN,)])
@pytest.mark.parametrize("layers", [[], [1, 3]])
def test_all_alone_is_the_recipe_without_a_vocabulary(recipe_file, source, overrides, layers):
    plain = candidates_of(load_recipe(recipe_file), source, layers, None)
    assert candidates_of(load_recipe(recipe_file, overrides), source, layers, None, [0]) == plain
    assert {one.shape.head_vocab for one in plain} == {0}
    assert {one.shape.tied for one in plain} == {source.tied}


def test_of_no_sizes_the_recipes_own_is_taken(recipe_file, source):
    recipe = load_recipe(recipe_file, [OWN])
    [one] = candidates_of(recipe, source, [2], None)
    assert heads([one]) == [("2-layers-50-ids", 50, recipe.architecture.vocabulary)]
    assert one == candidates_of(load_recipe(recipe_file), source, [2], None, [50])[0]


def test_all_of_a_list_is_as_many_as_it_holds(recipe_file, source):
    [one] = candidates_of(load_recipe(recipe_file, [ALL_LISTED]), source, [2], None)
    assert (one.name, one.shape.head_vocab, one.shape.tied) == ("2-layers-102-ids", 102, False)


def test_ids_that_cannot_be_had_are_told_before_training(recipe_file, source, tiny_target):
    """The tiny target's bytes and special tokens are 259; its texts end at token 2."""
    tokens = tokens_in(tiny_target, VOCAB)
    for overrides, sizes, message in (
        ((), [258], "must be at least 259, got 258"),
        ((), [260], "must be at most 259"),
        ((LISTED,), [1], "its first 1 ids lack 2, at which texts"),
    ):
        candidates = candidates_of(load_recipe(recipe_file, overrides), source, [1, 2], None, [0, *sizes])
        with pytest.raises(UserError, match=message):
            require_ids(candidates, tiny_target, tokens)
    for overrides, sizes in (((), [259]), ((LISTED,), [50, 102]), ((ALL_LISTED,), []), ((), [0])):
        require_ids(candidates_of(load_recipe(recipe_file, overrides), source, [1], None, sizes), tiny_target, tokens)


def test_every_depth_has_every_head(recipe_file, source, tmp_path):
    found = candidates_of(load_recipe(recipe_file), source, [3, 1], None, [0, 200, 50])
    assert [one.name for one in found] == [
        f"{layers}-layers{head}" for layers in (1, 3) for head in ("-50-ids", "-200-ids", "")
    ]
    assert len({one.recipe.run_dir for one in found}) == len({one.recipe.run_name for one in found}) == len(found)
    for one in found:
        wanted = one.recipe.architecture.vocabulary
        assert one.shape.head_vocab == (0 if wanted is None else wanted.size)
        assert one.shape == replace(found[2].shape, layers=one.shape.layers).with_head_of(wanted.size) if wanted else 1
        save_recipe(one.recipe, tmp_path / "one.yaml")
        assert load_recipe(tmp_path / "one.yaml") == one.recipe


@pytest.mark.parametrize(
    ("overrides", "origin"),
    [
        ((), "answers"),
        (ON_TEXT, "text"),
        ((LISTED,), "ids.json"),
        ((ALL_LISTED,), "ids.json"),
        ((*ON_TEXT, LISTED), "ids.json"),
    ],
)
def test_ids_are_ranked_as_the_recipe_ranks_them_else_by_what_is_trained_on(recipe_file, source, overrides, origin):
    durations = ["distill.max_duration=9ba"] if overrides else []
    recipe = load_recipe(recipe_file, [*overrides, *durations])
    [one] = candidates_of(recipe, source, [1], None, [20])
    assert (one.recipe.architecture.vocabulary.size, one.recipe.architecture.vocabulary.origin) == (20, origin)


@pytest.mark.parametrize(
    ("overrides", "sizes", "message"),
    [
        ((), [VOCAB], r"--vocabularies 264: the target has 264 token ids. Choose fewer"),
        ((), [50, 0, 50], r"--vocabularies 50: stands there 2 times"),
        ((), [0, 0], r"--vocabularies all: stands there 2 times"),
        (("architecture.vocabulary={size: 264}",), [], r"architecture.vocabulary.size must be below .* 264, got 264"),
        ((LISTED,), [50, 103], r"ids.json: holds 102 ids, and architecture.vocabulary.size is 103"),
        (("architecture.vocabulary={from: none.json}",), [], r"none.json"),
    ],
)
def test_sizes_that_cannot_be_chosen(recipe_file, source, overrides, sizes, message):
    with pytest.raises(UserError, match=message):
        candidates_of(load_recipe(recipe_file, overrides), source, [1], None, sizes)


@pytest.mark.parametrize("sizes", [[0], [50, 0], [50, 20]])
def test_a_whole_head_that_would_be_frozen_is_refused_before_any_work(recipe_file, source, sizes):
    frozen = load_recipe(recipe_file, ["distill.freeze_input_embeddings=true", OWN])
    assert source.tied
    with pytest.raises(UserError, match=r"--vocabularies: each depth .* Add distill\.freeze_input_embeddings=false"):
        candidates_of(frozen, source, [1], None, sizes)
    untied = replace(source, tied=False)
    assert candidates_of(frozen, untied, [1], None, sizes)
    assert candidates_of(frozen, source, [1], None, [50])


@pytest.mark.parametrize("word", [50, 0])
def test_a_head_that_was_cut_before_stays(recipe_file, source, word):
    cut = source.with_head_of(100)
    assert heads(candidates_of(load_recipe(recipe_file), cut, [1], None)) == [("1-layers", 100, None)]
    with pytest.raises(UserError, match=r"what the draft is cut out of says 100 ids, and keeps these"):
        candidates_of(load_recipe(recipe_file), cut, [1], None, [word])


def test_the_smallest_candidate_has_the_fewest_parameters(recipe_file, source):
    """A tied head costs nothing, a small one of its own does: here the whole head is the smallest draft."""
    recipe = load_recipe(recipe_file)
    small, whole = candidates_of(recipe, source, [1], None, [50, 0])
    assert source.tied
    assert small.shape.parameters() == whole.shape.parameters() + 50 * source.hidden
    assert candidates_of(recipe, source, [1], whole.shape.parameters(), [50, 0]) == [whole]
    with pytest.raises(UserError, match=rf"the smallest candidate, 1-layers, has {whole.shape.parameters()}\."):
        candidates_of(recipe, source, [1], 1, [50, 0])


def test_untrained_models_have_the_heads(recipe_file, source, tiny_target):
    target = load_model(tiny_target, dtype="float32")
    candidates = candidates_of(load_recipe(recipe_file), source, [1], None, [50, 0])
    models = untrained_models(target, [one.shape for one in candidates])
    assert [tuple(model.get_output_embeddings().weight.shape) for model in models] == [(50, 64), (VOCAB, 64)]
    assert [sum(each.numel() for each in model.parameters()) for model in models] == [
        one.shape.parameters() for one in candidates
    ]


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("4=0.35", GivenAlpha(4, None, 0.35)),
        ("4x4096=0.35", GivenAlpha(4, 4096, 0.35)),
        ("2xall=1", GivenAlpha(2, 0, 1.0)),
        ("2-layers-288-hidden=0.4", GivenAlpha(2, None, 0.4, "2-layers-288-hidden")),
        ("2-layers-288-hidden-4096-ids=.4", GivenAlpha(2, 4096, 0.4, "2-layers-288-hidden-4096-ids")),
    ],
)
def test_words_of_alpha(word, meaning):
    assert known_alpha(word) == meaning
    assert known_alpha(meaning.word) == meaning


@pytest.fixture
def candidates(recipe_file, source):
    return candidates_of(load_recipe(recipe_file), source, [1, 2], None, [1, 2, 0])


def given(*words):
    return [known_alpha(word) for word in words]


EVERY = ("1x1=0.1", "1x2=0.2", "1xall=0.3", "2x1=0.4", "2x2=0.5", "2xall=0.6")


def test_acceptance_is_given_for_every_candidate(candidates):
    for words in (EVERY, EVERY[::-1]):
        found = alphas_of(given(*words), candidates, SAID)
        assert [found[one.name].alpha for one in candidates] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
        assert {each.covered for each in found.values()} == {None}


def test_layers_alone_mean_the_one_vocabulary_there_is(recipe_file, source):
    for size in (0, 50):
        [one] = candidates_of(load_recipe(recipe_file), source, [2], None, [size])
        assert alphas_of(given("2=0.4"), [one])[one.name].alpha == 0.4


def test_the_whole_heads_acceptance_stands_for_small_ones_times_what_they_cover(candidates):
    """One id covers 6 of 10 held-out tokens, two 7."""
    found = alphas_of(given("1xall=0.3", "2xall=0.6", "2x1=0.5"), candidates, SAID)
    assert [found[one.name].alpha for one in candidates] == pytest.approx([0.18, 0.21, 0.3, 0.5, 0.42, 0.6])
    assert [found[one.name].covered for one in candidates] == [0.6, 0.7, None, None, 0.7, None]


@pytest.mark.parametrize(
    "words",
    [
        EVERY[1:],
        (*EVERY, "1x1=0.1"),
        (*EVERY, "1x1=0.15"),
        (*EVERY, "3=0.5"),
        (*EVERY, "1=0.5"),
        ("1=0.3", "2=0.4"),
        ("1xall=0.3",),
    ],
)
def test_ambiguous_acceptance_is_refused(candidates, words):
    for said in (None, SAID):
        if said is None or words[0] != EVERY[1]:
            with pytest.raises(
                UserError, match=r"--alphas are given for .* Give each one once, as LAYERS=ALPHA, or as"
            ):
                alphas_of(given(*words), candidates, said)


def test_without_answers_the_whole_head_stands_for_itself(candidates):
    with pytest.raises(UserError, match=r"counts for smaller ones only where <run>/data holds answers"):
        alphas_of(given("1xall=0.3", "2xall=0.3"), candidates)
    assert GivenAlpha(1, None, 0.5).word == "1=0.5"


def test_the_page_holds_step_time_against_coverage(candidates):
    prospects = {one.name: replace(PROSPECT, cost_ratio=(place + 1) / 100) for place, one in enumerate(candidates)}
    page = markdown(*vocabulary_page(candidates, prospects, SAID), level=2)
    assert "| ids said | cost of a step | all (10) | code (8) | maths (2) |" in page
    assert "| 1 | 0.010 to 0.040 | 60.0% | 75.0% | 0.0% |" in page
    assert "| 2 | 0.020 to 0.050 | 70.0% | 75.0% | 50.0% |" in page
    assert "| all | 0.030 to 0.060 | 100.0% | 100.0% | 100.0% |" in page
    assert "10 tokens of training answers say most" in page
    unknown = markdown(*vocabulary_page(candidates, prospects, None), level=2)
    assert "| 1 | 0.010 to 0.040 |\n" in unknown
    assert "known once there are answers" in unknown


def test_nothing_is_told_of_whole_heads_or_of_ids_ranked_otherwise(recipe_file, source):
    whole = candidates_of(load_recipe(recipe_file), source, [1], None)
    assert vocabulary_page(whole, {"1-layers": PROSPECT}, None) == []
    listed = candidates_of(load_recipe(recipe_file, [LISTED]), source, [1], None)
    [section] = vocabulary_page(listed, {"1-layers-50-ids": PROSPECT}, None)
    assert "not ranked by answers here" in markdown(section)


def run_choose(recipe_file, *words):
    return widedraft.main(["choose", str(recipe_file), *TINY, *map(str, words)])


@pytest.fixture
def steps(monkeypatch):
    """A step takes 4 ms, and with 50 ids 2."""

    def measured(_recipe, _target, candidates, _places):
        times = {one.name: (2.0 if one.shape.head_vocab else 4.0,) * 2 for one in candidates}
        return [latency(40.0, {1: 42.0}, times, 0.1)]

    monkeypatch.setattr(command, "measured_steps", measured)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    ("words", "size"),
    [
        (("--alphas", "1x50=0.30", "1xall=0.31"), 50),
        (("--alphas", "1x50=0.30", "1xall=0.40"), None),
        (("--alphas", "1=0.30", "--vocabularies", 50), 50),
    ],
)
def test_the_winners_vocabulary_is_in_its_recipe(recipe_file, tmp_path, capsys, words, size):
    """0.05 of a target's step are worth 0.05 of acceptance, about."""
    assert run_choose(recipe_file, LISTED, *words) == 0
    chosen, printed = load_recipe(tmp_path / "out" / "choose" / "recipe.yaml"), capsys.readouterr().out
    assert chosen.architecture.layers == 1
    assert (chosen.architecture.vocabulary and chosen.architecture.vocabulary.size) == size
    assert "## Step time against coverage" in printed
    assert f"{'1-layers' if size is None else '1-layers-50-ids'} promises most." in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--vocabularies", VOCAB), "--vocabularies 264: the target has 264 token ids"),
        (("--vocabularies", 50, 50), "--vocabularies 50: stands there 2 times"),
        (("--vocabularies", "all", "all"), "--vocabularies all: stands there 2 times"),
        ((LISTED, "--vocabularies", 1), "its first 1 ids lack 2, at which texts"),
        (("--vocabularies", 258), "must be at least 259, got 258: 3 special tokens and 256 single bytes"),
        (
            (LISTED, "--alphas", "1x50=0.2", "2xall=0.3"),
            "--alphas are given for 1x50=0.2, 2xall=0.3, and the candidates are",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(recipe_file, capsys, monkeypatch, words, message):
    monkeypatch.setattr(command, "measured_steps", None)
    assert run_choose(recipe_file, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--vocabularies", 0), "--vocabularies must be a whole number >= 1 and <= 1000000 or all, got 0."),
        (("--vocabularies", -4), "--vocabularies must be a whole number >= 1 and <= 1000000 or all, got -4."),
        (("--vocabularies", "4k"), "--vocabularies must be a whole number >= 1 and <= 1000000 or all, got 4k."),
        (("--alphas", "1x=0.2"), "got '1x=0.2'."),
        (("--alphas", "1x0=0.2"), "got '1x0=0.2'."),
        (("--alphas", "x50=0.2"), "--alphas must be LAYERS=ALPHA, such as 4=0.35 or 4x4096=0.35, got 'x50=0.2'."),
    ],
)
def test_words_that_make_no_sense(recipe_file, capsys, words, message):
    assert run_choose(recipe_file, *words) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def stages(monkeypatch):
    """What the stages of trials were asked for: (stage, the recipe's folder, its source, its size)."""
    asked = []

    def stage(name):
        def run(given, *_, **__):
            recipe = load_recipe(given) if isinstance(given, Path) else given.recipe
            wanted = recipe.architecture
            size = wanted.vocabulary and wanted.vocabulary.size
            source = wanted.source and str(Path(wanted.source).relative_to(Path(recipe.run_dir).parent))
            asked.append((name, Path(recipe.run_dir).name, wanted.layers, source, size))
            if name == "prune":
                save_recipe(recipe, Path(recipe.run_dir) / "recipe.yaml")

        return run

    for name in ("generate", "prune", "distill"):
        monkeypatch.setattr(trials, f"{name}_stage", stage(name))
    return asked


def trained(run, candidates):
    trials.prepare_answers(run)
    return trials.train_candidates(run, candidates, trials.trials_of(candidates), "9ba")


def test_of_several_sizes_each_depth_is_trained_once_and_cut(recipe_file, source, stages, tmp_path):
    recipe = load_recipe(recipe_file)
    found = trained(Run.of(recipe), candidates_of(recipe, source, [1, 2], None, [50, 100]))
    assert stages[1:] == [
        ("prune", "1-layers", 1, None, None),
        ("prune", "2-layers", 2, None, None),
        ("distill", "1-layers", 1, None, None),
        ("distill", "2-layers", 2, None, None),
        ("prune", "1-layers-50-ids", 1, "1-layers/draft", 50),
        ("prune", "1-layers-100-ids", 1, "1-layers/draft", 100),
        ("prune", "2-layers-50-ids", 2, "2-layers/draft", 50),
        ("prune", "2-layers-100-ids", 2, "2-layers/draft", 100),
    ]
    choose = tmp_path / "out" / "choose" / "9ba"
    assert found == {
        f"{n}-layers-{size}-ids": choose / f"{n}-layers-{size}-ids" / "init" for n in (1, 2) for size in (50, 100)
    }


def test_the_whole_head_among_them_is_what_was_trained(recipe_file, source, stages, tmp_path):
    recipe = load_recipe(recipe_file)
    candidates = candidates_of(recipe, source, [1], None, [0, 50])
    found = trained(Run.of(recipe), candidates)
    assert [each[:2] for each in stages[1:]] == [
        ("prune", "1-layers"),
        ("distill", "1-layers"),
        ("prune", "1-layers-50-ids"),
    ]
    assert found["1-layers"] == tmp_path / "out" / "choose" / "9ba" / "1-layers" / "draft"
    assert trials.trials_of(candidates) == {"1-layers": candidates[1].recipe}
    assert load_recipe(tmp_path / "out" / "choose" / "9ba" / "1-layers" / "recipe.yaml").architecture.vocabulary is None


@pytest.mark.parametrize(("size", "name"), [(50, "2-layers-50-ids"), (0, "2-layers")])
def test_one_size_is_trained_itself(recipe_file, source, stages, tmp_path, size, name):
    recipe = load_recipe(recipe_file)
    found = trained(Run.of(recipe), candidates_of(recipe, source, [2], None, [size]))
    assert stages[1:] == [(stage, name, 2, None, size or None) for stage in ("prune", "distill")]
    assert found == {name: tmp_path / "out" / "choose" / "9ba" / name / "draft"}


def test_a_cut_draft_keeps_everything_but_rows_of_its_head(recipe_file, source, tmp_path):
    [one, _] = candidates_of(load_recipe(recipe_file), source, [2], None, [50, 0])
    wanted = trials.cut_recipe(one, tmp_path / "draft").architecture
    trained = replace(source, layers=2, intermediate=96)
    assert draft_shape(trained, wanted) == trained
    assert needed_scores(trained, wanted) == set()
    assert wanted.vocabulary == one.recipe.architecture.vocabulary
