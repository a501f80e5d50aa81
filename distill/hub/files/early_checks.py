"""What can be told of a publication before anything is trained. No torch."""

from pathlib import Path

from architectures.compatibility import refuse_misleading_name
from architectures.errors import UserError
from architectures.gguf_format import refuse_other_shapes
from architectures.shapes.section import TargetConfig
from architectures.shapes.shape import Shape
from architectures.targets.target import local_path
from distill.hub.files.terms import PUBLISHED
from distill.recipe.recipe import Recipe
from distill.recipe.sections.export import PushConfig


def repository_name(repo_id: str) -> str:
    """Of ORG/NAME, the name."""
    return repo_id.rpartition("/")[2]


def base_model_of(target: TargetConfig, given: str | None) -> str | None:
    """The hub id of the target; None where the user says that it has none.

    Args:
        target: As the recipe names it.
        given: The id, "none", or None for target.path.

    Raises:
        UserError: If the target is a local folder, and nobody says which model that is.
    """
    if given is not None:
        return None if given == "none" else given
    if local_path(target.path, target.revision) is None:
        return target.path
    raise UserError(
        f"target.path is {target.path}, a local folder, and a card names the target's hub id. Say which it is "
        "with --base-model ORG/NAME (distill.push_to_hub.base_model in a recipe), or none."
    )


def refuse_unpublishable(recipe: Recipe) -> None:
    """Raise UserError for a distill.push_to_hub that would be refused at the end of a run.

    The licence of a target that is fetched later is looked at then.
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


def refuse_without_gguf(wanted: PushConfig | None, folder: Path, draft: Shape) -> None:
    """Raise UserError for a distill.push_to_hub.gguf of a shape that llama.cpp would compute otherwise."""
    if wanted is None or not wanted.gguf:
        return
    try:
        refuse_other_shapes(folder, draft)
    except UserError as error:
        raise UserError(f"distill.push_to_hub.gguf: {error} Or leave gguf out.") from error
