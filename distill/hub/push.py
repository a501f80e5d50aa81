"""Settings of `widedraft push`, and what is checked before anything is trained. No torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from architectures.compatibility import refuse_misleading_name
from architectures.errors import UserError
from architectures.settings.flags import Flag
from architectures.shapes.section import TargetConfig
from architectures.targets.target import local_path
from distill.hub.licences import PUBLISHED
from distill.recipe.recipe import Recipe
from distill.recipe.sections.export import PushConfig


class PushSettings(PushConfig):
    """Which run's draft is published where, and how."""

    run: Annotated[Path, Flag(metavar="RUN", is_word=True)] = Field(description="The folder of a finished run.")
    dry_run: Annotated[Path | None, Flag(metavar="DIR")] = Field(
        default=None, description="Write exactly the files that would be pushed, push nothing."
    )
    allow: Annotated[tuple[Literal["unscored", "stale", "misleading-name"], ...], Flag(is_repeated=True)] = Field(
        default=(),
        description="Publish a draft without a scorecard, with one of another draft, or under a name that misleads "
        "vLLM.",
    )
    certificates: Annotated[tuple[Path, ...], Flag(metavar="DIR", is_repeated=True)] = Field(
        default=(), description="A folder with a certificate.json of one of its forms, in addition to RUN/draft."
    )

    @model_validator(mode="after")
    def _pushes_or_not(self) -> "PushSettings":
        if self.dry_run is not None and self.revision:
            raise UserError("--dry-run pushes nothing, so --revision has no effect. Leave it out.")
        return self


def base_model_of(target: TargetConfig, given: str | None) -> str | None:
    """The hub id of the target; None if the user states that it has none.

    Args:
        target: As the recipe names it.
        given: The id, "none", or None for target.path.

    Raises:
        UserError: If the target is a local folder, and no id is given.
    """
    if given is not None:
        return None if given == "none" else given
    if local_path(target.path, target.revision) is None:
        return target.path
    raise UserError(
        f"target.path is {target.path}, a local folder, and a card names the target's hub id. Set it "
        "with --base-model ORG/NAME (distill.push_to_hub.base_model in a recipe), or to none."
    )


def refuse_unpublishable(recipe: Recipe) -> None:
    """Raise UserError for a distill.push_to_hub that would be rejected at the end of a run.

    The licence of a target that is downloaded later is read then.
    """
    wanted = recipe.distill.push_to_hub
    if wanted is None:
        return
    refuse_misleading_name(wanted.repo_id)
    base_model = base_model_of(recipe.target, wanted.base_model)
    known = wanted.license is not None or any((base_model or "").startswith(begin) for begin in PUBLISHED)
    if wanted.public and base_model is None and not known:
        raise UserError(
            "distill.push_to_hub.public is true, and the licence of a target without a hub id is not known. Name it "
            "in distill.push_to_hub.license, or leave public out."
        )
