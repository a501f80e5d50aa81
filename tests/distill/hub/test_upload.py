"""A push makes a revision exactly the folder in one commit, and no message of it holds the token."""

import traceback
from pathlib import Path

import pytest

from distill.hub.publish import push_folder
from tests.hub.clients import HUBS_OWN_WARNING, READER, WRITER, log_in
from tests.rejections import rejects

pytestmark = pytest.mark.filterwarnings(HUBS_OWN_WARNING)

LARGE = "model-00001-of-00002.safetensors"
DRAFT = {
    "config.json": b'{"model_type": "llama"}\n',
    "README.md": b"---\nlicense: apache-2.0\n---\n# A draft\n",
    LARGE: bytes(range(256)) * 1000,
    "model-00002-of-00002.safetensors": b"a little",
    "plots/acceptance.png": b"\x89PNG",
    "empty.txt": b"",
}


@pytest.fixture
def draft(tmp_path) -> Path:
    """A draft's folder as it is pushed."""
    for path, content in DRAFT.items():
        file = tmp_path / "draft" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path / "draft"


def push(folder: Path, **options) -> str:
    return push_folder(folder, "org/name", **{"message": "a draft", **options})


def contents(hub) -> dict[str, bytes]:
    files = hub.store.repositories["org/name"].files_at("main")
    return {path: file.content for path, file in files.items() if path != ".gitattributes"}


def num_commits(hub) -> int:
    return len(hub.store.repositories["org/name"].commits) - 1  # the first came with the repository


def test_files_of_an_earlier_push_are_deleted_in_the_same_commit(hub, draft):
    assert push(draft).startswith(f"{hub.endpoint}/org/name")
    assert contents(hub) == DRAFT
    assert num_commits(hub) == 1
    (draft / LARGE).unlink()
    (draft / "config.json").write_bytes(b"{}")
    push(draft)
    wanted = {path.relative_to(draft).as_posix(): path.read_bytes() for path in draft.rglob("*") if path.is_file()}
    assert contents(hub) == wanted
    assert num_commits(hub) == 2
    assert ".gitattributes" in hub.store.repositories["org/name"].files_at("main")


def test_a_public_repository_is_made_only_if_asked_for(hub, draft):
    assert push(draft, public=True).endswith("public")
    with rejects("org/name"):
        push(draft)


@pytest.mark.parametrize("token", [READER, "hf_strangerstrangerstranger"])
def test_no_message_holds_the_token(hub, draft, monkeypatch, token):
    push(draft)
    log_in(monkeypatch, token)
    (draft / "config.json").write_bytes(b"{}")
    with rejects("org/name") as refused:
        push(draft)
    assert token not in "".join(traceback.format_exception(refused.value))
    log_in(monkeypatch, WRITER)
    push(draft)
