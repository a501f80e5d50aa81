"""What a run's answers say, by domain, and how much of it the ids said most cover."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from architectures.errors import UserError
from architectures.manifest import write_manifest
from distill.coverage import NO_DOMAIN, Answer, Said, answers_said
from distill.recipe import load_recipe
from distill.stage_inputs import asked_inputs, target_record
from eval.shards import claim_shards, write_shard
from eval.traces import Trace

TRAIN = [[5, 5, 5, 6], [7, 6, 5]]
HELD_OUT = {"code": [5, 6, 8], "maths": [5, 5], None: [7]}


def trace(number, answer_ids, category=None, task=None):
    messages = ({"role": "user", "content": "?"},)
    return Trace(number, "prompts.jsonl:1", messages, (1, 2), tuple(answer_ids), "!", "stop", category, task)


def write_answers(recipe, train, held_out):
    folder = Path(recipe.run_dir) / "data"
    for name, traces in (("train", train), ("eval", held_out)):
        if traces:
            [path] = claim_shards(folder, name, {}, num_shards=1)
            write_shard(path, [vars(each) for each in traces])
    counts = {
        name: {"answers": len(traces), "answer_tokens": sum(len(each.answer_ids) for each in traces)}
        for name, traces in (("train", train), ("eval", held_out))
    }
    counts["prompts"] = len(train) + len(held_out)
    write_manifest(folder, stage="generate", inputs=asked_inputs(recipe), counts=counts, target=target_record(recipe))


@pytest.fixture
def recipe(tmp_path, tiny_target):
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"{i}?"}) + "\n" for i in range(6)))
    file = tmp_path / "recipe.yaml"
    file.write_text(
        f"run_name: a\nrun_dir: {tmp_path / 'run'}\ntarget: {{path: {tiny_target}}}\narchitecture: {{layers: 2}}\n"
        f"data: {{prompts: [{{path: {tmp_path / 'prompts.jsonl'}}}], num_eval_prompts: 3}}\n"
    )
    return load_recipe(file)


@pytest.fixture
def said(recipe):
    held_out = [trace(number, ids, domain) for number, (domain, ids) in enumerate(HELD_OUT.items())]
    write_answers(recipe, [trace(number, ids) for number, ids in enumerate(TRAIN)], held_out)
    return answers_said(recipe)


def test_answers_are_counted_by_domain(said):
    assert said.train == Counter({5: 4, 6: 2, 7: 1})
    assert said.held_out == {"code": Counter([5, 6, 8]), "maths": Counter([5, 5]), NO_DOMAIN: Counter([7])}
    assert said.all_held_out == Counter({5: 3, 6: 1, 7: 1, 8: 1})


def test_a_task_comes_before_a_category():
    assert Answer((1,), "algebra", "gsm8k").domain == "gsm8k"
    assert Answer((1,), "algebra").domain == "algebra"


def test_ids_are_ranked_by_training_and_held_against_what_was_held_out(said):
    assert [said.most_said(size) for size in (1, 2, 3, 9)] == [(5,), (5, 6), (5, 6, 7), (5, 6, 7)]
    assert [said.covered(size, said.all_held_out) for size in (1, 2, 3)] == pytest.approx([3 / 6, 4 / 6, 5 / 6])
    assert said.covered(1, said.held_out["maths"]) == 1
    assert math.isnan(said.covered(1, Counter()))


def test_coverage_never_falls_with_size():
    said = Said(Counter({token: token % 7 for token in range(50)}), {"a": Counter(range(60))})
    covered = [said.covered(size, said.all_held_out) for size in range(1, 60)]
    assert covered == sorted(covered)
    assert said.covered(60, said.train) == 1


def test_answers_that_are_not_there_or_anothers_say_nothing(recipe, said):
    assert said is not None
    other = recipe.model_copy(update={"seed": recipe.seed + 1})
    assert answers_said(other) is None
    assert answers_said(recipe.model_copy(update={"run_dir": f"{recipe.run_dir}-2"})) is None


def test_without_training_answers_no_ids_are_ranked(recipe):
    write_answers(recipe, [], [trace(0, [5])])
    assert answers_said(recipe) is None


def test_a_missing_or_damaged_file_is_told(recipe, said):
    assert said is not None
    path = Path(recipe.run_dir) / "data" / "train-00000.jsonl"
    path.write_text('{"answer_ids": [5, "6"]}\n')
    with pytest.raises(UserError, match=r"train-00000.jsonl:1: answer_ids.1: .* got '6'"):
        answers_said(recipe)
    path.unlink()
    with pytest.raises(UserError, match=r"1 of 1 shards are missing"):
        answers_said(recipe)
