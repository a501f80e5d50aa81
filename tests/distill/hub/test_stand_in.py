"""The stand-in of the hub says no where the hub does: else a test against it proves nothing."""

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, errors, snapshot_download
from huggingface_hub.utils import get_session

from tests.hub.clients import HUBS_OWN_WARNING, READER, STRANGER, log_in
from tests.hub.faults import Fault

pytestmark = pytest.mark.filterwarnings(HUBS_OWN_WARNING)
LARGE = bytes(range(256)) * 1000  # four parts of the stand-in's


@pytest.fixture
def api(hub) -> HfApi:
    api = HfApi()
    api.create_repo("org/name", private=True)
    return api


def put(api: HfApi, path: str, content: bytes, **options) -> str:
    return api.create_commit("org/name", [CommitOperationAdd(path, content)], commit_message="put", **options).oid


def post_commit(hub, api: HfApi, *lines: str) -> int:
    url = f"{hub.endpoint}/api/models/org/name/commit/main"
    body = "\n".join(('{"key": "header", "value": {"summary": "s"}}', *lines)).encode()
    return get_session().post(url, content=body, headers=api._build_hf_headers()).status_code


def test_what_is_committed_is_read_back_byte_for_byte(api, hub, tmp_path):
    put(api, "sub/model.safetensors", LARGE)
    commit = put(api, "config.json", b"{}")
    folder = snapshot_download("org/name", revision=commit, local_dir=tmp_path / "back")
    read = {path: (tmp_path / "back" / path).read_bytes() for path in ("sub/model.safetensors", "config.json")}
    assert folder == str(tmp_path / "back")
    assert read == {"sub/model.safetensors": LARGE, "config.json": b"{}"}
    assert hub.requests.count("upload part") == 4
    assert not [name for name in hub.requests if name.startswith("unknown")]


def test_a_tree_comes_in_pages_with_sizes_and_hashes(api):
    for i in range(4):
        put(api, f"{i}.json", b"{}")
    put(api, "model.safetensors", b"weights")
    entries = {entry.path: entry for entry in api.list_repo_tree("org/name", recursive=True)}
    assert sorted(entries) == [".gitattributes", "0.json", "1.json", "2.json", "3.json", "model.safetensors"]
    assert entries["model.safetensors"].lfs.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert entries["0.json"].blob_id == "9e26dfeeb6e641a33dae4961196235bdb965b21b"  # git hash-object says so


def test_an_object_that_was_never_uploaded_is_refused(api, hub):
    before = hub.store.repositories["org/name"].branches["main"]
    line = '{"key": "lfsFile", "value": {"path": "m.bin", "algo": "sha256", "oid": "%s", "size": 1}}' % ("0" * 64)
    assert post_commit(hub, api, line) == 422
    assert hub.store.repositories["org/name"].branches["main"] == before


@pytest.mark.parametrize("sent", [b"other77", b"longer than seven"])
def test_an_object_of_another_hash_or_size_is_refused(api, hub, sent):
    batch = f"{hub.endpoint}/org/name.git/info/lfs/objects/batch"
    objects = {"objects": [{"oid": hashlib.sha256(b"weights").hexdigest(), "size": 7}]}
    answer = get_session().post(batch, json=objects, headers=api._build_hf_headers()).json()
    upload = answer["objects"][0]["actions"]["upload"]["href"]
    assert get_session().put(upload, content=sent).status_code == 400
    assert get_session().put(upload, content=b"weights", headers=api._build_hf_headers()).status_code == 403
    assert get_session().put(upload.replace("ticket=", "ticket=0"), content=b"weights").status_code == 403
    assert get_session().put(upload, content=b"weights").status_code == 200


def test_a_parent_that_is_no_longer_the_last_commit_is_refused(api):
    first = put(api, "a.json", b"1")
    put(api, "a.json", b"2", parent_commit=first)
    with pytest.raises(errors.HfHubHTTPError, match="412"):
        put(api, "a.json", b"3", parent_commit=first)


def test_a_file_that_is_not_there_cannot_be_deleted(api):
    with pytest.raises(errors.RemoteEntryNotFoundError):
        api.create_commit("org/name", [CommitOperationDelete("gone.json")], commit_message="delete")


def test_a_repository_is_made_once(api):
    with pytest.raises(errors.HfHubHTTPError, match="409"):
        api.create_repo("org/name")
    api.create_repo("org/name", exist_ok=True)


def test_who_may_not_read_or_write_is_told_so(api, hub, monkeypatch):
    hub.store.create("org/open")
    log_in(monkeypatch, READER)
    with pytest.raises(errors.RepositoryNotFoundError):
        api.model_info("org/name")
    assert api.model_info("org/open").private is False
    with pytest.raises(errors.HfHubHTTPError, match="403"):
        api.create_commit("org/open", [CommitOperationAdd("a.json", b"1")], commit_message="put")
    log_in(monkeypatch, STRANGER)
    with pytest.raises(errors.HfHubHTTPError, match="Invalid user token"):
        api.whoami()
    log_in(monkeypatch, None)
    with pytest.raises(errors.HfHubHTTPError, match="401"):
        api.create_repo("org/other")


def test_a_gated_repository_lists_its_files_and_keeps_them(api, hub, monkeypatch, tmp_path):
    hub.store.create("org/gated", gated=True).move(config__json=b"{}")
    log_in(monkeypatch, None)
    assert api.list_repo_files("org/gated") == [".gitattributes", "config.json"]
    with pytest.raises(errors.GatedRepoError):
        api.hf_hub_download("org/gated", "config.json")
    log_in(monkeypatch, READER)
    hub.store.repositories["org/gated"].readers.add(READER)
    assert Path(api.hf_hub_download("org/gated", "config.json")).read_bytes() == b"{}"


def test_a_pull_request_leaves_main_alone(api, hub, monkeypatch):
    hub.store.repositories["org/name"].readers.add(READER)
    log_in(monkeypatch, READER)
    opened = api.create_commit(
        "org/name", [CommitOperationAdd("a.json", b"1")], commit_message="try this", create_pr=True
    )
    assert opened.pr_revision == "refs/pr/1"
    assert api.list_repo_files("org/name", revision="refs/pr/1") == [".gitattributes", "a.json"]
    assert api.list_repo_files("org/name") == [".gitattributes"]
    assert [each.title for each in api.get_repo_discussions("org/name")] == ["try this"]


def test_a_download_goes_on_where_it_was_cut(api, hub):
    commit = put(api, "model.safetensors", LARGE)
    hub.faults.plan("download", Fault(cut_after_bytes=1000))
    assert Path(api.hf_hub_download("org/name", "model.safetensors", revision=commit)).read_bytes() == LARGE
    assert hub.requests.count("download") == 2
    assert hub.faults.are_over


def test_what_is_forgotten_or_answered_wrongly_is_as_planned(api, hub):
    hub.faults.plan("commit", Fault(forgets=True))
    hub.faults.plan("commit", Fault(status=500, after_work=True))
    put(api, "a.json", b"1")
    assert api.list_repo_files("org/name") == [".gitattributes"]
    with pytest.raises(errors.HfHubHTTPError, match="500"):
        put(api, "a.json", b"1")
    assert api.list_repo_files("org/name") == [".gitattributes", "a.json"]
