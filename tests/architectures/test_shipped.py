"""Files that came with an installation: where they are, and what is told to who lacks one."""

import json
from pathlib import Path, PurePath

import pytest
import yaml

from architectures import files
from architectures.files import PACKAGED_TARGETS, packaged_target, shipped_recipes, shipped_words
from architectures.hub import KNOWN_CONFIGS, config_at_hand, resolve_checkpoint
from tests.rejections import rejects

ROOT = Path(__file__).parents[2]
SMOLLM2 = "models/SmolLM2-135M-Instruct"


def test_an_installation_without_recipes_tells_of_none(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()  # another package's, beside ours
    (tmp_path / "recipes" / "quickstart.yaml").write_text("flour: 500 g\n")
    monkeypatch.setattr(files, "shipped_folders", lambda *_: (tmp_path / "recipes",))
    assert shipped_recipes() == {}
    assert shipped_words(PurePath("quickstart.yaml")) == ""


def test_a_checkout_comes_before_what_is_installed():
    first, *others = files.shipped_folders("recipes", "recipes")
    assert first == ROOT / "recipes"
    assert all(folder.parts[-3:] == ("share", "widedraft", "recipes") for folder in others)
    assert len(others) == 3


def test_a_packaged_target_that_is_not_there_is_told_with_the_command_that_makes_it(tmp_path, monkeypatch):
    """And the hub is not asked for a repository of that name."""
    monkeypatch.chdir(tmp_path)
    for path in (SMOLLM2, f"./{SMOLLM2}", f"{SMOLLM2}/"):
        with rejects(path, "widedraft recipes quickstart --with-target"):
            resolve_checkpoint(path)
    assert config_at_hand(SMOLLM2, "main") == (KNOWN_CONFIGS[SMOLLM2], False)


def test_the_command_of_a_packaged_target_names_a_recipe_of_that_target():
    for path, packaged in PACKAGED_TARGETS.items():
        text = shipped_recipes()[packaged.recipe].read_text(encoding="utf-8")
        assert yaml.safe_load(text)["target"]["path"] == path
        assert packaged.command in text
    assert packaged_target("owner/name") is None


@pytest.mark.real
@pytest.mark.parametrize("path", PACKAGED_TARGETS)
def test_what_is_known_of_a_packaged_target_is_what_its_config_says(path):
    file = ROOT / path / "config.json"
    if not file.is_file():
        pytest.skip(f"{path} is not there; `widedraft recipes` makes it")
    config = json.loads(file.read_text(encoding="utf-8"))
    flat = {**config, **config["rope_parameters"]}
    assert {key: flat[key] for key in KNOWN_CONFIGS[path]} == KNOWN_CONFIGS[path]
