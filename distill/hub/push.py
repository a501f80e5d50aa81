"""Settings of `widedraft push`, and checks before anything is trained. No torch."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from architectures.compatibility import reject_misleading_name
from architectures.errors import UserError
from architectures.hub import local_path
from architectures.requested_shape import TargetConfig
from architectures.settings import Flag, Section
from distill.recipe.recipe import Recipe
from distill.recipe.sections import RepoId


class PushSettings(Section):
    """Settings of `widedraft push`."""

    run: Annotated[Path, Flag(metavar="RUN", is_word=True)] = Field(description="Directory of a complete run.")
    repo_id: RepoId = Field(description="The repository, created if missing.")
    public: Annotated[bool, Flag(absent="private")] = Field(default=False, description="Make the repository public.")
    base_model: Annotated[str | None, Flag(metavar="ORG/NAME", absent="target.path")] = Field(
        default=None, min_length=1, description="Hub id of the target, or none."
    )
    license: Annotated[str | None, Flag(metavar="ID", absent="the licence in the target's card")] = Field(
        default=None, pattern=r"^[^\r\n]+$", description="Licence identifier of the hub."
    )
    dry_run: Annotated[Path | None, Flag(metavar="DIR")] = Field(
        default=None, description="Write the files to push to this directory, without pushing."
    )
    unscored: bool = Field(default=False, description="Publish a draft without a scorecard.")
    certificates: Annotated[tuple[Path, ...], Flag(metavar="DIR", is_repeated=True)] = Field(
        default=(), description="Directory with a certificate.json of an exported form, in addition to RUN/draft."
    )


def base_model_of(target: TargetConfig, given: str | None = None) -> str | None:
    """Return the hub id of a target: the given one, or target.path; None if the user states that it has none.

    Raises:
        UserError: If the target is a local directory, and no id is given.
    """
    if given is not None:
        return None if given == "none" else given
    if local_path(target.path, target.revision) is None:
        return target.path
    raise UserError(
        f"target.path is {target.path}, a local directory, but the card needs the target's hub id. Publish with "
        "`widedraft push RUN --base-model ORG/NAME` (or none), without distill.push_to_hub."
    )


def reject_unpublishable(recipe: Recipe) -> None:
    """Raise UserError if distill.push_to_hub would be rejected at the end of a run, except for its licence."""
    if recipe.distill.push_to_hub is not None:
        reject_misleading_name(recipe.distill.push_to_hub)
        base_model_of(recipe.target)
