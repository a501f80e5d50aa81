"""This process as a client of the stand-in: what huggingface_hub read when it was imported is set anew for a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from tests.hub.server import HubStandIn

HUBS_OWN_WARNING = "ignore:Use 'content=:DeprecationWarning"  # huggingface_hub 2.4 uploads as httpx2 would not
WRITER, READER, STRANGER = "hf_writer0123456789", "hf_reader0123456789", "hf_stranger0123456789"


@contextmanager
def served(patch: pytest.MonkeyPatch, cache: Path, *, token: str | None = WRITER) -> Iterator[HubStandIn]:
    """A stand-in in which WRITER owns org, asked by this process with a token; nobody waits between tries."""
    patch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with HubStandIn({WRITER: {"org"}, READER: set()}) as hub:
        point_at(hub, patch, cache, token)
        yield hub
        close_session()


def point_at(hub: HubStandIn, patch: pytest.MonkeyPatch, cache: Path, token: str | None) -> None:
    """Let huggingface_hub in this process ask the stand-in."""
    close_session()
    patch.setattr(constants, "ENDPOINT", hub.endpoint)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)  # else the hub is asked for a list of agents
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no token"))
    patch.setenv("NO_PROXY", "127.0.0.1")
    log_in(patch, token)


def log_in(patch: pytest.MonkeyPatch, token: str | None) -> None:
    """From now on requests carry this token, or none."""
    patch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    if token is None:
        patch.delenv("HF_TOKEN", raising=False)
    else:
        patch.setenv("HF_TOKEN", token)
