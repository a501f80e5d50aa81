"""Every shipped recipe: whole, alike where it should be, checked without a network, and run at debug size."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import widedraft
from architectures.console import terminal
from architectures.hub import KNOWN_CONFIGS
from architectures.manifest import read_manifest
from distill.check import check_recipe, facts_table, planned_shapes
from distill.debug import debug_recipe, tiny_run
from distill.estimate import matrix_parameters
from distill.recipe.recipe import load_recipe

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
LAPTOP = ("quickstart", "smollm2-chat", "smollm2-gsm8k")
CODER = "qwen2.5-coder-1.5b"  # its target is made from packages too, but too large for every checkout
PUBLISHED = [path for path in RECIPES if path.stem not in (*LAPTOP, CODER)]  # targets of the hub
ASKED_FOR = {
    "llama-7b-wide-1.3b", "llama-7b-wide-796m", "llama-7b-wide-543m", "llama-7b-wide-290m",
    "llama2-7b-wide-1.3b", "llama2-7b-wide-796m", "llama2-7b-wide-543m", "llama2-7b-wide-290m", "llama2-7b-deep-1.3b",
    "llama3.1-8b-wide-829m", "mistral-7b-wide", "qwen2.5-7b-wide", CODER, *LAPTOP,
}  # fmt: skip
RUN_IN_DEPTH = {  # with words that bring in what others have
    "llama-7b-wide-290m": (
        "architecture={shape: wide-290m, method: learned_masks}",
        "distill.teacher={source: cache}",
        "text={domains: [{name: wiki, dataset: nowhere/at-all}, {name: code, path: absent.jsonl, field: body}]}",
    ),
    "llama3.1-8b-wide-829m": (
        "architecture.vocabulary={size: 32768, from: responses}",
        "distill.loss=forward_kl",
        "eval.tasks=[{path: absent.jsonl}]",
    ),
    "quickstart": (),
    CODER: (),
}
BASE = [path for path in PUBLISHED if path.stem.startswith("llama-7b-")]  # of LLaMA-7B, which is no chat model
OF_THE_TARGET = ("run_name", "target", "architecture")  # keys that recipes of several targets do not share
LABELS = ("Command", "Hardware", "Hours", "Expect")
every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def header(path: Path) -> dict[str, str]:
    """The labelled paragraphs of a recipe's first comment, and what stands before them under ""."""
    comment = path.read_text(encoding="utf-8").split("\n\n", 1)[0]
    found, label = {"": ""}, ""
    for line in comment.splitlines():
        text = line.removeprefix("#").strip()
        if match := re.match(r"(Command|Hardware|Hours|Step|Expect): +", text):
            label, text = match[1], text[match.end() :]
        found[label] = f"{found.get(label, '')} {text}".strip()
    return found


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder as a checkout has it: recipes, and the target that `make` fetches if it is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("recipes").symlink_to(ROOT / "recipes")
    Path("models").symlink_to(ROOT / "models")
    return tmp_path


def needs_smollm2(path: Path) -> None:
    if path.stem in LAPTOP and not (ROOT / "models" / "SmolLM2-135M-Instruct" / "config.json").is_file():
        pytest.skip("models/SmolLM2-135M-Instruct is not there; `make test` fetches it")


def test_the_recipes_users_came_for_are_there():
    assert {path.stem for path in RECIPES} == ASKED_FOR


@every_recipe
def test_header_has_its_labels_and_the_file_name(path):
    lines = header(path)
    assert set(LABELS) <= lines.keys()
    assert f"recipes/{path.name}" in lines["Command"]
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=recipe.schema.json\n#\n# ")
    for label in ("Hours", "Expect", *(["Step"] if path in PUBLISHED else [])):
        assert lines[label].startswith("measured" if path.stem in (*LAPTOP, CODER) else "estimate"), label


@every_recipe
def test_header_states_the_layers_of_the_draft(path, here):
    needs_smollm2(path)
    assert f"{planned_shapes(load_recipe(path)).draft.layers}-layer" in header(path)[""].split()


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem not in LAPTOP], ids=lambda path: path.stem)
def test_header_states_the_parameters_of_the_draft(path):
    assert f"{planned_shapes(load_recipe(path)).draft.parameters() / 1e6:.1f}M" in header(path)[""]


def test_header_of_llama_3_states_the_share_of_the_output_head():
    path = ROOT / "recipes" / "llama3.1-8b-wide-829m.yaml"
    draft = planned_shapes(load_recipe(path)).draft
    share = draft.vocab * draft.hidden / matrix_parameters(draft)
    assert {f"{share:.0%}", "docs/deploy.md"} <= set(re.findall(r"[\w./]+%?", header(path)[""]))


