"""What an entry of config.json or generation_config.json may be: type and range, and the words for both. No torch."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

MAX_CHARS_SHOWN = 60
LONGEST = 2**31 - 1  # positions, and ids
Activation = Literal[  # as transformers' ACT2FN names them; a test compares
    "gelu",
    "gelu_10",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "gelu_accurate",
    "hardswish",
    "laplace",
    "leaky_relu",
    "linear",
    "mish",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "sqrtsoftplus",
    "swish",
    "tanh",
    "prelu",
    "xielu",
]
RopeType = Literal[  # as transformers' ROPE_INIT_FUNCTIONS names them; then older names, which it maps to these
    "default",
    "linear",
    "dynamic",
    "yarn",
    "longrope",
    "llama3",
    "proportional",
    "su",
    "mrope",
]
LayerType = Literal["full_attention", "sliding_attention", "chunked_attention", "linear_attention"]
NumberType = Literal["float64", "float32", "bfloat16", "float16"]
Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]
Schedule = Literal["heuristic", "heuristic_transient", "constant"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Part = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
RopeBase = Annotated[float, Field(gt=1, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Positions = Annotated[int, Field(ge=1, le=LONGEST)]
TokenId = Annotated[int, Field(ge=0, le=LONGEST)]


class Rope(TypedDict, total=False):
    """Rotary settings, as transformers 5 has them and as 4 had them."""

    rope_type: RopeType
    type: RopeType
    rope_theta: RopeBase
    factor: Factor | None
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Positions
    attention_factor: Positive | None
    beta_fast: Positive | None
    beta_slow: Positive | None
    partial_rotary_factor: Part
    short_factor: list[Positive]
    long_factor: list[Positive]


@dataclass(frozen=True)
class Kind:
    """What an entry may be.

    Attributes:
        words: Follow "must be".
        form: The type of such values; nothing is converted to fit it.
    """

    words: str
    form: Any

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Made when it is first asked."""
        return TypeAdapter(self.form)

    def fits(self, value: Any) -> bool:
        """Whether a value is of this kind."""
        try:
            self.adapter.validate_python(value, strict=True)
        except ValidationError:
            return False
        return True

    def mistake(self, value: Any) -> str:
        """What is wrong with a value that does not fit."""
        return f"must be {self.words}, got {shown(value)}"

    def or_null(self) -> "Kind":
        return Kind(f"{self.words}, or null", self.form | None)

    def or_list(self) -> "Kind":
        """The same, and a list of such."""
        return Kind(f"{self.words}, or a list of such", self.form | list[self.form])


def shown(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= MAX_CHARS_SHOWN else f"{text[:MAX_CHARS_SHOWN]}…"


def number(
    words: str, *, gt: float | None = None, ge: float | None = None, lt: float | None = None, le: float | None = None
) -> Kind:
    """A finite number within bounds; whole ones are numbers too, truth values are none."""
    return Kind(words, Annotated[float, Field(gt=gt, ge=ge, lt=lt, le=le, allow_inf_nan=False)])


def whole(words: str, *, ge: int, le: int | None = None) -> Kind:
    """A whole number within bounds."""
    return Kind(words, Annotated[int, Field(ge=ge, le=le)])


def count(most: int) -> Kind:
    """A number of things that memory has to hold."""
    return whole(f"a whole number > 0 and <= {most:,}", ge=1, le=most)


def one_of(names: Any) -> Kind:
    """One of the texts of a Literal."""
    return Kind(f"one of {', '.join(get_args(names))}", names)


POSITIVE = Kind("a number > 0", Positive)
NOT_NEGATIVE = number("a number >= 0", ge=0)
SHARE = number("a number from 0 to 1", ge=0, le=1)
PART = Kind("a number > 0 and <= 1", Part)
EPSILON = number("a number > 0 and < 1", gt=0, lt=1)
ROPE_BASE = Kind("a number > 1", RopeBase)
POSITIONS = Kind(f"a whole number > 0 and <= {LONGEST:,}", Positions)
FLAG = Kind("true or false", bool)
TEXT = Kind("text", str)
OBJECT = Kind("an object", dict[str, Any])
TOKEN = Kind("a token id", TokenId)
ROPE = Kind(
    "an object of rotary settings: a rope_type that transformers knows, rope_theta > 1, factor >= 1, others > 0", Rope
)
