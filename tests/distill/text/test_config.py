"""Recipe section `text`: what it means when it is right, and every mistake by its exact message."""

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
    with pytest.raises(RecipeError, match=r"text must be left out when architecture\.method is greedy"):
        load_recipe(plain)
    assert load_recipe(plain, ["distill.train_on=text", "distill.max_duration=9ba"]).text is not None
    both = load("text: {domains: [{name: a, path: a.txt}]}\ndistill: {train_on: text, max_duration: 9ba}")
    assert (both.distill.train_on, both.distill.isolate_documents) == ("text", True)


def test_a_domain_needs_a_name_and_a_place(load):
    text = load("text: {domains: [{name: wiki, path: wiki.txt}, {name: code, dataset: hub/code, weight: 3}]}").text
    assert text is not None
    assert [(domain.name, domain.weight) for domain in text.domains] == [("wiki", 1.0), ("code", 3.0)]
    assert text.mixture.rule == "paper"
    assert (text.mixture.min_weight, text.mixture.max_weight) == (0.0, 1.0)


def test_a_resolved_recipe_loads_back_equal(load, tmp_path):
    recipe = load("text: {domains: [{name: wiki, path: wiki.jsonl, field: body, reference_loss_nats: 2}]}")
    save_recipe(recipe, tmp_path / "resolved.yaml")
    assert load_recipe(tmp_path / "resolved.yaml") == recipe


