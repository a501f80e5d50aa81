"""Settings of commands: each is in the help and says what it is; wrong values exit with 2 and name their flag."""

import argparse
import re
from typing import Annotated

import pytest
from pydantic import Field

import widedraft
from architectures.errors import UserError
from architectures.settings import (
    Flag,
    Section,
    Seed,
    SpeculativeTokenCounts,
    flag_of,
    given_flag,
    options_of,
    read_settings,
)
from tests.rejections import rejects


@pytest.mark.parametrize("stage", widedraft.COMMANDS)
def test_help_shows_and_explains_every_setting(stage, capsys):
    with pytest.raises(SystemExit):
        widedraft.main([stage, "--help"])
    page = re.sub(r"[-\s]", "", capsys.readouterr().out)
    settings = widedraft.COMMANDS[stage].settings
    schema = settings.model_json_schema()
    for name, field in settings.model_fields.items():
        told, node = given_flag(field), schema["properties"][name]
        assert re.sub(r"[-\s]", "", str(told.metavar) if told.is_word else flag_of(name)) in page
        assert node.get("description") or options_of(node, schema)[0].get("description")


class Settings(Section):
    """Of no command."""

    recipe: Annotated[str, Flag(metavar="RECIPE", is_word=True)] = Field(description="A file.")
    seed: Seed = 17
    num_speculative_tokens: SpeculativeTokenCounts = (1, 2)
    confidence: float = Field(default=0.9, gt=0, lt=1, description="Of intervals.")


def read(*words: str) -> Settings:
    return read_settings(argparse.ArgumentParser(), Settings, words)


def test_words_become_settings():
    assert read("a.yaml", "--num-speculative-tokens", "1", "4", "--seed=3") == Settings(
        recipe="a.yaml", num_speculative_tokens=(1, 4), seed=3
    )


@pytest.mark.parametrize("value", ["-1", "9" * 5000, "4294967296", "x", "", "1.5"])
def test_a_value_out_of_range_names_its_flag(value):
    with rejects("--seed:") as raised:
        read("a.yaml", f"--seed={value}")
    assert len(str(raised.value)) < 300


def test_every_mistake_is_reported_at_once():
    with pytest.raises(UserError) as raised:
        read("a.yaml", "--num-speculative-tokens", "1", "0", "--confidence", "nan", "--seed=x")
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == [
        "--seed",
        "--num-speculative-tokens",
        "--confidence",
    ]
