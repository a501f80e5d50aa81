"""Push a folder to a model repository on the hub, as one commit that makes the repository exactly that folder.

No message holds the token (see architectures/targets/hub_failures.py).
"""

from dataclasses import dataclass
from pathlib import Path

from architectures.errors import UserError
from architectures.files.masked_words import masked
from architectures.targets.hub_failures import REMEDIES, STALE, explain_failure

WRITE_REMEDIES = {
    **REMEDIES,
    403: "Use a token that may write there, or name a repository of an owner for whom you may write.",
    404: "Check the repository's name, and that the token may see it.",
    **dict.fromkeys(STALE, "Somebody else commits there: push again when that has ended."),
}


@dataclass(frozen=True)
class Pushed:
    """The page of what was pushed, and whether the repository is private."""

    url: str
    is_private: bool


def push_folder(
    folder: Path,
    repo_id: str,
    *,
    private: bool = True,
    revision: str | None = None,
    pull_request: bool = False,
    message: str,
) -> Pushed:
    """Make a revision of a hub repository exactly a folder, in one commit.

    The repository and the branch are made if need be. Files of an earlier push that are no longer in the folder are
    deleted; nothing is committed where nothing differs. Endpoint and token are those huggingface_hub finds in the
    environment.

    Args:
        folder: Its files and all below it.
        repo_id: owner/name.
        private: Of a repository that is made; one that is there and public is refused.
        revision: A branch; None is main.
        pull_request: Open one against main.
        message: Of the commit, and the title of the pull request.

    Raises:
        UserError: If the repository is public and should not be, or the hub does not take the folder.
    """
    from huggingface_hub import HfApi, errors  # imported here: half a second

    api = HfApi()
    network_error = errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        is_private = bool(api.model_info(repo_id).private)
        if private and not is_private:
            raise UserError(f"{repo_id}: is public. Push to another name, or allow that with --public.")
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=message,
            revision=revision,
            create_pr=pull_request,
            delete_patterns="*",
        )
        return Pushed(masked(commit.pr_url or commit.commit_url), is_private)
    except (network_error, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        failure = explain_failure(error, WRITE_REMEDIES)
    # Raised here, where no context is left whose request would show the token.
    raise UserError(f"{repo_id}: not pushed: {failure.reason} {failure.remedy or 'Fix that, and push again.'}")
