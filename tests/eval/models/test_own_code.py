"""Code that a checkpoint brings along is never run, whatever is answered on the terminal."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import widedraft
from eval.models import load_config, load_model, load_tokenizer, require_same_tokenizer
from eval.prompts import dataset_rows
from eval.tasks import PromptSource
from tests.conftest import edit_json
from tests.rejections import rejects

CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class OwnConfig(LlamaConfig):
    model_type = "own_llama"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
AUTO_MAP = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "mark"


@pytest.fixture
def planted(tiny_target, tmp_path, mark, monkeypatch):
    """A checkpoint with a module of its own, and somebody who says yes to everything."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = Path(shutil.copytree(tiny_target, tmp_path / "planted"))
    (folder / "own.py").write_text(CODE.format(mark=str(mark)))
    return folder


@pytest.fixture
def own_model(planted):
    edit_json(planted / "config.json", model_type="own_llama", auto_map=AUTO_MAP)
    return planted


def test_an_unknown_architecture_is_refused_and_its_code_not_run(own_model, tiny_target, mark):
    for step in (
        lambda: load_model(own_model, dtype="float32", device="cpu"),
        lambda: load_config(own_model),
        lambda: require_same_tokenizer(tiny_target, own_model),
    ):
        with rejects(own_model / "config.json", "auto_map"):
            step()
    assert not mark.exists()


def test_a_tokenizers_code_is_not_run(planted, mark):
    own = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
    edit_json(planted / "tokenizer_config.json", **own)
    with rejects(planted, "auto_map"):
        load_tokenizer(planted)
    assert not mark.exists()


def test_an_architecture_that_transformers_knows_is_opened_with_its_own_code(planted, mark):
    edit_json(planted / "config.json", auto_map=AUTO_MAP)
    assert type(load_model(planted, dtype="float32", device="cpu")).__module__.startswith("transformers.")
    assert not mark.exists()


def test_a_recipes_target_is_refused(own_model, mark, capsys, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"run_name: x\nrun_dir: {tmp_path / 'run'}\ntarget: {{path: {own_model}}}\n"
        "architecture: {layers: 1}\ndata: {self_written_prompts: 1}\n"
    )
    assert widedraft.main(["generate", str(recipe)]) == 2
    assert "auto_map" in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.usefixtures("warm")
def test_nothing_is_asked(own_model, tiny_draft, mark):
    code = "import sys, widedraft; sys.exit(widedraft.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "verify", "--target", str(own_model), "--draft", str(tiny_draft)]
    root = Path(__file__).parents[3]
    completed = subprocess.run(command, input="y\n" * 9, cwd=root, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    assert "y/N" not in completed.stdout + completed.stderr
    assert not mark.exists()


def test_an_index_that_names_files_elsewhere_is_not_followed(planted, tmp_path):
    elsewhere = tmp_path / "elsewhere.safetensors"
    (planted / "model.safetensors").rename(elsewhere)
    index = {"metadata": {"total_size": 1}, "weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (planted / "model.safetensors.index.json").write_text(json.dumps(index))
    with rejects("../elsewhere.safetensors"):
        load_model(planted, dtype="float32", device="cpu")


def test_weights_of_another_name_are_refused_as_pruning_would_not_read_them(planted):
    edit_json(planted / "config.json", transformers_weights="other.safetensors.index.json")
    with rejects("transformers_weights"):
        load_model(planted, dtype="float32", device="cpu")


def test_a_data_sets_script_is_not_run(tmp_path, mark):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.py").write_text(CODE.format(mark=str(mark)))
    with rejects(tmp_path / "rows"):
        list(dataset_rows(PromptSource(name=str(tmp_path / "rows"), split="train")))
    assert not mark.exists()
