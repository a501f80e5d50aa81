"""What looks like a secret does not get into files, and nothing else is masked."""

import sys

import pytest

from architectures.files import masked
from architectures.manifest import command


@pytest.mark.parametrize(
    "word",
    [
        "data.max_new_tokens=64",
        "variables={keys: 3, tokens: 4, author: me}",
        "distill.loggers.wandb.init_kwargs.api_key=${oc.env:WANDB_API_KEY}",
        "distill.loggers={wandb: {init_kwargs: {api_key: '${oc.env:KEY}'}}}",
        "monkey=3",
    ],
)
def test_what_is_no_secret_stays(word):
    assert masked(word) == word


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("distill.loggers.wandb.init_kwargs.api_key=sk, 1", "distill.loggers.wandb.init_kwargs.api_key=***"),
        ("variables.PASSWORD=a b", "variables.PASSWORD=***"),
        ("x={wandb: {api_key: sk 1, tags: [a]}}", "x={wandb: {api_key: ***, tags: [a]}}"),
        ('x={"token": "a, b", "n": 1}', 'x={"token": ***, "n": 1}'),
        ("tracking_uri=https://me:pw@host/x", "tracking_uri=https://me:***@host/x"),
    ],
)
def test_what_looks_like_a_secret_is_masked(word, kept):
    assert masked(word) == kept


def test_manifests_have_the_command_without_secrets(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["widedraft", "run", "r.yaml", "variables.api_key=sk-1"])
    assert command() == ["widedraft", "run", "r.yaml", "variables.api_key=***"]
