"""Recipe section `text`: what it means when it is right, and the key of every mistake."""

import pytest

from distill.recipe.recipe import Recipe, RecipeError, load_recipe, save_recipe

BASE = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2, method: learned_masks}
data: {self_written_prompts: 100}
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """load(line) -> the recipe of BASE and the line, its fifth."""
    monkeypatch.chdir(tmp_path)

    def read(line: str) -> Recipe:
        (tmp_path / "r.yaml").write_text(f"{BASE}{line}\n", encoding="utf-8")
        return load_recipe("r.yaml")

    return read


def test_text_and_learned_masks_go_together(load, tmp_path):
    with pytest.raises(RecipeError, match=r"text must be given when architecture\.method is learned_masks"):
        load("")
    plain = tmp_path / "plain.yaml"
    plain.write_text(f"{BASE}text: {{domains: [{{name: a, path: a.txt}}]}}\n".replace(", method: learned_masks", ""))
    with pytest.raises(RecipeError, match="text must be left out"):
        load_recipe(plain)
    assert load_recipe(plain, ["distill.train_on=text", "distill.max_duration=9ba"]).text is not None
    both = load("text: {domains: [{name: a, path: a.txt}]}\ndistill: {train_on: text, max_duration: 9ba}")
    assert both.distill.train_on == "text"


def test_a_domain_needs_a_name_and_a_place(load):
    text = load("text: {domains: [{name: wiki, path: wiki.txt}, {name: code, dataset: hub/code, weight: 3}]}").text
    assert text is not None
    assert [(domain.name, domain.weight) for domain in text.domains] == [("wiki", 1.0), ("code", 3.0)]
    assert text.mixture.rule == "paper"


def test_a_resolved_recipe_loads_back_equal(load, tmp_path):
    recipe = load("text: {domains: [{name: wiki, path: wiki.jsonl, field: body, reference_loss_nats: 2}]}")
    save_recipe(recipe, tmp_path / "resolved.yaml")
    assert load_recipe(tmp_path / "resolved.yaml") == recipe


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("text: {max_seq_len: 8}", "text.domains"),
        ("text: {domains: []}", "text.domains"),
        ("text: {domains: [{name: a, path: a.txt, dataset: b}]}", "text.domains[0].dataset"),
        ("text: {domains: [{name: a}]}", "text.domains[0].dataset"),
        ("text: {domains: [{name: a, path: a.jsonl, split: test}]}", "text.domains[0].split"),
        ("text: {domains: [{name: a, path: a.txt, field: body}]}", "text.domains[0].field"),
        ("text: {domains: [{name: a, path: a.txt}, {name: a, path: b.txt}]}", "text.domains"),
        ("text: {domains: [{name: a/b, path: a.txt}]}", "text.domains[0].name"),
        ("text: {domains: [{path: a.txt}]}", "text.domains[0].name"),
        ("text: {domains: [{name: a, path: a.txt, weight: 0}]}", "text.domains[0].weight"),
        ("text: {domains: [{name: a, path: a.txt, reference_loss_nats: -1}]}", "text.domains[0].reference_loss_nats"),
        ("text: {domains: [{name: a, path: a.txt}], mixture: {rule: bandit}}", "text.mixture.rule"),
        ("text: {domains: [{name: a, path: a.txt}], mixture: {update_interval: 1ep}}", "text.mixture.update_interval"),
        ("text: {domains: [{name: a, path: a.txt, reference_loss: 2}]}", "text.domains[0].reference_loss"),
    ],
)
def test_a_mistake_is_reported_at_its_key(mistakes, line, key):
    [found] = mistakes(f"{BASE}{line}\n")
    assert found.startswith(f"r.yaml:5: {key} ")
