"""Recipe section `generate`: which engine generates the target's responses. No torch."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from architectures.files.section import Section
from architectures.shapes.serving import TensorParallel

AnswerEngine = Literal["local", "vllm", "endpoint"]
READ_BY = {
    **dict.fromkeys(("urls", "model"), ("endpoint",)),
    **dict.fromkeys(("python", "tensor_parallel"), ("vllm",)),
    "concurrency": ("vllm", "endpoint"),
}
URL = re.compile(r"https?://[^/\s@?#]+(/[^\s@?#]*)?")


def server_url(url: str) -> str:
    """The address of a server without a trailing slash or the /v1 of its OpenAI interface."""
    if not URL.fullmatch(url):
        raise ValueError(
            f"must be the address of a server, as http://host:8000, got {url}. A key goes into OPENAI_API_KEY."
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class GenerateConfig(Section):
    """Which engine generates the target's responses: those to train on, held-out ones and those of the scorecard."""

    engine: AnswerEngine = Field(
        default="local",
        description="widedraft itself, vLLM in an environment of its own on this machine, or servers that run already.",
    )
    urls: tuple[Annotated[str, AfterValidator(server_url)], ...] = Field(
        default=(), strict=False, description="Servers of vLLM or SGLang, as http://host:8000."
    )
    model: str | None = Field(
        default=None, min_length=1, description="The servers' name for the target; null if they serve one model."
    )
    python: str | None = Field(default=None, min_length=1, description="Python of the environment that has vLLM.")
    tensor_parallel: TensorParallel = Field(default=1, description="Devices over which vLLM divides the target.")
    concurrency: int = Field(
        default=64, ge=1, le=4096, description="Requests in flight, of all processes together if they ask servers."
    )

    @field_validator(*READ_BY)
    @classmethod
    def _read_by_the_engine(cls, value: Any, info: ValidationInfo) -> Any:
        engine, name = info.data.get("engine"), str(info.field_name)
        if engine is not None and engine not in READ_BY[name] and value != cls.model_fields[name].default:
            raise ValueError(f"must be left out when generate.engine is {engine}: only {READ_BY[name]} read it.")
        if engine in READ_BY[name] and name in ("urls", "python") and not value:
            raise ValueError(f"must be given when generate.engine is {engine}.")
        return value

    @property
    def is_local(self) -> bool:
        """Whether widedraft generates the responses itself."""
        return self.engine == "local"
