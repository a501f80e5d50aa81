"""`widedraft requests`: a recipe's stream of requests, served by a draft that does not learn. No torch to begin."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.settings.kinds import Rehash
from distill.commands.recipe_commands import own_run
from distill.recipe.words import Debug, Overrides, RecipeFile


class RequestsSettings(Section):
    """The recipe whose requests are served, by which draft, and where their records go."""

    recipe: RecipeFile
    overrides: Overrides = ()
    draft: Annotated[Path | None, Flag(metavar="DIR", absent="<run>/init")] = Field(
        default=None, description="Folder of the draft that serves them."
    )
    out: Annotated[Path | None, Flag(metavar="FILE", absent="<run>/online/fixed.jsonl")] = Field(
        default=None, description="File of the records."
    )
    debug: Debug = False
    rehash: Rehash = False


def requests(settings: RequestsSettings) -> None:
    """Serve them, and say where their records are."""
    from distill.requests.fixed import serve_stream

    with own_run(settings) as named:
        draft = settings.draft or named.run.init.path
        out = settings.out or named.run.folder / "online" / "fixed.jsonl"
        count = serve_stream(named.run, draft, out)
        print(f"{out}: {count} requests, served by {draft}. Compare records with `widedraft shift`.")
