"""Recipe section `export`, and where the draft is published. No torch, no Composer."""

from typing import Annotated, Literal

from pydantic import Field

from architectures.compatibility import EngineName
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.shapes.serving import TensorParallel


class PushConfig(Section):
    """Where the finished draft is published; `widedraft push` has the same options."""

    repo_id: Annotated[str, Flag(metavar="ORG/NAME")] = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        title="a repository, as ORG/NAME",
        examples=["my-org/llama2-7b-draft-796m"],
        description="The repository; it is made if it is not there.",
    )
    public: Annotated[bool, Flag(absent="private")] = Field(default=False, description="Whether everybody may see it.")
    revision: Annotated[str | None, Flag(metavar="BRANCH", absent="main")] = Field(
        default=None, min_length=1, description="Branch to push to; null is main."
    )
    base_model: Annotated[str | None, Flag(metavar="ORG/NAME", absent="target.path")] = Field(
        default=None, min_length=1, description="The target's hub id, or none; null takes target.path if it is one."
    )
    license: Annotated[str | None, Flag(metavar="ID", absent="what is known of the target")] = Field(
        default=None, min_length=1, description="The hub's identifier; null takes what is known of the target."
    )


class ExportConfig(Section):
    """How the finished draft is written."""

    dtype: Dtype = Field(default="bfloat16", description="Number type of the draft's weights.")
    checkpoint: Literal["best", "latest"] = Field(
        default="best",
        description="The checkpoint it is made from: the one with the highest held-out tau, or the last.",
    )
    engines: list[EngineName] = Field(
        default=[],
        description="Engines that are to serve the draft: `widedraft check` refuses a shape that one of them does not "
        "serve. Nothing is made otherwise by it.",
    )
    tensor_parallel: TensorParallel = Field(
        default=1, description="Devices over which those engines divide target and draft."
    )
