"""The bench of budgets at size tiny: trainings are made, kept, continued and foretold, and a page tells of them."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import benchmarks.budget.fill as filling
from architectures.checkpoints.manifest import read_manifest
from architectures.draft_vocabulary.head import head_ids
from benchmarks.budget import training
from benchmarks.budget.__main__ import main, text_domain
from benchmarks.budget.own_run import own_budget
from benchmarks.budget.page import BEGIN, END, law_page
from benchmarks.budget.plan import CONFIRMED, FITTED, given
from benchmarks.budget.setting import Setting
from benchmarks.budget.training import TEXT_STEP, make_training, some_answers, train
from distill.budget.law import Budget, fit, varied
from distill.budget.record import read_trainings
from distill.recipe.recipe import load_recipe
from distill.run.artifact import Artifact
from distill.stages.running import run_all
from eval.models.loading import load_model

RECIPE = """\
run_name: tiny
run_dir: RUN
target: {path: TARGET, dtype: float32}
architecture: {layers: 2, method: first_last, vocabulary: {size: 259, from: answers}}
data: {prompts: [{path: PROMPTS}], num_eval_prompts: 5, max_seq_len: 96, max_new_tokens: 10}
distill: {teacher: {source: cache}, precision: fp32, global_train_batch_size: 4, scheduler: {t_warmup: 0ba}}
eval: {max_new_tokens: 8, dtype: float32}
"""
pytestmark = pytest.mark.usefixtures("trainings_begin_at_once")
IDS = 259  # all that the tiny tokenizer has
SMALL = [
    given(tokens, epochs, layers, IDS)
    for (tokens, epochs), layers in product([(20, 1), (40, 1), (40, 2), (70, 2)], [1, 2])
]
WITH_TEXT = given(20, 1, ids=IDS, text_tokens=TEXT_STEP + 1)
LAST = given(60, 1, ids=IDS)


@pytest.fixture(scope="module")
def files(tmp_path_factory, tiny_target) -> Path:
    folder = tmp_path_factory.mktemp("budget")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Add {i} and 2."}) + "\n" for i in range(25)))
    (folder / "text.txt").write_text("Rivers run to the sea, and seas are wide. " * 200)
    words = {"RUN": folder / "run", "TARGET": tiny_target, "PROMPTS": folder / "prompts.jsonl"}
    text = RECIPE
    for name, value in words.items():
        text = text.replace(name, str(value))
    (folder / "tiny.yaml").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch):
    at_hand(monkeypatch)


def at_hand(patch: pytest.MonkeyPatch) -> None:
    """Everything in this process, and trainings of a tiny size."""
    patch.setattr(filling, "in_its_own_process", lambda work, _: work())
    patch.setattr(filling, "FITTED", (*SMALL, WITH_TEXT))
    patch.setattr(filling, "CONFIRMED", (LAST,))
    patch.setattr(filling, "RATE_PROMPTS", 4)


def command(files: Path, *words: str) -> list[str]:
    out = ["--work", str(files / "work"), "--out", str(files / "trainings.json"), "--threads", "1"]
    return [str(files / "tiny.yaml"), "--text", str(files / "text.txt"), *out, *words]


@pytest.fixture(scope="module")
def finished(files):
    with pytest.MonkeyPatch.context() as patch:
        at_hand(patch)
        assert main(command(files)) == 0
    return read_trainings(files / "trainings.json")


def test_every_budget_is_made_and_what_was_really_read_is_told(finished):
    assert [one.asked for one in finished.trainings] == [*SMALL, WITH_TEXT, LAST]
    for one in finished.trainings:
        assert one.asked.answer_tokens <= one.budget.answer_tokens < one.asked.answer_tokens + 10
        assert (one.budget.layers, one.budget.ids) == (one.asked.layers, one.asked.ids)
        assert one.answers_s > 0
        assert len(one.taus) == 4
        assert 1 <= one.taus[0] <= 2
        assert list(one.taus) == sorted(one.taus)
    text = finished.trainings[len(SMALL)]
    assert text.budget.text_tokens == 2 * TEXT_STEP  # whole batches
    assert [one.text_s > 0 for one in finished.trainings] == [one is text for one in finished.trainings]
    assert finished.prompts == 5
    assert finished.answers_per_s > 0
    assert 1 <= finished.tokens_per_answer <= 10


def test_the_last_was_foretold_by_the_law_of_all_before_it(finished):
    *before, last = finished.trainings
    assert not any(one.foretold for one in before)
    law = fit([one.budget for one in before], [one.taus[1] for one in before], 2)
    assert last.foretold[1] == pytest.approx(law.tau(LAST))


def test_it_continues_with_what_is_missing_and_makes_nothing_twice(files, finished, monkeypatch):
    made = []
    monkeypatch.setattr(filling, "training_of", lambda setting, asked, foretold: made.append(asked) or last)
    *kept, last = finished.trainings
    filling.write_trainings(replace(finished, trainings=tuple(kept)), files / "trainings.json")
    assert main(command(files)) == 0
    assert made == [LAST]
    assert read_trainings(files / "trainings.json") == finished


def test_trainings_of_another_recipe_are_refused(files, finished, capsys):
    assert main(command(files, "distill.optimizer.lr=0.5")) == 2
    assert "its inputs is" in (said := capsys.readouterr().err)
    assert "Trainings of both are not one law's: give another --out." in said


def test_a_recipe_of_too_few_answers_is_refused_before_anything_is_trained(files, finished, capsys, monkeypatch):
    monkeypatch.setattr(filling, "CONFIRMED", (given(1000, 1, ids=IDS),))
    monkeypatch.setattr(filling, "training_of", lambda *_: pytest.fail("something was trained"))
    assert main(command(files)) == 2
    assert "has 196 answer tokens to train on, and the largest training reads 1,000" in capsys.readouterr().err


def test_fewer_answers_are_among_more_and_not_the_first_of_the_file(files, finished, tiny_target):
    setting = Setting(recipe=files / "tiny.yaml", words=(), text=(), work=files / "w", out=files / "x.json", threads=1)
    recipe = setting.shared_recipe()
    (few, _, few_tokens), (more, held_out, more_tokens) = (some_answers(setting, recipe, tokens) for tokens in (30, 90))
    assert 30 <= few_tokens < 40 <= 90 <= more_tokens < 100
    assert list(more.indices)[: len(few)] == list(few.indices) != list(range(len(few)))
    assert [few[place][0] for place in range(len(few))] == [few.of[place][0] for place in few.indices]
    assert len(held_out) == 1


def test_text_is_read_before_answers_and_by_the_same_ids(files, finished, tiny_target):
    domain = {"name": "text", "path": str(files / "text.txt")}
    setting = Setting(
        recipe=files / "tiny.yaml", words=(), text=(domain,), work=files / "again", out=files / "x.json", threads=1
    )
    trained = train(setting, WITH_TEXT)
    text, answers = (
        load_model(files / "again" / "training" / name, dtype="float32") for name in ("text/draft", "answers/init")
    )
    ours, theirs = text.state_dict(), answers.state_dict()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    assert [len(head_ids(model)) for model in (text, answers, load_model(trained.draft, dtype="float32"))] == [IDS] * 3


def test_the_recipes_own_run_is_one_more_training(files, finished, monkeypatch, training_here):
    setting = Setting(
        recipe=files / "tiny.yaml",
        words=(),
        text=(text_domain(str(files / "text.txt")),),
        work=files / "work",
        out=files / "x.json",
        threads=1,
    )
    recipe = setting.shared_recipe()
    assert own_budget(recipe) is None, "not trained yet"
    run_all(files / "tiny.yaml", [])
    answers = read_manifest(files / "run" / "data")["counts"]["train"]
    own = Budget(answers["answer_tokens"], 1, 0, 2, IDS)
    assert own_budget(recipe) == own
    assert own_budget(load_recipe(files / "tiny.yaml", ["distill.max_duration=2ep"])) is None, "another training"
    with monkeypatch.context() as stopped:
        whole = Artifact.manifest.fget
        stopped.setattr(Artifact, "manifest", property(lambda artifact: {**whole(artifact), "finished": False}))
        assert own_budget(recipe) is None, "stopped early"
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained anew"))
    scored = make_training(setting, Path(recipe.target.path), own, ())
    assert (scored.budget, scored.answers_s) == (own, 0.0)
    asked = []
    monkeypatch.setattr(filling, "training_of", lambda _, one, __: asked.append(one) or scored)
    filling.write_trainings(replace(finished, trainings=finished.trainings[:-1]), setting.out)
    filling.fill(setting)
    assert asked == [own, LAST]
    assert "| not timed |" in law_page(read_trainings(setting.out))


def test_the_page_has_every_training_and_a_line_for_each_lookahead(files, finished, capsys):
    page = law_page(finished)
    assert page.count("before the law") == len(SMALL) + 1
    assert page.count("after it was foretold") == 1
    assert [line.split(" | ")[0] for line in page.splitlines() if line.startswith(("| 1 |", "| 2 |", "| 3 |", "| 4 |"))]
    doc = files / "doc.md"
    doc.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main(["--page", str(files / "trainings.json"), "--doc", str(doc)]) == 0
    assert page in doc.read_text()
    assert main(["--page", str(files / "trainings.json")]) == 0
    assert page in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["a.yaml", "--page", "b.json"], ["a.yaml", "--doc", "c.md"]])
def test_a_recipe_or_a_page(words, capsys):
    with pytest.raises(SystemExit):
        main(words)


def test_the_plan_varies_everything_alone_and_has_what_the_law_needs():
    assert len(FITTED) >= 12
    assert varied(FITTED) == {"answer_tokens", "epochs", "text_tokens", "layers", "ids"}
    assert len(set(FITTED + CONFIRMED)) == len(FITTED) + len(CONFIRMED)
    assert len(CONFIRMED) == 2
    assert min(one.answer_tokens * one.epochs for one in FITTED) == 20_000
    assert Budget(20_000, 1, 0, 1, 4096) == given(20_000, 1)


def test_text_is_named_by_its_field_where_it_has_one():
    assert text_domain("a/wiki.txt") == {"name": "wiki", "path": "a/wiki.txt"}
    assert text_domain("output=b.jsonl") == {"name": "b", "path": "b.jsonl", "field": "output"}
