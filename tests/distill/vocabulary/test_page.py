"""What `widedraft check` says of a vocabulary: shares by domain of the answers there are, without torch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import widedraft
from architectures.checkpoints.manifest import write_manifest
from architectures.errors import UserError
from architectures.pages.terminal import terminal
from distill.checking.check import check_recipe, disk_rows
from distill.checking.planned_cut import planned
from distill.estimates import vocabulary_coverage as page
from distill.estimates.expected_work import Work
from distill.recipe.recipe import save_recipe
from distill.run.run import Run
from distill.stages.running import prune_stage

COUNTED = {"size": 261, "from": "answers"}


@pytest.fixture
def lines():
    """lines(recipe) -> title and rows of the block about the vocabulary."""

    def of(recipe) -> list[str]:
        found = [section for section in check_recipe(recipe) if section.title.startswith("vocabulary")]
        return [" ".join(line.split()) for line in terminal(*found).splitlines()]

    return of


def test_shares_are_told_by_domain(answered, lines):
    assert lines(answered()) == [
        "vocabulary (261 of 320 ids, from answers; share covered)",
        "1.0000 training answers, a.jsonl: of 6 tokens",
        "0.5000 training answers, gsm8k/1: of 2 tokens",
        "0.2500 held-out answers, a.jsonl: of 4 tokens",
        "unknown other prompts than the data's: eval.tasks names none",
    ]


def test_check_tells_what_the_cut_then_does(answered, lines):
    recipe = answered()
    told = lines(recipe)
    prune_stage(Run.of(recipe))
    origin = json.loads((Path(recipe.run_dir) / "init" / "draft_vocabulary.json").read_text())["origin"]["coverage"]
    shares = [*origin["counted"].values(), *origin["held out"].values()]
    assert [float(line.split()[0]) for line in told[1:-1]] == [round(share, 4) for share in shares]


def test_prompts_that_training_never_sees(answered, lines, tmp_path):
    tasks = {"tasks": [{"path": str(tmp_path / "prompts.jsonl")}]}
    recipe = answered(eval=tasks)
    assert lines(recipe)[-1].startswith("unknown answers to eval.tasks, which training never sees, until")
    data, folder = Path(recipe.run_dir) / "data", Path(recipe.run_dir) / "eval"
    for temperature in ("T0", "T1"):
        shutil.copytree(data, folder / "answers" / temperature)
    assert lines(recipe)[-1].startswith("unknown")  # not finished
    write_manifest(folder, stage="eval", inputs={})
    assert lines(recipe)[-2:] == [
        "0.2500 answers never trained on, temperature 0, a.jsonl: of 4 tokens",
        "0.2500 answers never trained on, temperature 1, a.jsonl: of 4 tokens",
    ]


def test_without_answers_one_line_says_so(make_recipe, answered, lines):
    recipe = make_recipe(COUNTED)
    (row,) = lines(recipe)[1:]
    assert row.startswith("unknown ")
    assert row.endswith("data holds no answers of this recipe yet; `widedraft generate RECIPE` writes them")
    answered()
    (row,) = lines(recipe.model_copy(update={"seed": 18}))[1:]  # those are of another recipe
    assert row.startswith("unknown ")


def test_a_recipe_that_says_every_id_has_no_such_block(answered, lines):
    assert lines(answered(None)) == []


def test_a_list_is_measured_on_the_same_answers(answered, lines, tmp_path):
    (tmp_path / "ids.json").write_text("[2, 270]")
    found = lines(answered({"from": str(tmp_path / "ids.json")}))
    assert found[0].startswith("vocabulary (2 of 320 ids, from ")
    assert [line.split()[0] for line in found[1:-1]] == ["0.5000", "0.5000", "0.0000"]


def test_ids_of_text_are_known_once_they_were_counted(answered, lines, tmp_path):
    (tmp_path / "t.txt").write_text("word12" * 99)
    text = {"domains": [{"name": "a", "path": str(tmp_path / "t.txt")}], "max_seq_len": 8, "num_eval_sequences": 1}
    recipe = answered({"size": 260, "from": "text"}, text=text)
    assert lines(recipe)[1:] == ["unknown `widedraft prune RECIPE` counts the text, and leaves its ids in <run>/init"]
    prune_stage(Run.of(recipe))
    assert [line.split()[0] for line in lines(recipe)[1:4]] == ["0.1667", "0.5000", "0.0000"]
    assert lines(answered({"size": 262, "from": "text"}, text=text))[1].startswith("unknown")


def test_only_the_first_tokens_of_long_answers_are_read(answered, lines, monkeypatch):
    monkeypatch.setattr(page, "MOST_TOKENS", 3)
    assert lines(answered())[1:3] == [
        "1.0000 training answers, a.jsonl: of the first 3 tokens",
        "0.2500 held-out answers, a.jsonl: of the first 4 tokens",
    ]


@pytest.mark.parametrize(
    ("ids", "words"),
    [("[2, 300]", "holds 300, which the tokenizer"), ("[7]", "lack 2, at which"), ("[2, 2]", "holds 2 more than once")],
)
def test_a_wrong_list_is_told_with_all_else_that_is_wrong(make_recipe, tmp_path, ids, words):
    (tmp_path / "ids.json").write_text(ids)
    recipe = make_recipe({"from": str(tmp_path / "ids.json")}, data={"prompts": [{"path": "missing.jsonl"}]})
    with pytest.raises(UserError) as raised:
        check_recipe(recipe)
    assert words in str(raised.value)
    assert "missing.jsonl" in str(raised.value)


def test_sizes_count_the_small_head(make_recipe):
    whole, small = (planned(make_recipe(vocabulary)).draft for vocabulary in (None, COUNTED))
    assert small.parameters() == whole.parameters() + 261 * whole.hidden  # the target's head is its embedding
    recipe = make_recipe(COUNTED)
    rows = disk_rows(recipe, planned(recipe), Work(12, 10))
    assert (f"{small.parameters() * 4 / 2**20:6.1f} MiB", "init, float32") in rows


def test_the_target_of_a_gguf_file_is_read_where_it_was_imported(make_recipe, wordy_target, lines, tmp_path):
    recipe = make_recipe(COUNTED)
    gguf = recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(tmp_path / "m.gguf")})})
    assert page.target_at_hand(Run.of(gguf)) is None
    shutil.copytree(wordy_target, tmp_path / "run" / "target")
    assert page.target_at_hand(Run.of(gguf)) == tmp_path / "run" / "target"
    assert page.target_at_hand(Run.of(recipe)) == wordy_target


def test_check_loads_no_torch(answered, tmp_path):
    save_recipe(answered(), tmp_path / "r.yaml")
    root = Path(widedraft.__file__).parent
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import widedraft; widedraft.main(sys.argv[1:]);"
        "sys.exit(str([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules] or ''))"
    )
    command = [sys.executable, "-c", program, "check", str(tmp_path / "r.yaml")]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.stderr.strip() == ""
    assert "1.0000   training answers" in completed.stdout
