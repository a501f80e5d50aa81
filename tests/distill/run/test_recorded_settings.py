"""What a run and a cache record of distill.teacher and distill.loss, by literal values: an unchanged recipe keeps them.

The values were computed at commit ad1bf62, where a teacher was one section of six keys and every term of a loss had all
options: whoever changes one of them tells everybody to train again.
"""

import pytest

from distill.recipe.recipe import load_recipe, save_recipe
from distill.run import stage_inputs
from distill.run.recorded import recipe_hash, recorded_values
from distill.run.run import Run

RECIPE = """
run_name: r
target: {path: models/x}
architecture: {layers: 2, method: first_last}
data: {self_written_prompts: 9, num_eval_prompts: 2}
"""
TEACHERS = {  # of the training, of the cache
    "{}": ("8a8f36ed2437122c", "d8fdc8430edffffa"),
    "{source: live}": ("8a8f36ed2437122c", "d8fdc8430edffffa"),
    "{source: live, contents: null, k: null, num_samples: null, captured_while: null, parallelism: replicated}": (
        "8a8f36ed2437122c",
        "d8fdc8430edffffa",
    ),
    "{source: none}": ("8f886e800639b1ef", "1b69e62232524a87"),
    "{source: none, contents: null, parallelism: replicated}": ("8f886e800639b1ef", "1b69e62232524a87"),
    "{source: cache}": ("b188b0225932897a", "635cd0434a108ad3"),
    "{source: cache, contents: hidden, captured_while: reading}": ("b188b0225932897a", "635cd0434a108ad3"),
    "{source: cache, contents: null, k: null, captured_while: answering}": ("c113d6815fff8bb6", "944f9bc49a16ea17"),
    "{source: cache, contents: top_k}": ("ae617642dbdea3d6", "a667ced9da72ab4e"),
    "{source: cache, contents: top_k, k: 64, num_samples: null, captured_while: reading, parallelism: replicated}": (
        "ae617642dbdea3d6",
        "a667ced9da72ab4e",
    ),
    "{source: cache, contents: top_k, k: 8, captured_while: answering}": ("4f133a9f17b277a0", "a52f03716d1d3bcd"),
    "{source: cache, contents: samples}": ("09c9cd336294f587", "ff12f8b39db69ae6"),
    "{source: cache, contents: samples, num_samples: 50}": ("25be76956640fd26", "de09580572477cbc"),
    "{source: cache, contents: samples, captured_while: answering}": ("7154c115d3f95b0a", "ad2f833fbaac21dc"),
}
LOSSES = {
    "auto": "8a8f36ed2437122c",
    "forward_kl": "3f4155c25b40785c",
    "reverse_kl": "7b24ba881f7c8173",
    "kl_mixture": "2f3450016fcde386",
    "jensen_shannon": "abf85b3bb4659ba2",
    "skewed_forward_kl": "06980298bb048aa3",
    "skewed_reverse_kl": "a6b83f52f35cd149",
    "total_variation": "31eba01b4ab0c557",
    "negative_log_acceptance": "8a8f36ed2437122c",
    "lk_hybrid": "245d462caf2aa86d",
    "cross_entropy": "edeaae04133f4dfe",
    "[{name: forward_kl}]": "51712c16e3699eb3",
    "[{name: reverse_kl}]": "fde4452e37b4f93b",
    "[{name: kl_mixture}]": "2cb8505af7364177",
    "[{name: jensen_shannon}]": "bb5b9ba303896758",
    "[{name: skewed_forward_kl}]": "034ade5289d31b33",
    "[{name: skewed_reverse_kl}]": "44e139baf0a72162",
    "[{name: total_variation}]": "7d861e61fc1a1407",
    "[{name: negative_log_acceptance}]": "4db6b7f864cb6da2",
    "[{name: lk_hybrid}]": "174cda4852773786",
    "[{name: cross_entropy}]": "36b42b18afb1e207",
    "[{name: kl_mixture, forward_weight: 0.3}]": "26d0e22e552e98e5",
    "[{name: kl_mixture, forward_weight: 0.9}]": "d2046bbde39796e8",
    "[{name: jensen_shannon, beta: 0.2}]": "35dcd800eb3851e7",
    "[{name: jensen_shannon, beta: 0.5}]": "9d913baadc7fa5d6",
    "[{name: skewed_forward_kl, skew: 0.4}]": "96a6360031e2870a",
    "[{name: skewed_forward_kl, skew: 0.1}]": "9c7474eaacc42827",
    "[{name: skewed_reverse_kl, skew: 0.4}]": "b799b2ef2a8f9d5c",
    "[{name: skewed_reverse_kl, skew: 0.1}]": "2502a876c15a5766",
    "[{name: lk_hybrid, decay: 2.0}]": "1c8a9afcf05d414c",
    "[{name: lk_hybrid, decay: 3}]": "ca3f15f0f3f70806",
    "[{name: jensen_shannon, weight: 2, beta: null, skew: null, decay: null, forward_weight: null}]": "404325de320f2080",  # noqa: E501
    "[{name: lk_hybrid, decay: 2, weight: 0.5}, {name: cross_entropy}]": "cc9dd6c75de2265c",
}
RESOLVED = {  # whole recipes
    "seed=17": "09554271d928dc52",
    "distill.teacher={source: cache, contents: top_k}": "b5a884fad4b0ab26",
    "distill.loss=[{name: lk_hybrid, decay: 2}]": "d73d322a3b5f6919",
    "eval.lookaheads=[1,2,3,4]": "40bc707874b5c042",
}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The recipe of a word of the command line, of which nothing is on the disk."""
    monkeypatch.setattr(stage_inputs, "fingerprint_checkpoint", lambda _: None)
    monkeypatch.setattr(Run, "target", tmp_path)
    monkeypatch.setattr(stage_inputs, "entry_ids", lambda *_: None)
    monkeypatch.setattr(stage_inputs, "fingerprint_tokenizer", lambda _: {})
    (tmp_path / "r.yaml").write_text(RECIPE)
    return lambda word: load_recipe(tmp_path / "r.yaml", [word])


def of_training(recipe):
    return stage_inputs.training_inputs(Run.of(recipe))["distill"]


def of_cache(recipe):
    return stage_inputs.cache_inputs(Run.of(recipe))["distill.teacher"]


@pytest.mark.parametrize("words", TEACHERS)
def test_teachers_are_recorded_as_before(load, words):
    recipe = load(f"distill.teacher={words}")
    assert (of_training(recipe)[:16], of_cache(recipe)[:16]) == TEACHERS[words]


@pytest.mark.parametrize("words", LOSSES)
def test_losses_are_recorded_as_before(load, words):
    assert of_training(load(f"distill.loss={words}"))[:16] == LOSSES[words]


@pytest.mark.parametrize(
    "word", [*(f"distill.teacher={words}" for words in TEACHERS), *(f"distill.loss={words}" for words in LOSSES)]
)
def test_a_saved_recipe_records_what_it_was_saved_from(load, tmp_path, word):
    recipe = load(word)
    save_recipe(recipe, tmp_path / "saved.yaml")
    again = load_recipe(tmp_path / "saved.yaml")
    assert again == recipe
    assert (of_training(again), of_cache(again)) == (of_training(recipe), of_cache(recipe))


@pytest.mark.parametrize("word", RESOLVED)
def test_a_resolved_recipe_has_the_hash_it_had(load, word):
    assert recipe_hash(load(word))[:16] == RESOLVED[word]


def test_a_resolved_recipe_is_hashed_with_the_keys_it_had_at_first(load):
    of_teacher = recorded_values(load("distill.teacher={source: cache, contents: top_k}"))
    assert of_teacher["distill"]["teacher"] == {
        "source": "cache",
        "contents": "top_k",
        "k": 64,
        "num_samples": None,
        "captured_while": "reading",
        "parallelism": "replicated",
    }
    of_loss = recorded_values(load("distill.loss=[{name: lk_hybrid}, {name: jensen_shannon, beta: 0.5}]"))
    first = {"weight": 1.0, "skew": None, "decay": None, "forward_weight": None}
    assert of_loss["distill"]["loss"] == [
        {**first, "name": "lk_hybrid", "beta": None},
        {**first, "name": "jensen_shannon", "beta": 0.5},
    ]
