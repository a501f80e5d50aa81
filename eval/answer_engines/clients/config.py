"""Recipe section `generate`: who decodes the target's answers. No torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from architectures.files.section import Section
from architectures.settings.kinds import MOST
from architectures.shapes.serving import TensorParallel
from architectures.sharing import Share

Unit = TypeVar("Unit")

AnswerEngine = Literal["local", "vllm", "endpoint"]
BOTH: tuple[AnswerEngine, ...] = ("vllm", "endpoint")
ENDPOINT: tuple[AnswerEngine, ...] = ("endpoint",)
VLLM: tuple[AnswerEngine, ...] = ("vllm",)
USED_BY: dict[str, tuple[AnswerEngine, ...]] = {
    "urls": ENDPOINT,
    "model": ENDPOINT,
    "api_key_variable": ENDPOINT,
    "timeout_s": ENDPOINT,
    "retries": ENDPOINT,
    "python": VLLM,
    "tensor_parallel": VLLM,
    "gpu_memory_utilization": VLLM,
    "concurrency": BOTH,
    "checked": BOTH,
    "probe_interval": BOTH,
}
Variable = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        title="the name of an environment variable",
        examples=["VLLM_API_KEY", "SGLANG_API_KEY"],
    ),
]
ADDRESS = re.compile(r"https?://[^/\s@?#]+(/[^\s@?#]*)?")


def plain_address(url: str) -> str:
    """An address of a server, without a slash at its end or the /v1 of its OpenAI interface."""
    if not ADDRESS.fullmatch(url):
        raise ValueError(f"must be the address of a server, as http://host:8000, got {url}. Keys go into a variable.")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


@dataclass(frozen=True)
class Asker:
    """A process among those that ask.

    Attributes:
        number: Of it, from 0; None of one that asks nothing.
        of: So many ask.
        at_once: So much does it ask at the same time.
    """

    number: int | None
    of: int
    at_once: int

    def mine(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Those of some units, known to all, that this process asks for."""
        return () if self.number is None else units[self.number :: self.of]


class GenerateConfig(Section):
    """Who decodes the target's answers, those to train on, held-out ones and those of the scorecard alike."""

    engine: AnswerEngine = Field(
        default="local",
        description="widedraft itself, vLLM in an environment of its own on this machine, or servers that run already.",
    )
    urls: tuple[Annotated[str, AfterValidator(plain_address)], ...] = Field(
        default=(),
        strict=False,
        description="Of servers that return token ids, as http://host:8000: vLLM's, or SGLang's.",
    )
    model: str | None = Field(
        default=None, min_length=1, description="Name that the servers have for the target; null where they serve one."
    )
    api_key_variable: Variable | None = Field(
        default=None, description="Environment variable that holds the key which the servers ask for."
    )
    timeout_s: float = Field(
        default=600.0, gt=0, le=86400, description="Seconds that a server may take for one answer."
    )
    retries: int = Field(
        default=5, ge=0, le=100, description="How often one answer is asked for again, after ever longer waits."
    )
    python: str | None = Field(default=None, min_length=1, description="Python of the environment that has vLLM.")
    tensor_parallel: TensorParallel = Field(default=1, description="Devices over which vLLM divides the target.")
    gpu_memory_utilization: float = Field(
        default=0.7,
        gt=0,
        lt=1,
        description="Share of a GPU's memory that vLLM takes; the target that checks its answers needs the rest.",
    )
    concurrency: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Answers that are asked for at the same time: of servers by all processes together.",
    )
    checked: float = Field(
        default=0.05, gt=0, le=1, description="Share of answers that the target here reads, at least one a shard."
    )
    probe_interval: int = Field(
        default=256,
        ge=1,
        le=MOST,
        description="Answers after which the known prompt is asked again: weights may have changed meanwhile.",
    )

    @field_validator(*USED_BY)
    @classmethod
    def _of_the_engine(cls, value: Any, info: ValidationInfo) -> Any:
        engine, name = info.data.get("engine"), str(info.field_name)
        if engine is not None and engine not in USED_BY[name] and value != cls.model_fields[name].default:
            raise ValueError(
                f"must be left out when generate.engine is {engine}, got {value if value != () else '[]'}. "
                f"{' and '.join(USED_BY[name])} alone {'reads' if len(USED_BY[name]) == 1 else 'read'} it."
            )
        return value

    @field_validator("urls", "python")
    @classmethod
    def _named(cls, value: Any, info: ValidationInfo) -> Any:
        engine = info.data.get("engine")
        if engine is not None and engine in USED_BY[str(info.field_name)] and not value:
            raise ValueError(f"must be given when generate.engine is {engine}.")
        return value

    @field_validator("urls")
    @classmethod
    def _each_once(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(urls)) < len(urls):
            raise ValueError(f"must name each server once, got {', '.join(urls)}.")
        return urls

    def asker(self, share: Share, *, gpus: int) -> "Asker":
        """Which part of what is asked one of several processes asks.

        Servers have `concurrency` requests of all processes together. vLLM runs once a machine, or on GPUs as often as
        there are `tensor_parallel` processes: on the GPUs of these. Of every engine there are as many processes.

        Args:
            share: Of the process.
            gpus: Of this machine.
        """
        if self.engine == "endpoint":
            asking = min(share.count, self.concurrency)
            own = self.concurrency // asking + (share.index < self.concurrency % asking)
            return Asker(share.index if share.index < asking else None, asking, own)
        wide = self.tensor_parallel if gpus else share.per_machine
        engines = max(1, share.per_machine // wide)
        machine, local = divmod(share.index, share.per_machine)
        is_first = local % wide == 0 and local // wide < engines
        number = machine * engines + local // wide if is_first else None
        return Asker(number, share.count // share.per_machine * engines, self.concurrency)

    @property
    def is_local(self) -> bool:
        """Whether widedraft decodes itself."""
        return self.engine == "local"
