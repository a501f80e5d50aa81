"""`widedraft launch`: the script that starts a recipe on several machines. No torch."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from architectures.files.section import Section
from architectures.settings.flags import Flag
from distill.commands.recipe_commands import recipe_of
from distill.launching.copies import recipe_in_copy, run_dir_words
from distill.launching.launch import Launch, refuse_unshared, run_words
from distill.launching.systems import OF_SYSTEMS, SYSTEMS, refuse_unasked
from distill.recipe.words import Debug, Overrides, RecipeFile


def one_line(text: str) -> str:
    """The text without blanks around it, where it is a line."""
    if len(text.strip().splitlines()) != 1:
        raise ValueError("must be one line.")
    return text.strip()


Text = Annotated[str, Field(min_length=1), AfterValidator(one_line)]


class LaunchSettings(Section):
    """The recipe that is started, by what, and on how many machines."""

    recipe: RecipeFile
    overrides: Overrides = ()
    print: Literal["slurm", "skypilot", "kubernetes", "torchrun", "composer"] = Field(
        description="Whose script: a cluster's system, or a launcher that is started on every machine by hand."
    )
    nodes: Annotated[int, Field(ge=1, le=10_000, description="Machines.")]
    gpus_per_node: Annotated[int, Field(ge=1, le=1024, description="Processes on each machine, one for a GPU.")] = 8
    port: Annotated[int, Field(ge=1024, le=65535, description="Of the first machine, which all others reach.")] = 29500
    gpu: Annotated[Text | None, Flag(metavar="NAME")] = Field(
        default=None, description="What SkyPilot calls the GPU, such as H100."
    )
    image: Annotated[Text | None, Flag(metavar="IMAGE")] = Field(
        default=None, description="Container of Kubernetes, with bash and widedraft."
    )
    volume: Annotated[Text | None, Flag(metavar="NAME")] = Field(
        default=None,
        description="What all machines mount at /shared: a claim of Kubernetes that is ReadWriteMany, or a volume of "
        "SkyPilot.",
    )
    setup: Annotated[Text | None, Flag(metavar="LINE")] = Field(
        default=None, description="Line of shell that goes before, such as one that activates an environment."
    )
    debug: Debug = False


def launch(settings: LaunchSettings) -> None:
    """Print the script, unless so many processes cannot share the recipe's work."""
    own = {name: getattr(settings, name) for name in OF_SYSTEMS}
    refuse_unasked(settings.print, own)
    recipe = recipe_of(settings, weights=False)
    path, overrides = settings.recipe, settings.overrides
    if settings.print == "skypilot":
        path, overrides = recipe_in_copy(path), (*overrides, *run_dir_words(recipe, debug=settings.debug))
    asked = Launch(
        words=run_words(path, overrides, debug=settings.debug),
        run_name=recipe.run_name,
        nodes=settings.nodes,
        processes=settings.gpus_per_node,
        port=settings.port,
        **own,
    )
    refuse_unshared(recipe, asked.all_processes)
    print(SYSTEMS[settings.print].script(asked), end="")
