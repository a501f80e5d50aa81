"""Recipe section `export`, and where the draft is published. No torch, no Composer."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from architectures.compatibility import EngineName
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.gguf_format import GgufKind
from architectures.shapes.serving import TensorParallel


class PushConfig(Section):
    """Where the finished draft is published; `widedraft push` has the same options."""

    repo_id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        title="a repository, as ORG/NAME",
        examples=["my-org/llama2-7b-draft-796m"],
        description="The repository; it is made if it is not there.",
    )
    public: bool = Field(default=False, description="Whether everybody may see it.")
    revision: str | None = Field(default=None, min_length=1, description="Branch to push to; null is main.")
    pull_request: bool = Field(default=False, description="Whether to open a pull request in place of a commit.")
    base_model: str | None = Field(
        default=None, min_length=1, description="The target's hub id, or none; null takes target.path where it is one."
    )
    license: str | None = Field(
        default=None, min_length=1, description="The hub's identifier; null takes what is known of the target."
    )
    gguf: list[GgufKind] = Field(default=[], description="Files for llama.cpp that are sent with it.")

    @field_validator("pull_request")
    @classmethod
    def _against_main(cls, pull_request: bool, info: ValidationInfo) -> bool:  # noqa: FBT001  # pydantic's signature
        if pull_request and info.data.get("revision") is not None:
            raise ValueError(
                f"must be false beside revision, got true and {info.data['revision']}: a pull request is opened "
                "against main."
            )
        return pull_request


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
