"""Every command that loads a target lets it be held in every way, or says why not."""

import json
import re

import pytest

import widedraft
from architectures.settings.flags import flag_of
from architectures.settings.holding import PLACING

SAYS = (*PLACING, "target_bits")
BY_FLAGS = {name: set(SAYS) for name in ("eval", "verify", "quality", "compare")}
BY_FLAGS |= {"latency": {"target_bits"}, "speed": set(), "lookup": set(), "certify": set()}
BY_RECIPE = {"run", "prune", "generate", "cache", "distill", "masks", "requests", "choose"}  # section target says it
LOADS_NONE = {"check", "preflight", "convert", "export", "push", "recipes", "shift", "report",
              "import-gguf", "export-recorded", "rounds"}  # fmt: skip
ON_A_PAIR = ["--target", "none", "--draft", "none"]
WORDS = {
    "eval": [*ON_A_PAIR, "--prompts", "none"],
    "quality": [*ON_A_PAIR, "--checks", "multiplication"],
    "certify": ["none", "--target", "none", "--engine", "transformers"],
    **{name: ["--target", "none", "--drafts", "none"] for name in ("speed", "latency")},
}
VALUES = {"target_placement": "layers", "target_device_memory_gib": "1", "target_host_memory_gib": "1"}


def fields(command):
    return set(widedraft.STAGES[command].settings.model_fields)


def test_no_command_is_forgotten():
    assert {*BY_FLAGS, *BY_RECIPE, *LOADS_NONE} == widedraft.STAGES.keys()
    assert all("recipe" in fields(command) for command in BY_RECIPE)


@pytest.mark.parametrize("command", BY_FLAGS)
@pytest.mark.parametrize("name", SAYS)
def test_a_command_has_the_flag_or_says_why_not_in_its_help_too(command, name, capsys):
    settings = widedraft.STAGES[command].settings
    if name in BY_FLAGS[command]:
        assert name in settings.model_fields
        return
    assert name not in settings.model_fields
    words = [command, *WORDS.get(command, ON_A_PAIR), flag_of(name), VALUES.get(name, "8")]
    assert widedraft.main(words) == 2
    why = settings.left_out[name]
    assert capsys.readouterr().err.strip() == f"{flag_of(name)} is not of this command. {why}"
    with pytest.raises(SystemExit):
        widedraft.main([command, "--help"])
    assert re.sub(r"\s+", "", why) in re.sub(r"\s+", "", capsys.readouterr().out)


@pytest.mark.parametrize("command", ["verify", "quality", "compare"])
@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--target-bits", "4", "--target-placement", "layers"], "bits is 4 with placement: layers"),
        (["--target-device-memory-gib", "4"], "device_memory_gib is 4 with placement: whole"),
        (["--target-placement", "layers", "--capture"], "--capture makes steps of plain weights that stay where"),
        (["--target-bits", "8", "--compile"], "--compile makes steps of plain weights that stay where they are"),
    ],
)
def test_what_does_not_go_together_is_refused(command, words, refused, capsys):
    assert widedraft.main([command, *WORDS.get(command, ON_A_PAIR), *words]) == 2
    assert refused in capsys.readouterr().err


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What comes after {number}?"}) + "\n" for number in (3, 4)))
    return str(file)


HELD = {
    "whole": [],
    "layers": ["--target-placement", "layers"],
    "spread": ["--target-placement", "spread", "--target-device-memory-gib", "0.00045"],
}


@pytest.mark.parametrize("command", ["verify", "compare", "quality"])
def test_texts_are_those_of_the_whole_target(command, tiny_target, prompts, tmp_path, capsys):
    """What is printed, but for times, and every round."""
    own = [] if command == "quality" else ["--prompts", prompts]
    own += ["--checks", "multiplication", "--num-prompts", "3"] if command == "quality" else []
    said = {}
    for placement, flags in HELD.items():
        file = tmp_path / f"{placement}.jsonl"
        words = [command, "--target", str(tiny_target), "--draft", str(tiny_target), "--max-new-tokens", "6",
                 "--dtype", "float32", "--rounds", str(file), *own, *flags]  # fmt: skip
        assert widedraft.main(words) == 0, capsys.readouterr().err
        texts = [json.loads(line) for line in file.read_text().splitlines()[1:]]
        said[placement] = [{key: value for key, value in row.items() if not key.endswith("_s")} for row in texts]
    assert said["layers"] == said["whole"] == said["spread"]
    assert said["whole"]
