"""What `widedraft choose` is asked for. No torch."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from architectures.errors import UserError
from architectures.files.section import Renamed, Section
from architectures.settings.flags import Flag, flag_of
from architectures.settings.kinds import MOST, Rehash
from distill.checkpoints.trust import TrustCheckpoints
from distill.choose.shapes.given_alphas import GivenAlpha, known_alpha
from distill.choose.shapes.vocabularies import VocabularySize, head_rows
from distill.recipe.times import Duration
from distill.recipe.words import Debug, Overrides, RecipeFile

RANKED_BY = ("duration", "alphas", "untrained", "floors", "budget")


class ChooseSettings(Section):
    """Which shapes are chosen from, and by what."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False
    rehash: Rehash = False
    trust_checkpoints: TrustCheckpoints = False
    layers: Annotated[tuple[Annotated[int, Field(ge=1, le=MOST)], ...], Flag(absent="1 2 3 4 6 8 12")] = Field(
        default=(), description="Numbers of layers of the candidates."
    )
    vocabularies: Annotated[tuple[VocabularySize, ...], Flag(metavar="N|all", absent="as the recipe has it")] = Field(
        default=(), description="Token ids that candidates can say, each with each number of layers."
    )
    most_parameters: Annotated[int, Field(ge=1, le=10**13)] | None = Field(
        default=None, description="No candidate has more."
    )
    duration: Annotated[Duration, Flag(metavar="T")] = Field(
        default="100ba", description="Length of each short training, as distill.max_duration."
    )
    alphas: Annotated[
        tuple[Annotated[GivenAlpha, BeforeValidator(known_alpha, json_schema_input_type=str)], ...],
        Flag(metavar="N[xK]=A"),
    ] = Field(
        default=(),
        description="Train nothing: N layers that say K ids have a token accepted with chance A, for every candidate.",
    )
    untrained: bool = Field(default=False, description="Stop after step times: what each could do at most.")
    floors: Annotated[str | None, Flag(metavar="NAME|FILE")] = Field(
        default=None,
        description="Time and train nothing: weigh shapes by the least that steps can take on this device, as --device "
        "of `widedraft check` names it.",
    )
    budget: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None,
        description="Train nothing: what answers, readings, text and minutes make each candidate pay, by the law of "
        "the trainings in this file of `python -m bench.budget`.",
    )
    within: Annotated[Annotated[float, Field(gt=0, le=MOST)] | None, Flag(metavar="MINUTES")] = Field(
        default=None, description="With --budget: the fastest mix that takes no longer."
    )
    out: Annotated[Path | None, Flag(metavar="FILE", absent="<run>/choose/recipe.yaml")] = Field(
        default=None, description="The recipe of the winner."
    )
    renamed: ClassVar = {"vocabulary": Renamed("vocabularies"), "alpha": Renamed("alphas")}

    @property
    def head_sizes(self) -> list[int]:
        """How many ids candidates can output."""
        return [head_rows(size) for size in self.vocabularies]

    @model_validator(mode="after")
    def _by_one_thing(self) -> "ChooseSettings":
        given = [flag_of(name) for name in RANKED_BY if name in self.model_fields_set]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)}: shapes are chosen by one of them. Leave the others out.")
        if self.within is not None and self.budget is None:
            raise UserError("--within: is a number of minutes for --budget FILE. Name both, or neither.")
        return self
