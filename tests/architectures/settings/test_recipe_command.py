"""Remedies name the recipe, the values and the --debug of the command that tells them."""

import re
from pathlib import Path

import pytest

from architectures.settings import recipe_command
from architectures.settings.recipe_command import command_of, handed_on, of_recipe, started_with

ROOT = Path(__file__).parents[3]
SPELLED = re.compile(r"widedraft (prune|generate|masks|cache|distill|export|eval|run)( RECIPE)?\b")
OF_ANY_RECIPE = {  # texts that explain a command or are of a file whose recipe nobody knows
    "architectures/pruning/plan_record.py",
    "architectures/engines/rules/transformers_rules.py",
    "architectures/checkpoints/manifest.py",
    "eval/scorecard_schema.py",
    "eval/report.py",
    "eval/engines/certify.py",
    "eval/examples.py",
    "eval/commands/certify.py",
    "distill/stages/scoring_without_recipe.py",
    "distill/recipe/sections/training.py",
    "distill/estimates/expected_work.py",
    "distill/expected_time/stages.py",
    "distill/expected_time/training_time.py",
    "distill/choose/ranked/command.py",  # names the recipe that it wrote
    "distill/commands/export_command.py",
    "distill/commands/recipes.py",  # names the recipe that it wrote
    "distill/hub/push/publish.py",  # names the folder that `widedraft run` prints
}


def test_outside_of_a_recipe_the_word_stands_for_it():
    assert command_of("prune") == "`widedraft prune RECIPE`"


def test_values_and_debug_are_kept_and_quoted_for_the_shell():
    with of_recipe(["my runs/a.yaml", "data.prompts=[{path: x}]", "--debug"]):
        assert command_of("eval", "--checkpoints") == (
            "`widedraft eval 'my runs/a.yaml' 'data.prompts=[{path: x}]' --debug --checkpoints`"
        )
    assert command_of("prune") == "`widedraft prune RECIPE`"


def test_secrets_are_masked():
    with of_recipe(["a.yaml", "distill.loggers.wandb.init_kwargs.api_key=hunter2"]):
        assert "hunter2" not in command_of("run")


def test_a_process_of_a_stage_names_what_its_command_was_given(monkeypatch):
    with of_recipe(["a.yaml", "--debug"]):
        environment = handed_on()
    monkeypatch.setenv(recipe_command.NAMED_VARIABLE, environment[recipe_command.NAMED_VARIABLE])
    assert started_with(["runs/a-debug/recipe.yaml"]) == ["a.yaml", "--debug"]


@pytest.mark.parametrize("package", ["architectures", "eval", "distill"])
def test_no_remedy_spells_a_stage_by_itself(package):
    """A sentence that tells which stage to run takes it from `command_of`; docstrings may name one."""
    spelled = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / package).rglob("*.py"))
        if any(SPELLED.search(line) and '"""' not in line for line in code_lines(path))
    ]
    assert set(spelled) <= OF_ANY_RECIPE


def code_lines(path: Path) -> list[str]:
    """The lines outside of docstrings and comments."""
    text = re.sub(r'"""(?:[^"]|"(?!""))*"""', "", path.read_text(encoding="utf-8"))
    return [line.split("  # ")[0] for line in text.splitlines() if not line.lstrip().startswith("#")]
