"""The head's block of a check: bytes of a step at every size, and coverage where answers are there."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from architectures.draft_vocabulary.tokens import Tokens
from architectures.pages.terminal import terminal
from architectures.shapes.shape import NAMED_SHAPES, Shape
from architectures.targets.known_targets import LLAMA_3_1_8B
from distill.checking.check import check_recipe
from distill.estimates.memory import matrix_parameters
from distill.estimates.vocabulary_sizes import LEAST_SHARE, SIZES, head_blocks, head_share, own_size, sizes_told
from distill.recipe.recipe import load_recipe, save_recipe
from eval.latency.floor import weight_bytes_read
from eval.latency.untrained import untrained_model
from eval.models.loading import load_model
from tests.distill.estimates.test_coverage import trace, write_answers

LLAMA = Shape.from_config(LLAMA_3_1_8B)
WIDE = NAMED_SHAPES["wide-829m"].shape
OWN = "architecture.vocabulary={size: 100, from: ids.json}"
TOKENS = Tokens(frozenset(range(LLAMA.vocab)), frozenset({1, 2}), frozenset(), frozenset({2}))


@pytest.fixture
def recipe_file(tmp_path, tiny_target, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"{i}?"}) + "\n" for i in range(6)))
    Path("ids.json").write_text(json.dumps(list(range(100))))
    monkeypatch.setattr("distill.estimates.vocabulary_sizes.read_tokens", lambda _folder, _vocab_size: TOKENS)
    Path("recipe.yaml").write_text(
        f"run_name: a\nrun_dir: run\ntarget: {{path: {tiny_target}}}\narchitecture: {{layers: 2, method: first_last}}\n"
        f"data: {{prompts: [{{path: prompts.jsonl}}], num_eval_prompts: 3}}\neval: {{dtype: bfloat16}}\n"
    )
    return Path("recipe.yaml")


def rows_of(recipe, source=LLAMA, target=LLAMA, draft=WIDE):
    [(_, rows)] = head_blocks(recipe, source, target, draft).items()
    return rows


def numbers(text):
    return [float(each.replace(",", "")) for each in re.findall(r"[\d.,]*\d", text)]


def test_every_size_has_its_bytes(recipe_file):
    *rows, (name, words) = rows_of(load_recipe(recipe_file))
    assert [numbers(size) for size, _ in rows] == [[size] for size in (*SIZES, LLAMA.vocab)]
    for (_, cost), size in zip(rows, (*SIZES, 0), strict=True):
        read = matrix_parameters(replace(WIDE, head_vocab=size))
        mebibytes, percent, share = numbers(cost)
        assert mebibytes == pytest.approx(read * 2 / 2**20, abs=0.05)
        assert percent == pytest.approx(100 * read / matrix_parameters(WIDE), abs=0.5)
        assert share == pytest.approx(read / matrix_parameters(LLAMA), abs=5e-4)
    assert rows[-1][1].endswith(", as this recipe has it")
    assert (name, words) == ("coverage", "unknown before run/data holds finished answers")


def test_more_rows_never_cost_fewer_bytes(recipe_file):
    costs = [numbers(cost)[0] for _, cost in rows_of(load_recipe(recipe_file))[:-1]]
    assert costs == sorted(costs)
    shapes = [replace(WIDE, head_vocab=rows) for rows in range(1, WIDE.vocab, 1000)]
    assert [matrix_parameters(shape) for shape in shapes] == sorted(map(matrix_parameters, shapes))
    assert matrix_parameters(shapes[-1]) < matrix_parameters(WIDE)


@pytest.mark.parametrize("head", [0, 40])
def test_the_bytes_are_those_of_a_model_but_for_its_norms(tiny_target, head):
    target = load_model(tiny_target, dtype="float32")
    shape = replace(Shape.from_config(json.loads((tiny_target / "config.json").read_text())), layers=3)
    shape = shape.with_head_of(head) if head else shape
    norms = (2 * shape.layers + 1) * shape.hidden
    assert weight_bytes_read(untrained_model(target, shape)) == 4 * (matrix_parameters(shape) + norms)


def told(recipe, vocab, tokens=None):
    return sizes_told(own_size(recipe.architecture.vocabulary, vocab), vocab, tokens)


def test_the_recipes_own_size_is_among_them(recipe_file):
    recipe = load_recipe(recipe_file, [OWN])
    assert told(recipe, 49152) == [100, *SIZES]
    assert told(recipe, 4096) == [100, 2048]
    assert told(load_recipe(recipe_file, ["architecture.vocabulary={size: 4096}"]), 49152) == list(SIZES)
    rows = dict(rows_of(recipe, draft=WIDE.with_head_of(100)))
    assert [name for name, words in rows.items() if "as this recipe has it" in words] == ["    100 ids"]
    assert "100% of the whole head's" in rows["128,256 ids"]


def test_nothing_is_said_where_the_head_is_little_or_cut_before(recipe_file):
    recipe = load_recipe(recipe_file)
    deep = replace(NAMED_SHAPES["llama-7b"].shape, layers=8)
    assert head_share(deep) < LEAST_SHARE < head_share(replace(deep, layers=1))
    assert head_blocks(recipe, deep, deep, deep) == {}
    assert head_blocks(recipe, deep, deep, replace(deep, layers=1)) != {}
    assert head_blocks(recipe, LLAMA.with_head_of(4096), LLAMA, WIDE.with_head_of(4096)) == {}
    assert head_blocks(recipe, *[replace(shape, vocab=2048) for shape in (LLAMA, LLAMA, WIDE)]) == {}


@pytest.mark.usefixtures("recipe_file")
def test_less_than_is_always_kept_cannot_be_had():
    many = replace(TOKENS, special=frozenset(range(5000)))
    assert told(load_recipe("recipe.yaml"), LLAMA.vocab, many) == [8192, 16384]
    few = replace(TOKENS, ids=frozenset(range(9000)))
    assert told(load_recipe("recipe.yaml"), LLAMA.vocab, few) == [2048, 4096, 8192]


def test_a_check_holds_it_with_the_coverage_of_its_answers(recipe_file):
    few = check_recipe(load_recipe(recipe_file))  # 264 ids are less than any size told of
    assert "output head" not in terminal(*few)
    recipe = load_recipe(recipe_file, [OWN])
    assert re.search(r"  coverage +unknown before run/data holds finished answers\n", terminal(*check_recipe(recipe)))
    save_recipe(recipe, Path("run/recipe.yaml"))
    write_answers(recipe, [trace(0, range(3, 153))], [trace(0, [3, 4, 250, 251])])
    [line] = [line for line in terminal(*check_recipe(recipe)).splitlines() if line.strip().startswith("100 ids")]
    assert "; the ids said most cover 65.3% of training answers, 50.0% of held-out ones, as this recipe has it" in line
    assert "unknown before" not in terminal(*check_recipe(recipe))
