"""What a run's answers say, by domain, and how much of it the ids said most cover."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from architectures.checkpoints.manifest import write_manifest
from architectures.errors import UserError
from architectures.vocabulary import Tokens
from distill.recipe.recipe import load_recipe
from distill.run.recorded import target_record
from distill.run.stage_inputs import asked_inputs
from distill.vocabulary.coverage import IdCounts, id_counts_of_answers
from eval.answers.shards import claim_shards, write_shard
from eval.answers.traces import Trace

TRAIN = [[5, 5, 5, 6], [7, 6, 5]]
HELD_OUT = {"code": [5, 8, 8], "maths": [5, 5], None: [7]}
TOKENS = Tokens(frozenset(range(3, 60)), frozenset({3}), frozenset({4}), frozenset({3}))


def trace(number, answer_ids, task=None):
    messages = ({"role": "user", "content": "?"},)
    return Trace(number, "prompts.jsonl:1", messages, (1, 2), tuple(answer_ids), "!", "stop", None, task)


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
    write_manifest(
        folder, stage="generate", inputs=asked_inputs(recipe), counts=counts, target=target_record(recipe.target)
    )


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
    return id_counts_of_answers(recipe, TOKENS)


def test_answers_are_counted_by_domain(said):
    assert said.train == Counter({5: 4, 6: 2, 7: 1})
    assert said.held_out == {"code": Counter([5, 8, 8]), "maths": Counter([5, 5]), "prompts.jsonl": Counter([7])}
    assert said.all_held_out == Counter({5: 3, 7: 1, 8: 2})


def test_ids_are_ranked_by_training_and_held_against_what_was_held_out(said):
    """Two are always kept, then come 5, 6 and 7, then what training never says."""
    covered = [said.covered(size, said.all_held_out) for size in range(2, 7)]
    assert covered == pytest.approx([0, 3 / 6, 3 / 6, 4 / 6, 6 / 6])
    assert said.covered(3, said.held_out["maths"]) == 1
    assert math.isnan(said.covered(3, Counter()))
    with pytest.raises(UserError, match="must be at least 2, got 1"):
        said.covered(1, said.all_held_out)


def test_coverage_never_falls_with_size():
    said = IdCounts(Counter({token: token % 7 for token in range(50)}), {"a": Counter(range(3, 60))}, TOKENS)
    covered = [said.covered(size, said.all_held_out) for size in range(2, 58)]
    assert covered == sorted(covered)
    assert covered[-1] == 1


def test_no_more_is_read_than_is_wanted(recipe, said):
    few = id_counts_of_answers(recipe, TOKENS, most_tokens=4)
    assert (few.train, few.all_held_out.total()) == (Counter({5: 3, 6: 1}), 5)
    assert said.train.total() == 7


def test_answers_that_are_not_there_or_anothers_say_nothing(recipe, said):
    assert said is not None
    other = recipe.model_copy(update={"seed": recipe.seed + 1})
    assert id_counts_of_answers(other, TOKENS) is None
    assert id_counts_of_answers(recipe.model_copy(update={"run_dir": f"{recipe.run_dir}-2"}), TOKENS) is None


def test_without_training_answers_no_ids_are_ranked(recipe):
    write_answers(recipe, [], [trace(0, [5])])
    assert id_counts_of_answers(recipe, TOKENS) is None


def test_a_missing_file_is_told(recipe, said):
    assert said is not None
    (Path(recipe.run_dir) / "data" / "train-00000.jsonl").unlink()
    with pytest.raises(UserError, match=r"1 of 1 shards are missing"):
        id_counts_of_answers(recipe, TOKENS)