@every_recipe
def test_names_agree_with_the_file(path):
    recipe = load_recipe(path)
    assert recipe.run_name == path.stem
    assert recipe.run_dir == f"runs/{path.stem}"
    assert path.stem.endswith(recipe.architecture.shape or path.stem)


@every_recipe
def test_it_passes_check_without_a_network(path, here):
    needs_smollm2(path)
    write_prompts(Path("data"))
    rows = check_recipe(load_recipe(path))
    names, stages = ({row.name for row in rows}, {row.value.split()[0] for row in rows if row.name == "memory"})
    assert {"target", "draft", "disk", "steps", "hours"} <= names
    assert {"generate", "distill", "eval"} <= stages
    assert ("not checked" in names) == (path.stem not in LAPTOP)
    assert len(terminal(facts_table(rows, verbose=False)).splitlines()) <= 25
    assert len(terminal(facts_table(rows, verbose=True)).splitlines()) == len(rows)


FIELDS = {"gsm8k": "question", "alpaca": "instruction", "mt_bench": "turns"}


def write_prompts(folder: Path) -> None:
    """The files that recipes of a laptop read beside their own prompts."""
    folder.mkdir()
    names = ("gsm8k_train", "gsm8k_test", "alpaca_train", "alpaca_test", "mt_bench", "instruct")
    for name in names:
        field = FIELDS.get(name.removesuffix("_train").removesuffix("_test"), "prompt")
        asked = [f"What is said in {name}, {number}?" for number in range(100)]
        rows = "".join(json.dumps({field: [text] if field == "turns" else text}) + "\n" for text in asked)
        (folder / f"{name}.jsonl").write_text(rows, encoding="utf-8")


def test_what_the_chat_recipe_lacks_is_named_with_where_it_is(here, capsys):
    assert widedraft.main(["check", "recipes/smollm2-chat.yaml"]) == 2
    said = capsys.readouterr().err
    for name, rows in (("gsm8k", "openai/gsm8k"), ("alpaca", "tatsu-lab/alpaca")):
        assert f"data/{name}_train.jsonl" in said
        assert rows in said
    assert "data/mt_bench.jsonl" in said


