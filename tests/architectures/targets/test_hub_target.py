"""The hub as a source: what is pinned stays, what arrives is what the hub has, and failures say what to do.

Asked through huggingface_hub of a stand-in of the hub.
"""

import json
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import errors

from architectures.errors import UserError
from architectures.hub import hub_failure, resolve_checkpoint, without_token
from architectures.manifest import fingerprint_checkpoint, write_manifest
from distill.run import ARTIFACTS, Artifact
from tests.hub.clients import READER, STRANGER, WRITER, log_in, served
from tests.hub.server import HubStandIn
from tests.hub.store import Repository
from tests.rejections import rejects

CONFIG = json.dumps({"model_type": "llama", "hidden_size": 64}).encode()
WEIGHTS = bytes(range(256)) * 1000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    with served(monkeypatch, tmp_path / "cache", token=READER) as hub:
        yield hub


@pytest.fixture
def model(hub: HubStandIn) -> Repository:
    """A public model with a small file, a large one, and one that nobody wants."""
    model = hub.store.create("org/model")
    model.move(config__json=CONFIG, model__safetensors=WEIGHTS, pytorch_model__bin=b"not wanted")
    return model


def refused(path: str = "org/model", revision: str = "main") -> str:
    with pytest.raises(UserError) as caught:
        resolve_checkpoint(path, revision=revision)
    said = "".join(traceback.format_exception(caught.value))
    assert not [token for token in (WRITER, READER, STRANGER) if token in said]
    return str(caught.value)


def test_what_is_fetched_is_what_the_hub_has(hub, model):
    folder = resolve_checkpoint("org/model")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
    }
    assert folder.name == model.branches["main"]


def test_a_pinned_commit_stays_what_it_was(hub, model):
    pinned = model.branches["main"]
    before = fingerprint_checkpoint(resolve_checkpoint("org/model", revision=pinned))
    model.move(model__safetensors=b"other weights")
    assert fingerprint_checkpoint(resolve_checkpoint("org/model", revision=pinned)) == before
    assert fingerprint_checkpoint(resolve_checkpoint("org/model")) != before


def test_a_branch_that_moved_between_two_stages_is_refused(hub, model, tmp_path):
    init = Artifact(tmp_path / "init", ARTIFACTS["init"])
    write_manifest(init.path, stage="prune", inputs={"target": fingerprint_checkpoint(resolve_checkpoint("org/model"))})
    init.reject_changed({"target": fingerprint_checkpoint(resolve_checkpoint("org/model"))})
    model.move(model__safetensors=b"other weights")
    with rejects("target.revision"):
        init.reject_changed({"target": fingerprint_checkpoint(resolve_checkpoint("org/model"))})


@pytest.mark.parametrize(("token", "status"), [(None, 401), (READER, 403)])
def test_a_gated_model_says_where_to_ask(hub, model, monkeypatch, token, status):
    model.gated = True
    log_in(monkeypatch, token)
    message = refused()
    assert f"({status})" in message
    assert "HF_TOKEN" in message
    model.readers.add(READER)
    log_in(monkeypatch, READER)
    assert (resolve_checkpoint("org/model") / "config.json").read_bytes() == CONFIG


@pytest.mark.parametrize(("token", "status"), [(None, 401), (READER, 404)])
def test_a_model_that_is_not_there_or_private_is_named(hub, model, monkeypatch, token, status):
    model.private = True
    log_in(monkeypatch, token)
    for name in ("org/model", "org/gone"):
        message = refused(name)
        assert message.startswith(f"{name} (revision main): ")
        assert f"({status}: " in message
        assert "og in" in message


@pytest.mark.parametrize("status", [429, 500])
def test_a_hub_that_fails_is_named(hub, model, status):
    hub.failing["info"] = status
    assert f"({status}: on purpose)" in refused()


@pytest.mark.parametrize("token", ["hf_écrit0123456789", "hf_writer\x010123456789"])
def test_a_token_that_no_header_may_hold_is_not_quoted(hub, model, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    message = refused()
    assert "0123456789" not in message
    assert "HF_TOKEN" in message or "LocalProtocolError" in message


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("no: Bearer abcdef", "no: Bearer ***"),
        ("token hf_0123456789abcdef is bad", "token *** is bad"),
        ("token hf_oauth_0123456789abcdef is bad", "token *** is bad"),
        ("http://me:secret@127.0.0.1/x", "http://me:***@127.0.0.1/x"),
        ("set by hand: plain words", "set by hand: ***"),
        ("unset HF_HUB_OFFLINE or hf_hub", "unset HF_HUB_OFFLINE or hf_hub"),
    ],
)
def test_a_token_is_masked_and_other_words_stay(monkeypatch, text, kept):
    monkeypatch.setenv("HF_TOKEN", "plain words")
    assert without_token(text) == kept


def test_what_wraps_a_failure_is_seen_through():
    network = errors.HTTPError.__subclasses__()[0]("cut")
    wrapped = RuntimeError("Error while uploading")
    wrapped.__cause__ = network
    assert type(network).__name__ in hub_failure(wrapped)
