"""Recipe section `export`, and where the draft is published. No torch, no Composer."""

from typing import Annotated, Literal

from pydantic import Field

from architectures.compatibility import EngineName
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.shapes.serving import TensorParallel

RepoId = Annotated[
    str,
    Flag(metavar="ORG/NAME"),
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        title="a repository, as ORG/NAME",
        examples=["my-org/llama2-7b-draft-796m"],
    ),
]


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
