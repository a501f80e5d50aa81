"""Push a folder to a model repository on the hub, as one commit that makes the repository exactly that folder.

A commit is believed when it is read back and not before: its answer can be lost after it was stored, and come without
anything stored. So a push looks what stands on the hub, commits what differs, and looks again, until nothing differs;
pushing twice makes nothing twice. `HfApi.upload_folder` is not used: with hf_xet it may split a push into several
commits, the first of which a reader can meet.

What is tried again here are the requests that huggingface_hub makes once; where it has its own patience it is left to
it. No message holds the token (see architectures/targets/hub_failures.py).
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from architectures.errors import UserError
from architectures.files.masked_words import masked
from architectures.targets.hub_failures import REMEDIES, STALE, asked_wait_s, explain_failure, is_stale, may_pass
from distill.hub.push.local_files import files_to_push, is_on_hub

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

Value = TypeVar("Value")

MAIN = "main"
COMMIT_ID = re.compile(r"[0-9a-f]{40}")
HUBS_OWN = ".gitattributes"  # made with the repository, and needed there
WAITS_S = (1.0, 4.0, 15.0)  # between four tries
LONGEST_WAIT_S = 300.0  # the hub counts requests in windows of five minutes
MAX_NAMES_SHOWN = 5
WRITE_REMEDIES = {
    **REMEDIES,
    403: "Use a token that may write there, or name a repository of an owner for whom you may write.",
    404: "Check the repository's name, and that the token may see it.",
    **dict.fromkeys(STALE, "Somebody else commits there: push again when that has ended."),
}


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What stands on the hub after a push.

    Attributes:
        url: The page of the revision, or of the pull request.
        commit: The one that holds exactly the folder.
        was_complete: It stood there before, and nothing was committed.
        is_private: The repository is.
    """

    url: str
    commit: str
    was_complete: bool
    is_private: bool


@dataclass(frozen=True)
class Push:
    """What is to be pushed, and where to."""

    api: "HfApi"
    repo_id: str
    files: dict[str, Path]
    message: str
    revision: str
    pull_request: bool


@dataclass(frozen=True)
class Standing:
    """What a commit on the hub lacks of the folder, and has beside it."""

    url: str
    commit: str
    missing: list[str]
    surplus: list[str]

    @property
    def is_complete(self) -> bool:
        """Whether it holds exactly the folder."""
        return not self.missing and not self.surplus


def push_folder(
    folder: Path,
    repo_id: str,
    *,
    private: bool = True,
    revision: str | None = None,
    pull_request: bool = False,
    message: str,
) -> Pushed:
    """Make a revision of a hub repository exactly a folder, in one commit, and read it back.

    The repository and the branch are made if need be. Files of an earlier push that are no longer in the folder vanish.
    Endpoint and token are those huggingface_hub finds in the environment.

    Args:
        folder: Its files and all below it.
        repo_id: owner/name.
        private: Of a repository that is made; one that is there and public is refused.
        revision: A branch, or refs/pr/N of an open pull request; None is main.
        pull_request: Open one against main, unless an open one of this title holds the folder already.
        message: Of the commit, and the title of the pull request.

    Raises:
        UserError: If the folder holds what cannot go to the hub, or the hub does not take it.
    """
    from huggingface_hub import HfApi, errors  # imported here: half a second

    files = files_to_push(folder)
    refuse_revision(revision, pull_request=pull_request)
    push = Push(HfApi(), repo_id, files, message, revision or MAIN, pull_request)
    network_error = errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]
    try:
        return made_complete(push, is_private=made_repository(push, private=private))
    except UserError:
        raise
    except (network_error, OSError, ValueError, RuntimeError) as error:
        failure = explain_failure(error, WRITE_REMEDIES)
    raise not_pushed(push, failure.reason, failure.remedy or "Mend that, and push again.")


def refuse_revision(revision: str | None, *, pull_request: bool) -> None:
    """Raise UserError for a revision that nothing can be committed to."""
    if pull_request and revision not in (None, MAIN):
        raise UserError(f"revision {revision}: a pull request is opened against main. Leave one of the two out.")
    if revision is not None and COMMIT_ID.fullmatch(revision):
        raise UserError(f"revision {revision}: is a commit, which never changes. Name a branch.")


def made_repository(push: Push, *, private: bool) -> bool:
    """Make repository and branch where they are missing; whether the repository is private.

    Raises:
        UserError: If it should be private, and is there and public.
    """
    patiently(lambda: push.api.create_repo(push.repo_id, private=private, exist_ok=True))
    info = patiently(lambda: push.api.model_info(push.repo_id))
    if private and not info.private:
        raise not_pushed(push, "it is public.", "Push to another name, or say that it may be public.")
    if push.revision != MAIN:
        require_branch(push)
    return bool(info.private)


def require_branch(push: Push) -> None:
    """Make the branch where it is missing; a pull request cannot be made by its number."""
    from huggingface_hub import errors

    try:
        patiently(lambda: push.api.model_info(push.repo_id, revision=push.revision))
    except errors.RevisionNotFoundError:
        if push.revision.startswith("refs/"):
            raise
        patiently(lambda: push.api.create_branch(push.repo_id, branch=push.revision, exist_ok=True))


