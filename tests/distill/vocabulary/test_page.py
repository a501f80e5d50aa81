"""What `widedraft check` reads of a reduced vocabulary: the list of its ids, and the sizes."""

import shutil

import pytest

from architectures.errors import UserError
from distill.check import check_recipe, planned_shapes, tokenizer_folder
from distill.run import Run

COUNTED = {"size": 261, "from": "responses"}


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
    shutil.copytree(wordy_target, tmp_path / "run" / "target")
    assert tokenizer_folder(Run.of(gguf)) == tmp_path / "run" / "target"
    assert tokenizer_folder(Run.of(recipe)) == wordy_target
