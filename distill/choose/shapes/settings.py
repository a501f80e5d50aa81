"""What `widedraft choose` is asked for. No torch."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag, flag_of
from architectures.settings.kinds import MOST, BatchSizes, Contexts
from distill.checkpoints.trust import TrustCheckpoints
from distill.choose.shapes.candidates import Wanted
from distill.choose.shapes.durations import rung_durations
from distill.choose.shapes.given_alphas import GivenAlpha, known_alpha
from distill.choose.shapes.vocabularies import VocabularySize, head_rows
from distill.choose.shapes.widths import AXES, WidthSize
from distill.ranks.launching import Processes
from distill.recipe.sections.times import Duration
from distill.recipe.words import Debug, Overrides, RecipeFile

AskedWidths = Annotated[tuple[WidthSize, ...], Flag(metavar="N|0.5x|all", absent="as the recipe has it")]

RANKED_BY = ("duration", "alphas", "untrained")
UNTRAINED = "trains nothing"
REFUSED = {  # by what shapes are ranked by: the options that would do nothing there, and why
    "alphas": {"longest": UNTRAINED},
    "untrained": {"longest": UNTRAINED, "out": "ends before there is a winner"},
}


class ChooseSettings(Section):
    """Which shapes are chosen from, and by what."""

    recipe: RecipeFile
    overrides: Overrides = ()
    debug: Debug = False
    trust_checkpoints: TrustCheckpoints = False
    processes: Processes = None
    layers: Annotated[tuple[Annotated[int, Field(ge=1, le=MOST)], ...], Flag(absent="1 2 3 4 6 8 12")] = Field(
        default=(), description="Numbers of layers of the candidates."
    )
    vocabularies: Annotated[tuple[VocabularySize, ...], Flag(metavar="N|all", absent="as the recipe has it")] = Field(
        default=(), description="Token ids that candidates can say, each with each number of layers."
    )
    hidden_sizes: AskedWidths = Field(
        default=(), description="Channels of candidates: numbers, or shares of the target's."
    )
    intermediate_sizes: AskedWidths = Field(default=(), description="Neurons of a feed-forward layer, likewise.")
    heads: AskedWidths = Field(default=(), description="Query heads of a layer, likewise; key/value heads follow.")
    most_parameters: Annotated[int, Field(ge=1, le=10**13)] | None = Field(
        default=None, description="No candidate has more."
    )
    most_milliseconds: Annotated[Annotated[float, Field(gt=0, le=MOST)] | None, Flag(metavar="MS")] = Field(
        default=None, description="No candidate's step takes longer, at the first batch and context."
    )
    widest: bool = Field(
        default=False,
        description="Of every depth and head only the widest that --most-parameters or --most-milliseconds allows; of "
        "no widths asked for, all shrink together, by eighths.",
    )
    batch_sizes: Annotated[BatchSizes, Flag(absent="1")] = Field(
        default=(), description="Rows decoded together, at each of which candidates are ranked; the first decides."
    )
    contexts: Annotated[Contexts, Flag(absent="as in the scored texts")] = Field(
        default=(), description="Tokens before a step, at each of which candidates are ranked; the first decides."
    )
    duration: Annotated[Duration, Flag(metavar="T")] = Field(
        default="100ba", description="Length of the first, short trainings, as distill.max_duration."
    )
    longest: Annotated[Duration | None, Flag(metavar="T", absent="4 times --duration")] = Field(
        default=None, description="Candidates still in play are trained on, twice as long each time, up to this."
    )
    alphas: Annotated[
        tuple[Annotated[GivenAlpha, BeforeValidator(known_alpha, json_schema_input_type=str)], ...],
        Flag(metavar="N[xK]|NAME=A"),
    ] = Field(
        default=(),
        description="Train nothing: N layers that say K ids, or the candidate of a name, have a token accepted with "
        "chance A; for every candidate.",
    )
    untrained: bool = Field(default=False, description="Stop after step times: what each could do at most.")
    out: Annotated[Path | None, Flag(metavar="FILE", absent="<run>/choose/recipe.yaml")] = Field(
        default=None, description="The recipe of the winner."
    )

    @property
    def wanted(self) -> Wanted:
        """The shapes; those that --alphas name where no others are asked for."""
        named = dict.fromkeys(each.size for each in self.alphas if each.size is not None)
        return Wanted(
            layers=self.layers or [each.layers for each in self.alphas],
            vocabularies=[head_rows(size) for size in self.vocabularies] or list(named),
            widths={axis: getattr(self, name) for axis, name in AXES.items()},
            most_parameters=self.most_parameters,
            is_widest=self.widest,
            is_bound_by_time=self.most_milliseconds is not None,
        )

    @property
    def durations(self) -> list[str]:
        """Of the trainings, one behind the other."""
        return rung_durations(self.duration, self.longest)

    @property
    def ranked_by(self) -> str:
        """What shapes are ranked by: a name of RANKED_BY; "duration" where nothing is named."""
        return next((name for name in RANKED_BY if name in self.model_fields_set), RANKED_BY[0])

    @model_validator(mode="after")
    def _by_one_thing(self) -> "ChooseSettings":
        given = [flag_of(name) for name in RANKED_BY if name in self.model_fields_set]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)}: shapes are chosen by one of them. Leave the others out.")
        return self

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> "ChooseSettings":
        for name, why in REFUSED.get(self.ranked_by, {}).items():
            if name in self.model_fields_set:
                raise UserError(f"{flag_of(name)}: {flag_of(self.ranked_by)} {why}. Leave it out.")
        if self.widest and self.most_parameters is None and self.most_milliseconds is None:
            raise UserError("--widest: the widest that fits what? Give --most-parameters or --most-milliseconds too.")
        rung_durations(self.duration, self.longest)
        return self