# The fifth line of a recipe -> the one mistake it makes.
MISTAKES = {
    "text without domains": (
        "text: {max_seq_len: 8}",
        "r.yaml:5: text.domains must be given. Where text is read from; each domain has a weight of its own.",
    ),
    "text of no domain": (
        "text: {domains: []}",
        "r.yaml:5: text.domains must hold at least one domain, got []. Name one, or leave text out.",
    ),
    "text from two places": (
        "text: {domains: [{name: a, path: a.txt, dataset: b}]}",
        "r.yaml:5: text.domains[0].dataset must be left out beside path, got 'b' and 'a.txt'. Keep one.",
    ),
    "text from nowhere": (
        "text: {domains: [{name: a}]}",
        ("r.yaml:5: text.domains[0].dataset must be given, or path. Text comes from a file or from a `datasets` name."),
    ),
    "split of a text file": (
        "text: {domains: [{name: a, path: a.jsonl, split: test}]}",
        (
            "r.yaml:5: text.domains[0].split must be left out beside path, got 'test'. "
            "A file has no configurations or splits."
        ),
    ),
    "field of plain text": (
        "text: {domains: [{name: a, path: a.txt, field: body}]}",
        "r.yaml:5: text.domains[0].field must be left out beside a plain text file, got 'body' and 'a.txt'.",
    ),
    "two domains of one name": (
        "text: {domains: [{name: a, path: a.txt}, {name: a, path: b.txt}]}",
        "r.yaml:5: text.domains must have a name of its own each, got a, a.",
    ),
    "name that is no name": (
        "text: {domains: [{name: a/b, path: a.txt}]}",
        (
            "r.yaml:5: text.domains[0].name must be a name of letters, digits, '.', '_' and '-', at most 100 "
            "characters, such as wiki or github, got 'a/b'."
        ),
    ),
    "domain without a name": (
        "text: {domains: [{path: a.txt}]}",
        "r.yaml:5: text.domains[0].name must be given. Name of the domain in logs and checkpoints.",
    ),
    "domain without weight": (
        "text: {domains: [{name: a, path: a.txt, weight: 0}]}",
        "r.yaml:5: text.domains[0].weight must be a number > 0, got 0.",
    ),
    "negative reference": (
        "text: {domains: [{name: a, path: a.txt, reference_loss_nats: -1}]}",
        "r.yaml:5: text.domains[0].reference_loss_nats must be a number >= 0 or null, got -1.",
    ),
    "unknown rule": (
        "text: {domains: [{name: a, path: a.txt}], mixture: {rule: bandit}}",
        "r.yaml:5: text.mixture.rule must be fixed or paper or code, got 'bandit'.",
    ),
    "update every epoch": (
        "text: {domains: [{name: a, path: a.txt}], mixture: {update_interval: 1ep}}",
        (
            "r.yaml:5: text.mixture.update_interval must be a Composer time such as 50ba, 1_000_000tok or 0.1dur, "
            "got '1ep'."
        ),
    ),
    "bounds upside down": (
        "text: {domains: [{name: a, path: a.txt}], mixture: {min_weight: 0.6, max_weight: 0.5}}",
        "r.yaml:5: text.mixture.max_weight must be >= text.mixture.min_weight, got 0.5 and 0.6.",
    ),
    "bounds no mixture can keep": (
        "text: {domains: [{name: a, path: a.txt}, {name: b, path: b.txt}], mixture: {min_weight: 0.6}}",
        (
            "r.yaml:5: text.mixture must have min_weight <= 1/2 <= max_weight for 2 domains, got 0.6 and 1.0. "
            "The weights add up to 1."
        ),
    ),
    "misspelled key of a domain": (
        "text: {domains: [{name: a, path: a.txt, reference_loss: 2}]}",
        (
            "r.yaml:5: text.domains[0].reference_loss is not a key of a recipe. "
            "Did you mean text.domains[0].reference_loss_nats?"
        ),
    ),
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(load, line, message):
    with pytest.raises(RecipeError) as raised:
        load(line)
    assert str(raised.value) == message


DRAFT = """\
run_name: demo
target: {path: somewhere}
architecture: {layers: 2}
data: {self_written_prompts: 100}
"""
DOMAIN = "text: {domains: [{name: a, path: a.txt}]}"
# The fifth line of a recipe of a student, and the sixth -> the one mistake they make.
STUDENT_MISTAKES = {
    "text that nobody reads": (
        "distill: {max_duration: 9ba}",
        DOMAIN,
        (
            "r.yaml:6: text must be left out when architecture.method is greedy and distill.train_on is answers: "
            "only learned_masks, train_on text and a vocabulary from text read it."
        ),
    ),
    "no text to train on": (
        "distill: {train_on: text, max_duration: 9ba}",
        "",
        "r.yaml: text must be given when distill.train_on is text: the student is trained on it.",
    ),
    "neither answers nor text": (
        "distill: {train_on: prompts, max_duration: 9ba}",
        "",
        "r.yaml:5: distill.train_on must be answers or text, got 'prompts'.",
    ),
    "answers see no other documents": (
        "distill: {isolate_documents: false}",
        "",
        (
            "r.yaml:5: distill.isolate_documents must be left out when distill.train_on is answers, got false. "
            "Each answer is by itself."
        ),
    ),
    "a cache of text": (
        "distill: {train_on: text, max_duration: 9ba, teacher: {source: cache}}",
        DOMAIN,
        (
            "r.yaml:5: distill.teacher must have source live or none when distill.train_on is text, got cache: a "
            "cache is of answers. Leave source out, or train on answers."
        ),
    ),
    "a warm-up in epochs": (
        "distill: {train_on: text, max_duration: 9ba, scheduler: {t_warmup: 1ep}}",
        DOMAIN,
        (
            "r.yaml:5: distill.scheduler must have t_warmup in ba or dur when distill.max_duration is 9ba, got 1ep. "
            "A schedule needs one clock; dur always fits."
        ),
    ),
    **{
        f"{key} in epochs": (
            f"distill: {{train_on: text, max_duration: 9ba, {key}: 2ep}}".replace("9ba, max_duration: ", ""),
            DOMAIN,
            (
                f"r.yaml:5: distill.{key} must not be in ep when distill.train_on is text, got 2ep. Text begins again "
                "when it ends and has no epochs; ba counts batches."
            ),
        )
        for key in ("max_duration", "eval_interval", "save_interval", "console_log_interval")
    },
    "the usual length of training": (
        "distill: {train_on: text}",
        DOMAIN,
        (
            "r.yaml:5: distill.max_duration must not be in ep when distill.train_on is text, got 1ep. "
            "Text begins again when it ends and has no epochs; ba counts batches."
        ),
    ),
}


@pytest.mark.parametrize(("distill", "text", "message"), STUDENT_MISTAKES.values(), ids=STUDENT_MISTAKES)
def test_mistake_of_a_student_on_text(mistakes, distill, text, message):
    assert mistakes(f"{DRAFT}{distill}\n{text}\n") == [message]
