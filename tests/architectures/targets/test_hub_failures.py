"""Words about a failure of the hub: which may pass, and none that is a token."""

import pytest
from huggingface_hub import errors

from architectures.hub import hub_failure, without_token


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