def made_complete(push: Push, *, is_private: bool) -> Pushed:
    """Commit until what stands on the hub is the folder.

    Raises:
        UserError: If it still is not after the last try.
    """
    standing, was_complete, refused = look(push), True, None
    for wait_s in WAITS_S:
        if standing.is_complete:
            break
        was_complete, refused = False, commit(push, standing)
        if refused is not None:
            pause(refused, wait_s)
        standing = look(push)
    if standing.is_complete:
        return Pushed(url=standing.url, commit=standing.commit, was_complete=was_complete, is_private=is_private)
    raise refused or never_stored(push, standing)


def never_stored(push: Push, standing: Standing) -> UserError:
    """The error of commits that the hub answered as made, and of which nothing is to be seen."""
    names = ", ".join([*standing.missing, *standing.surplus][:MAX_NAMES_SHOWN])
    reason = f"the hub said {len(WAITS_S)} times that it had committed, and still differs in {names}."
    return not_pushed(push, reason, "Push again later; a .gitignore must not name what is pushed.")


def look(push: Push) -> Standing:
    """What stands where the push goes."""
    return standing_of_pull_request(push) if push.pull_request else standing_of(push, push.revision)


def standing_of(push: Push, revision: str, *, url: str | None = None) -> Standing:
    """What the last commit of a revision lacks and has beside the folder, file by file."""
    from huggingface_hub import RepoFile

    commit = patiently(lambda: push.api.model_info(push.repo_id, revision=revision)).sha
    assert commit is not None  # a repository has a commit from its making on
    entries = push.api.list_repo_tree(push.repo_id, recursive=True, revision=commit)
    there = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
    missing = [name for name, path in push.files.items() if name not in there or not is_on_hub(path, there[name])]
    surplus = sorted(there.keys() - push.files.keys() - {HUBS_OWN})
    return Standing(url or page(push, f"tree/{revision}"), commit, missing, surplus)


def standing_of_pull_request(push: Push) -> Standing:
    """The standing of main or of the open pull request of our title that holds the folder; else of main."""
    main = standing_of(push, MAIN)
    if main.is_complete:
        return main
    for num in open_pull_requests(push):
        standing = standing_of(push, f"refs/pr/{num}", url=page(push, f"discussions/{num}"))
        if standing.is_complete:
            return standing
    return main


def open_pull_requests(push: Push) -> list[int]:
    """The numbers of the open pull requests that have our title."""

    def ask() -> list[int]:  # a generator that failed once would go on as an empty one
        discussions = push.api.get_repo_discussions(
            push.repo_id, discussion_type="pull_request", discussion_status="open"
        )
        return [each.num for each in discussions if each.title == push.message]

    return patiently(ask)


def page(push: Push, part: str) -> str:
    """The address of a page of the repository."""
    return masked(f"{push.api.endpoint}/{push.repo_id}/{part}")


def commit(push: Push, standing: Standing) -> Exception | None:
    """Upload and commit what differs; what failed, if it may have passed by the next try."""
    from huggingface_hub import CommitOperationDelete, errors

    additions = uploaded(push, standing.missing)
    deletions = [CommitOperationDelete(name, is_folder=False) for name in standing.surplus]
    try:
        push.api.create_commit(
            push.repo_id,
            [*deletions, *additions],
            commit_message=push.message,
            revision=push.revision,
            create_pr=push.pull_request,
            parent_commit=standing.commit,
        )
    except (errors.HTTPError, ValueError) as error:  # pyright: ignore[reportPrivateImportUsage]
        if may_pass(error) or is_stale(error):
            return error
        raise
    return None


def uploaded(push: Push, names: list[str]) -> "list[CommitOperationAdd]":
    """The additions to commit, the objects of large files uploaded; huggingface_hub has patience there itself."""
    from huggingface_hub import CommitOperationAdd

    additions = [CommitOperationAdd(name, push.files[name]) for name in names]
    push.api.preupload_lfs_files(
        push.repo_id, additions, revision=push.revision, create_pr=push.pull_request, free_memory=False
    )
    return additions


def patiently(request: Callable[[], Value]) -> Value:
    """The answer to a request that huggingface_hub makes once, made again while its failure may pass."""
    from huggingface_hub import errors

    for wait_s in WAITS_S:
        try:
            return request()
        except (errors.HTTPError, ValueError) as error:  # pyright: ignore[reportPrivateImportUsage]
            if not may_pass(error):
                raise
            pause(error, wait_s)
    return request()


def pause(error: Exception, wait_s: float) -> None:
    """Wait as long as the hub asks for, else wait_s."""
    time.sleep(min(asked_wait_s(error) or wait_s, LONGEST_WAIT_S))


def not_pushed(push: Push, reason: str, remedy: str) -> UserError:
    """The error of a push."""
    return UserError(f"{push.repo_id}: not pushed: {reason} {remedy}")
