"""What `widedraft check` computes of a reduced vocabulary: coverage of the responses there are."""

import json
import shutil
from pathlib import Path

import pytest

from architectures.errors import UserError
from distill.check import check_recipe, coverage_words, planned_shapes, tokenizer_folder
from distill.run.run import Run
from distill.stages.running import prune_stage

COUNTED = {"size": 261, "from": "answers"}


def covered(recipe) -> str | None:
    return dict(check_recipe(recipe)).get("coverage")


def test_coverage_is_that_of_the_pruned_head(answered):
    recipe = answered()
    assert covered(recipe) == "87.5% of training responses, 25.0% of held-out responses"  # 7 of 8 tokens, 1 of 4
    prune_stage(Run.of(recipe))
    origin = json.loads((Path(recipe.run_dir) / "init" / "draft_vocabulary.json").read_text())["origin"]["coverage"]
    assert [*origin["counted"].values(), *origin["held out"].values()] == [1.0, 0.5, 0.25]  # by source


def test_coverage_is_unknown_without_responses_of_this_recipe(make_recipe, answered):
    recipe = make_recipe(COUNTED)
    assert str(covered(recipe)).startswith("unknown")
    answered()
    assert str(covered(recipe.model_copy(update={"seed": 18}))).startswith("unknown")
    assert covered(answered(None)) is None


def test_ids_of_text_are_known_once_they_were_counted(answered, tmp_path):
    (tmp_path / "t.txt").write_text("word12" * 99)
    text = {"domains": [{"name": "a", "path": str(tmp_path / "t.txt")}], "max_seq_len": 8, "num_eval_sequences": 1}
    recipe = answered({"size": 260, "from": "text"}, text=text)
    assert str(covered(recipe)).startswith("unknown")
    prune_stage(Run.of(recipe))
    assert str(covered(recipe)).endswith("0.0% of held-out responses")


@pytest.mark.parametrize(("ids", "words"), [("[2, 300]", "[300]"), ("[7]", "[2]"), ("[2, 2]", "[2, 2]")])
def test_a_wrong_list_is_told_with_all_else_that_is_wrong(make_recipe, tmp_path, ids, words):
    (tmp_path / "ids.json").write_text(ids)
    recipe = make_recipe({"from": str(tmp_path / "ids.json")}, data={"prompts": [{"path": "missing.jsonl"}]})
    with pytest.raises(UserError) as raised:
        check_recipe(recipe)
    assert words in str(raised.value)
    assert "missing.jsonl" in str(raised.value)


def test_sizes_count_the_small_head(make_recipe):
    whole, small = (planned_shapes(make_recipe(vocabulary)).draft for vocabulary in (None, COUNTED))
    assert small.parameters() == whole.parameters() + 261 * whole.hidden  # the target's head is its embedding


def test_the_tokenizer_of_a_gguf_file_is_where_it_was_imported(make_recipe, wordy_target, tmp_path):
    recipe = make_recipe(COUNTED)
    gguf = recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(tmp_path / "m.gguf")})})
    assert tokenizer_folder(Run.of(gguf)) is None
    assert coverage_words(Run.of(gguf), 320) == "unknown: the target's tokenizer is not here"
    shutil.copytree(wordy_target, tmp_path / "run" / "target")
    assert tokenizer_folder(Run.of(gguf)) == tmp_path / "run" / "target"
    assert tokenizer_folder(Run.of(recipe)) == wordy_target
