"""A push makes a revision exactly the folder in one commit, and no message of it holds the token."""

import traceback
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from distill.hub.publish import push_folder
from tests.distill.hub.conftest import DRAFT
from tests.hub.clients import HUBS_OWN_WARNING, READER, WRITER, log_in
from tests.rejections import rejects

pytestmark = pytest.mark.filterwarnings(HUBS_OWN_WARNING)

LARGE = "model-00001-of-00002.safetensors"


def push(folder: Path, **options) -> str:
    return push_folder(folder, "org/name", **{"message": "a draft", **options})


def contents(hub) -> dict[str, bytes]:
    files = hub.store.repositories["org/name"].files_at("main")
    return {path: file.content for path, file in files.items() if path != ".gitattributes"}


def num_commits(hub) -> int:
    return len(hub.store.repositories["org/name"].commits) - 1  # the first came with the repository


def test_a_folder_arrives_in_one_private_commit(hub, draft, tmp_path):
    pushed = push(draft)
    assert pushed.startswith(f"{hub.endpoint}/org/name")
    assert pushed.endswith("private")
    assert hub.store.repositories["org/name"].private
    assert num_commits(hub) == 1
    back = Path(snapshot_download("org/name", local_dir=tmp_path / "back"))
    assert {name: (back / name).read_bytes() for name in DRAFT} == DRAFT


def test_files_of_an_earlier_push_are_deleted_in_the_same_commit(hub, draft):
    push(draft)
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
