"""A push ends with exactly one complete revision, whatever happens on the way, and no word of it holds the token."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from architectures.errors import UserError
from distill.hub.push.upload import Pushed, push_folder
from tests.distill.hub.conftest import DRAFT
from tests.hub.clients import HUBS_OWN_WARNING, READER, STRANGER, WRITER, log_in
from tests.hub.faults import Fault

pytestmark = pytest.mark.filterwarnings(HUBS_OWN_WARNING)

ROOT = Path(__file__).parents[3]
LARGE = "model-00001-of-00002.safetensors"


def push(folder: Path, **options) -> Pushed:
    return push_folder(folder, "org/name", **{"message": "a draft", **options})


def contents(hub, revision: str = "main") -> dict[str, bytes]:
    files = hub.store.repositories["org/name"].files_at(revision)
    return {path: file.content for path, file in files.items() if path != ".gitattributes"}


def num_commits(hub) -> int:
    return len(hub.store.repositories["org/name"].commits) - 1  # the first came with the repository


def test_a_folder_arrives_in_one_private_commit_and_is_read_back_byte_for_byte(hub, draft, tmp_path):
    pushed = push(draft)
    assert pushed == Pushed(
        url=f"{hub.endpoint}/org/name/tree/main",
        commit=hub.store.repositories["org/name"].branches["main"],
        was_complete=False,
        is_private=True,
    )
    assert hub.store.repositories["org/name"].private
    assert num_commits(hub) == 1
    back = Path(snapshot_download("org/name", revision=pushed.commit, local_dir=tmp_path / "back"))
    assert {name: (back / name).read_bytes() for name in DRAFT} == DRAFT
    assert hub.requests.count("upload part") == 4
    assert not [name for name in hub.requests if name.startswith("unknown")]


def test_what_is_there_already_makes_no_commit(hub, draft):
    first = push(draft)
    hub.requests.clear()
    again = push(draft)
    assert (again.commit, again.was_complete) == (first.commit, True)
    assert num_commits(hub) == 1
    assert not {"preupload", "upload", "commit"} & set(hub.requests)


def test_files_of_an_earlier_push_vanish_in_the_same_commit(hub, draft):
    push(draft)
    (draft / LARGE).unlink()
    (draft / "plots" / "acceptance.png").rename(draft / "other.png")
    (draft / "config.json").write_bytes(b"{}")
    hub.requests.clear()
    push(draft)
    wanted = {path.relative_to(draft).as_posix(): path.read_bytes() for path in draft.rglob("*") if path.is_file()}
    assert contents(hub) == wanted
    assert num_commits(hub) == 2
    assert "upload" not in hub.requests  # the plot is there under another name
    assert ".gitattributes" in hub.store.repositories["org/name"].files_at("main")


def test_public_is_asked_for(hub, draft):
    assert not push(draft, private=False).is_private
    assert not hub.store.repositories["org/name"].private


def test_a_private_push_never_goes_to_a_public_repository(hub, draft):
    hub.store.create("org/name")
    with pytest.raises(UserError) as caught:
        push(draft)
    assert str(caught.value) == (
        "org/name: not pushed: it is public. Push to another name, or say that it may be public."
    )
    assert num_commits(hub) == 0


def test_a_branch_is_made_and_main_left_alone(hub, draft):
    pushed = push(draft, revision="v1.0/bf16")
    assert pushed.url.endswith("/org/name/tree/v1.0/bf16")
    assert contents(hub, "v1.0/bf16") == DRAFT
    assert contents(hub) == {}
    assert push(draft, revision="v1.0/bf16").was_complete


def test_a_pull_request_is_opened_once(hub, draft):
    pushed = push(draft, pull_request=True)
    assert pushed.url == f"{hub.endpoint}/org/name/discussions/1"
    assert contents(hub, "refs/pr/1") == DRAFT
    assert contents(hub) == {}
    assert push(draft, pull_request=True) == Pushed(
        url=pushed.url, commit=pushed.commit, was_complete=True, is_private=True
    )
    (draft / "config.json").write_bytes(b"{}")
    assert push(draft, revision="refs/pr/1").commit == hub.store.repositories["org/name"].branches["refs/pr/1"]
    assert len(hub.store.repositories["org/name"].pull_requests) == 1


def test_a_pull_request_of_another_title_is_another(hub, draft):
    push(draft, pull_request=True, message="somebody else's")
    assert push(draft, pull_request=True).url == f"{hub.endpoint}/org/name/discussions/2"


def test_who_may_only_read_may_open_a_pull_request(hub, draft, monkeypatch):
    hub.store.create("org/name")
    log_in(monkeypatch, READER)
    push(draft, pull_request=True, private=False)
    assert contents(hub, "refs/pr/1") == DRAFT


PASSING = {
    "500": Fault(status=500),
    "429": Fault(status=429, headers={"Retry-After": "7"}),
    "cut": Fault(cut_after_bytes=10),
    "stored, and answered 500": Fault(status=500, after_work=True),
    "answered by a gateway": Fault(status=502, spoils=lambda _: b"<html>"),
}


@pytest.mark.parametrize("kind", PASSING)
@pytest.mark.parametrize("route", ["create", "info", "tree", "validate", "preupload", "batch", "verify", "commit"])
def test_what_passes_is_waited_for(hub, draft, waits, route, kind):
    is_stored = (route, kind) == ("commit", "stored, and answered 500")  # and not made again
    hub.faults.plan(route, PASSING[kind], times=1 if is_stored else 2)
    push(draft)
    assert hub.faults.are_over
    assert contents(hub) == DRAFT
    assert num_commits(hub) == 1
    assert waits == [] or waits == ([7.0, 7.0] if kind == "429" else [1.0, 4.0])[: len(waits)]


@pytest.mark.parametrize("route", ["upload", "upload part", "complete"])
@pytest.mark.parametrize("kind", ["500", "429", "cut"])
def test_an_upload_that_breaks_off_is_made_again(hub, draft, waits, route, kind):
    hub.faults.plan(route, PASSING[kind], times=2)
    push(draft)
    assert hub.faults.are_over
    assert contents(hub) == DRAFT


@pytest.mark.parametrize("pull_request", [False, True])
@pytest.mark.parametrize(
    "fault",
    [Fault(status=500, after_work=True), Fault(forgets=True), Fault(cut_after_bytes=10)],
    ids=["stored, answer lost", "answered, not stored", "cut"],
)
def test_a_lost_commit_is_noticed_and_none_is_made_twice(hub, draft, waits, fault, pull_request):
    hub.faults.plan("commit", fault)
    pushed = push(draft, pull_request=pull_request)
    assert hub.faults.are_over
    assert contents(hub, "refs/pr/1" if pull_request else "main") == DRAFT
    assert (num_commits(hub), pushed.was_complete) == (1, False)
    assert len(hub.store.repositories["org/name"].pull_requests) == pull_request


def test_commits_that_are_lost_again_and_again_are_said(hub, draft, waits):
    hub.faults.plan("commit", Fault(forgets=True), times=9)
    with pytest.raises(UserError) as caught:
        push(draft)
    assert str(caught.value) == (
        "org/name: not pushed: the hub said 3 times that it had committed, and still differs in README.md, config.json,"
        " empty.txt, model-00001-of-00002.safetensors, model-00002-of-00002.safetensors. Push again later; a .gitignore"
        " must not name what is pushed."
    )
    assert hub.requests.count("commit") == 3


def test_a_branch_that_moves_meanwhile_ends_as_the_folder(hub, draft, waits):
    push(draft)
    (draft / "config.json").write_bytes(b"{}")
    move = hub.store.repositories["org/name"].move
    hub.faults.plan("commit", Fault(meanwhile=lambda: move(stray__json=b"1")))
    push(draft)
    assert contents(hub) == DRAFT | {"config.json": b"{}"}
    assert num_commits(hub) == 3
    assert waits == [1.0]


def test_a_branch_that_never_rests_is_said(hub, draft, waits):
    push(draft)
    (draft / "config.json").write_bytes(b"{}")
    move = hub.store.repositories["org/name"].move
    hub.faults.plan("commit", Fault(meanwhile=lambda: move(stray__json=os.urandom(4))), times=9)
    with pytest.raises(UserError, match=r"\(412: A commit has happened since.*\)\. Somebody else commits there"):
        push(draft)


def test_a_push_that_failed_goes_on_with_what_is_missing(hub, draft, waits):
    hub.faults.plan("commit", Fault(status=500), times=3)
    with pytest.raises(UserError, match=r"^org/name: not pushed: the hub fails \(500: on purpose\)\. Run the command"):
        push(draft)
    hub.requests.clear()
    push(draft)
    assert contents(hub) == DRAFT
    assert not [name for name in hub.requests if name.startswith("upload")]


REFUSED = {
    "no token": (None, "the hub does not know who asks (401: Invalid username or password)."),
    "a token the hub does not know": (STRANGER, "the hub does not know who asks (401: Invalid credentials in"),
    "a token that may not write": (READER, "the hub does not allow it (403: You don't have the rights to write to"),
}


@pytest.mark.parametrize("who", REFUSED)
def test_who_may_not_write_is_told_what_to_do(hub, draft, monkeypatch, who):
    token, reason = REFUSED[who]
    log_in(monkeypatch, token)
    with pytest.raises(UserError) as caught:
        push(draft)
    assert str(caught.value).startswith(f"org/name: not pushed: {reason}")
    remedy = "Use a token that may write there" if token == READER else "Log in with `hf auth login`, or set HF_TOKEN."
    assert remedy in str(caught.value)


@pytest.mark.parametrize("name", ["org/na me", "a/b/c", "org/..", "-name", "org/name.git"])
def test_a_name_that_no_repository_has_is_refused(hub, draft, name):
    with pytest.raises(UserError, match=r": not pushed: Repo id must|: not pushed: Repo_id|: not pushed: Cannot have"):
        push_folder(draft, name, message="a draft")
    assert hub.requests == []


def test_a_hub_that_is_not_there_is_named(hub, draft, monkeypatch, waits):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"the connection to the hub failed \(ConnectError\)\. Check network and HF_E"):
        push(draft)
    assert waits == [1.0, 4.0, 15.0]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"offline mode is enabled.*HF_HUB_OFFLINE"):
        push(draft)


def test_front_matter_that_the_hub_refuses_is_said(hub, draft):
    (draft / "README.md").write_text("---\nlicense: mit\n")
    with pytest.raises(
        UserError, match=r"not pushed: Invalid metadata in README\.md\. - front matter has no end\. Mend"
    ):
        push(draft)
    assert num_commits(hub) == 0


@pytest.mark.parametrize("revision", ["0" * 40, "refs/pr/7"])
def test_a_revision_that_takes_no_commit_is_refused(hub, draft, revision):
    with pytest.raises(UserError, match=r"is a commit, which never changes\. Name a branch|has no such revision"):
        push(draft, revision=revision)
    with pytest.raises(UserError, match=f"^revision {revision}: a pull request is opened against main"):
        push(draft, revision=revision, pull_request=True)


@pytest.mark.parametrize("token", [WRITER, "hf_écrit0123456789", "hf_writer\x010123456789", "plain-words-as-token"])
@pytest.mark.parametrize("route", ["create", "info", "upload", "commit"])
def test_no_word_of_a_failure_holds_the_token(hub, draft, monkeypatch, waits, capfd, caplog, route, token):
    hub.store.owners[token] = {"org"}
    log_in(monkeypatch, token)
    hub.faults.plan(route, Fault(status=400, spoils=lambda _: f'{{"error": "no: Bearer {token}"}}'.encode()), times=9)
    with pytest.raises(UserError) as caught:
        push(draft)
    said = "".join(traceback.format_exception(caught.value)) + caplog.text + "".join(capfd.readouterr())
    assert not [word for word in (token, repr(token)[1:-1], token.encode("unicode_escape").decode()) if word in said]
    assert "not pushed: " in said
    assert caught.value.__context__ is None


def test_a_process_of_its_own_finds_hub_and_token_in_its_environment(hub, draft, tmp_path):
    code = (
        "import sys, pathlib; from distill.hub.push.upload import push_folder; "
        "print(push_folder(pathlib.Path(sys.argv[1]), 'org/name', message='a draft'))"
    )
    environment = {**os.environ, **hub.environment(tmp_path / "home", WRITER), "HF_DEBUG": "1"}
    arguments = [sys.executable, "-c", code, str(draft)]
    done = subprocess.run(arguments, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "was_complete=False, is_private=True" in done.stdout
    assert contents(hub) == DRAFT
    assert WRITER not in done.stdout + done.stderr
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file() and WRITER in path.read_text()]


def test_a_repository_that_is_private_is_said_to_be_though_it_may_be_public(hub, draft):
    push(draft)
    assert push(draft, private=False).is_private


def test_a_pull_request_against_main_by_name_is_one_against_main(hub, draft):
    assert push(draft, pull_request=True, revision="main").url == f"{hub.endpoint}/org/name/discussions/1"


def test_nobody_waits_for_longer_than_five_minutes(hub, draft, waits):
    hub.faults.plan("info", Fault(status=429, headers={"Retry-After": "86400"}))
    push(draft)
    assert waits == [300.0]


@pytest.mark.parametrize("name", ["config.json", LARGE])
def test_a_file_of_the_same_size_and_other_bytes_is_pushed(hub, draft, name):
    push(draft)
    content = DRAFT[name][::-1]
    (draft / name).write_bytes(content)
    assert not push(draft).was_complete
    assert contents(hub) == DRAFT | {name: content}


def test_a_pull_request_that_was_closed_is_opened_anew(hub, draft):
    push(draft, pull_request=True)
    hub.store.repositories["org/name"].pull_requests[0].status = "closed"
    assert push(draft, pull_request=True).url == f"{hub.endpoint}/org/name/discussions/2"
