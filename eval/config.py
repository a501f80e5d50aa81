"""Recipe sections `eval` and `generate`, and the flags of `widedraft serve`. No torch."""

import ipaddress
import re
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from architectures import settings as fields
from architectures.compatibility import TensorParallel
from architectures.errors import UserError
from architectures.settings import AUTO, MOST, Flag, Section
from eval.tasks import PromptSource


class SamplingConfig(Section):
    """Sampling settings other than the temperature, shared by target and draft."""

    top_p: fields.TopP = 1.0
    top_k: fields.TopK = None
    min_p: fields.MinP = 0.0
    repetition_penalty: fields.RepetitionPenalty = 1.0

    def that_count(self, temperature: float) -> dict[str, float]:
        """Return the settings that affect the output at a temperature: greedy decoding uses only the penalty."""
        greedy = {"repetition_penalty"}
        return {
            name: value
            for name, field in type(self).model_fields.items()
            if (value := getattr(self, name)) != field.default and (temperature > 0 or name in greedy)
        }

    def words_at(self, temperature: float) -> str:
        """Format the temperature and the settings that count: "temperature 1, top-p 0.9"."""
        given = (f"{name.replace('_', '-')} {value:g}" for name, value in self.that_count(temperature).items())
        return ", ".join([f"temperature {temperature:g}", *given]).replace("repetition-", "repetition ")


def requested_sampling(flags: object) -> SamplingConfig:
    """Collect the sampling settings among the attributes of a command's flags or of recorded responses."""
    return SamplingConfig(**{name: getattr(flags, name) for name in SamplingConfig.model_fields})


PROMPT_TOKENS = 1024  # per sequence of a batch: longer prompts are decoded in smaller batches


class EvalConfig(Section):
    """Settings for scoring drafts against their target."""

    tasks: tuple[PromptSource, ...] = Field(
        default=(), strict=False, description="Evaluation prompts; empty: the held-out prompts of `data`."
    )
    num_prompts: fields.NumPrompts = Field(default=64, description="Maximum number of prompts.")
    max_new_tokens: fields.MaxScoredTokens = Field(default=128, description="Maximum tokens of a response.")
    max_prompt_len: int | None = Field(
        default=None,
        ge=1,
        description="Maximum tokens of a prompt; longer prompts are dropped. null: what the context leaves before "
        f"max_new_tokens, at most {PROMPT_TOKENS} * batch_size, which bounds memory.",
    )
    num_speculative_tokens: fields.SpeculativeTokenCounts = Field(
        default=(1, 2, 3, 4, 5, 6, 7, 8), description="Values of num_speculative_tokens to report."
    )
    temperatures: fields.Temperatures = Field(
        default=(0.0, 1.0), description="Sampling temperatures to report; 0 is greedy."
    )
    sampling: SamplingConfig = Field(
        default_factory=SamplingConfig,
        description="Sampling settings in addition to the temperature.",
    )
    dtype: fields.DtypeOrAuto = Field(
        default="float32",
        description="Dtype of target and draft; auto is bfloat16 on GPUs and on CPUs that compute in it, else float32.",
    )
    batch_size: fields.BatchSize = Field(
        default=32, description="Sequences decoded together while generating the target's responses."
    )
    latency_repeats: fields.Repeats = Field(default=40, description="Timed repetitions of a step at batch size 1.")
    latency_batch_sizes: fields.BatchSizes = Field(
        default=(1, 4, 16),
        description="Additional batch sizes to time, with a quarter of the repetitions.",
    )
    wall_clock_prompts: int = Field(default=16, ge=1, description="Prompts of the wall-clock measurement.")

    @field_validator("num_speculative_tokens")
    @classmethod
    def _ascending(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(ks))


GenerateEngine = Literal["local", "vllm", "endpoint"]
SpeedEngine = Literal["vllm", "llama.cpp", "openvino"]  # of `widedraft benchmark`
READ_BY = {
    **dict.fromkeys(("urls", "model"), ("endpoint",)),
    **dict.fromkeys(("python", "tensor_parallel"), ("vllm",)),
    "concurrency": ("vllm", "endpoint"),
}
URL = re.compile(r"https?://[^/\s@?#]+(/[^\s@?#]*)?")


def server_url(url: str) -> str:
    """Return a server's URL without a trailing slash or the /v1 of its OpenAI interface."""
    if not URL.fullmatch(url):
        raise ValueError(f"must be a server URL such as http://host:8000, got {url}. Set an API key as OPENAI_API_KEY.")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class GenerateConfig(Section):
    """The engine that generates the target's responses: for training, evaluation and the scorecard."""

    engine: GenerateEngine = Field(
        default="local",
        description="local: widedraft; vllm: offline vLLM in its own environment; endpoint: running servers.",
    )
    urls: tuple[Annotated[str, AfterValidator(server_url)], ...] = Field(
        default=(), strict=False, description="vLLM, SGLang or llama.cpp servers (http://host:8000)."
    )
    model: str | None = Field(
        default=None, min_length=1, description="Model name on the servers; null if they serve only one."
    )
    python: str | None = Field(
        default=None, min_length=1, description="Python executable of the environment with vLLM."
    )
    tensor_parallel: TensorParallel = Field(default=1, description="Tensor parallel size of vLLM.")
    concurrency: int = Field(
        default=64, ge=1, le=4096, description="Concurrent requests; with endpoint, in total over all processes."
    )

    @field_validator(*READ_BY)
    @classmethod
    def _read_by_the_engine(cls, value: Any, info: ValidationInfo) -> Any:
        engine, name = info.data.get("engine"), str(info.field_name)
        if engine is not None and engine not in READ_BY[name] and value != cls.model_fields[name].default:
            raise ValueError(
                f"must not be set when generate.engine is {engine}, only for {' or '.join(READ_BY[name])}."
            )
        if engine in READ_BY[name] and name in ("urls", "python") and not value:
            raise ValueError(f"must be set when generate.engine is {engine}.")
        return value

    @property
    def is_local(self) -> bool:
        return self.engine == "local"


def is_loopback(host: str | None) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return host == "localhost"


class ServeSettings(Section):
    """Flags of `widedraft serve`."""

    target: fields.Target
    draft: fields.Draft
    num_speculative_tokens: Annotated[
        fields.NumSpeculativeTokens | None, Flag(absent="num_assistant_tokens of the draft, else 3")
    ] = None
    dtype: fields.PairDtype = AUTO
    host: str = Field(default="127.0.0.1", description="Address to listen on; others than loopback need --api-key.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on.")
    api_key: str | None = Field(default=None, min_length=1, description="Key that clients must send.")
    max_model_len: Annotated[int | None, Flag(absent="context of both models, at most 4096")] = Field(
        default=None, ge=2, le=MOST, description="Maximum tokens of prompt and response."
    )
    max_num_seqs: int = Field(default=16, ge=1, le=MOST, description="Maximum number of requests decoded together.")
    max_queue: int = Field(default=64, ge=1, le=MOST, description="Maximum number of requests that wait.")

    @model_validator(mode="after")
    def _only_for_this_machine(self) -> "ServeSettings":
        if self.api_key is None and not is_loopback(self.host):
            raise UserError(f"--host {self.host}: is not a loopback address. Set --api-key, or use 127.0.0.1.")
        return self
