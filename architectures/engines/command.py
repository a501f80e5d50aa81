"""`widedraft preflight` of a folder (of a recipe: distill/commands/preflight.py)."""

from typing import TYPE_CHECKING, Annotated, get_args

from pydantic import Field

from architectures.engines.pair.finding import EngineName
from architectures.errors import UserError
from architectures.files.section import Section
from architectures.pages.terminal import terminal
from architectures.settings.flags import Flag
from architectures.settings.kinds import Lookahead, Revision
from architectures.shapes.serving import TensorParallel

if TYPE_CHECKING:
    from architectures.engines.pair.facts import Model

NAMES: tuple[EngineName, ...] = get_args(EngineName)


class PreflightSettings(Section):
    """What engines are asked of."""

    draft: Annotated[str, Flag(metavar="DRAFT|RECIPE", is_word=True)] = Field(
        description="Folder or hub id of the draft; or a recipe, of a shape before it is cut."
    )
    overrides: Annotated[tuple[str, ...], Flag(metavar="key=value", is_word=True)] = Field(
        default=(), description="Replaces the recipe's value of a dotted key."
    )
    target: Annotated[str | None, Flag(metavar="T")] = Field(
        default=None, description="Folder, hub id or .gguf file of the model to draft for (a recipe names it)."
    )
    revision: Revision = "main"
    engines: Annotated[tuple[EngineName, ...], Flag(is_repeated=True, absent="all of them")] = Field(
        default=(), description="Which engines are asked."
    )
    tensor_parallel: Annotated[TensorParallel | None, Flag(absent="1")] = None
    lookahead: Annotated[Lookahead | None, Flag(absent="what the draft's generation_config.json says, else 3")] = None


def lookahead_of(draft: "Model") -> int:
    """Tokens per round that a draft's generation_config.json asks for, else the engines' own default."""
    from architectures.engines.pair.facts import DEFAULT_LOOKAHEAD

    return (draft.settings or {}).get("num_assistant_tokens") or DEFAULT_LOOKAHEAD


def preflight_folders(settings: PreflightSettings) -> None:
    """Print what engines say of a draft and its target; exit code 1 if one of them does not serve it."""
    from architectures.engines.page import preflight_page
    from architectures.engines.pair.facts import Pair
    from architectures.engines.pair.read_facts import read_draft, read_model

    if settings.target is None:
        raise UserError("widedraft preflight needs --target beside a draft's folder. Name the model it drafts for.")
    draft = read_draft(settings.draft)
    pair = Pair(
        draft=draft,
        target=read_model(settings.target, settings.revision),
        revision=settings.revision,
        tensor_parallel=settings.tensor_parallel or 1,
        lookahead=settings.lookahead or lookahead_of(draft),
    )
    page, served = preflight_page(tuple(dict.fromkeys(settings.engines or NAMES)), pair)
    print(terminal(*page))
    if not served:
        raise SystemExit(1)