def written(path: Path) -> dict[str, Any]:
    """A recipe as its file has it."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def without_target(recipe: dict[str, Any], *keys_of_data: str) -> dict[str, Any]:
    """What recipes of several targets share; some keys of data depend on the target too."""
    shared = {key: value for key, value in recipe.items() if key not in OF_THE_TARGET}
    return shared | {"data": {key: value for key, value in recipe["data"].items() if key not in keys_of_data}}


def test_published_targets_share_data_training_and_scoring():
    """What may differ: the target, the cut, and how many responses fit beside the target's keys and values.

    Of a base model also the prompts, and how long a text may be.
    """
    chat = [written(path) for path in PUBLISHED if path not in BASE]
    alike = [without_target(recipe, "batch_size") for recipe in chat]
    assert all(recipe == alike[0] for recipe in alike)
    everyone = [without_target(written(path), "batch_size", "prompts", "max_seq_len") for path in PUBLISHED]
    assert all(recipe == everyone[0] for recipe in everyone)


def test_recipes_of_llama_7b_differ_by_their_cut_alone():
    recipes = [written(path) for path in BASE]
    assert len(recipes) == 4
    assert all(without_target(recipe) == without_target(recipes[0]) for recipe in recipes)
    assert all(recipe["target"] == {"path": "huggyllama/llama-7b"} for recipe in recipes)


@pytest.mark.parametrize("path", BASE, ids=lambda path: path.stem)
def test_a_recipe_of_the_base_model_is_its_chat_siblings_but_for_target_and_texts(path):
    base, chat = written(path), written(path.with_name(path.name.replace("llama-7b", "llama2-7b")))
    assert base["architecture"] == chat["architecture"]
    assert without_target(base, "prompts", "max_seq_len") == without_target(chat, "prompts", "max_seq_len")
    assert base["data"]["prompts"] == [{"task": "c4", "num_prompts": 50_000}]
    assert [source["num_prompts"] for source in chat["data"]["prompts"]] == [50_000]
    known = KNOWN_CONFIGS[base["target"]["path"]]
    assert base["data"]["max_seq_len"] + base["data"]["max_new_tokens"] == known["max_position_embeddings"]
    assert "LLaMA-7B" in header(path)[""]


def test_the_control_differs_by_its_shape_alone():
    wide, deep = (written(ROOT / "recipes" / f"llama2-7b-{name}-1.3b.yaml") for name in ("wide", "deep"))
    assert {key for key in wide if wide[key] != deep[key]} == {"run_name", "architecture"}
    assert {key for key in wide["architecture"] if wide["architecture"][key] != deep["architecture"][key]} == {"shape"}
    recipes = [load_recipe(ROOT / "recipes" / f"llama2-7b-{name}-1.3b.yaml") for name in ("wide", "deep")]
    sizes = [planned_shapes(recipe).draft for recipe in recipes]
    assert sizes[0].parameters() == pytest.approx(sizes[1].parameters(), rel=0.01)
    assert sizes[0].layers * 2 == sizes[1].layers


def leaves(values: Any, *way: str) -> set[tuple[str, ...]]:
    """Every value with its key, of a number of layers, widths or ids its kind alone."""
    if isinstance(values, dict):
        return {leaf for key, value in values.items() for leaf in leaves(value, *way, key)}
    is_size = way[0] == "architecture" and isinstance(values, int | float)
    return {(*way, str(type(values) if is_size else values))}


def debug_form(path: Path, *words: str) -> set[tuple[str, ...]]:
    """What the recipe of a debug run says, but for its name, the sizes of its cut, and files that it reads instead."""
    recipe = load_recipe(path, words)
    cut = planned_shapes(recipe)
    small = debug_recipe(recipe, tiny_run(recipe, cut.target, cut.source)).model_dump_json()
    return leaves({**json.loads(small.replace(path.stem, "NAME")), "variables": None})


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if path.stem not in RUN_IN_DEPTH], ids=lambda path: path.stem
)
def test_one_that_is_not_run_says_nothing_that_is_in_none_that_is(path):
    said = [debug_form(path.with_stem(name), *words) for name, words in RUN_IN_DEPTH.items()]
    assert debug_form(path) - set.union(*said) == set()


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem in RUN_IN_DEPTH], ids=lambda path: path.stem)
def test_it_runs_at_debug_size(path, here, training_here, capsys, request):
    needs_smollm2(path)
    if path.stem != "quickstart":
        request.getfixturevalue("pictures_left_out")
    words = RUN_IN_DEPTH[path.stem]
    assert widedraft.main(["run", f"recipes/{path.name}", *words, "--debug"]) == 0
    run = Path("runs") / f"{path.stem}-debug"
    scorecard = json.loads((run / "eval" / "scorecard.json").read_text(encoding="utf-8"))
    assert [draft["draft"] for draft in scorecard["drafts"]] == ["undistilled", "draft"]
    assert (read_manifest(run / "draft") or {})["finished"]
    assert {entry.name for entry in Path("runs").iterdir()} == {run.name}  # the real run is never touched
    printed = capsys.readouterr()
    assert str(run / "draft") in printed.out
    assert printed.err.startswith("--debug: ")
    with (run / "data" / "train-00000.jsonl").open(encoding="utf-8") as responses:
        roles = {message["role"] for line in responses for message in json.loads(line)["messages"]}
    assert roles == ({"text"} if path in BASE else {"user"})
    plan = json.loads((run / "init" / "plan.json").read_text(encoding="utf-8"))
    assert (plan["method"] == "learned_masks") == (run / "masks").exists() == any("masks" in word for word in words)


@pytest.mark.usefixtures("warm")
def test_debug_by_two_processes_is_said_and_written_once(here):
    """Composer's launcher, and files that one of the processes writes for both."""
    words = ("recipes/llama-7b-wide-290m.yaml", *RUN_IN_DEPTH["llama-7b-wide-290m"], "--debug")
    completed = subprocess.run(
        [sys.executable, "-m", "composer.cli", "-n", "2", "-m", "distill.train", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    said = completed.stdout + completed.stderr
    assert completed.returncode == 0, said
    assert said.count("--debug: ") == 1
    assert (read_manifest(Path("runs/llama-7b-wide-290m-debug/masks")) or {})["stage"] == "masks"


@pytest.mark.parametrize("layers", [1, 12])
def test_the_example_of_the_docs_is_a_recipe_of_every_depth(layers):
    example = ROOT / "docs" / "depths" / "six-drafts.yaml"
    recipe = load_recipe(example, [f"architecture.layers={layers}", "variables.data=elsewhere"])
    assert (recipe.run_dir, recipe.architecture.layers) == (f"runs/depth-{layers}", layers)
    sources = [*(recipe.data.prompts or ()), *recipe.eval.tasks]
    assert [source.path for source in sources if not str(source.path).startswith("elsewhere/")] == []
