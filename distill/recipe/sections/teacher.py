"""Recipe section `distill.teacher`: whether the teacher is run beside the student, read from a cache, or not asked.

A teacher is one of five, each with keys of its own. No torch. Also what follows from it before a weight is read: which
losses it can serve, and how many bytes a token of a cache takes.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from architectures.errors import UserError
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.shapes.shape import DTYPE_BYTES
from distill.formulas.losses import LOSSES, PREFERRED, Knowledge

LOG_PROB_BYTES, LOG_TAIL_BYTES = 2, 4  # float16 and float32
SERVES_ALL = "A live teacher, or a cache with contents hidden, serves all."


class LiveTeacher(Section):
    """The teacher is run beside the student."""

    tells: ClassVar = Knowledge.LOGITS
    source: Literal["live"] = Field(default="live", description="live runs the teacher beside the student.")
    parallelism: Literal["replicated", "fsdp2"] = Field(
        default="replicated", description="Whether each process holds the whole live teacher or a shard of it."
    )


class Cache(Section):
    """What the teacher said of the answers is read from the disk."""

    tells: ClassVar[Knowledge]  # of answers to train on: held-out ones are always kept as hidden states
    source: Literal["cache"] = Field(description="cache reads what it said from the disk.")
    contents: Any  # a literal of its own in every cache


class HiddenCache(Cache):
    """A cache of hidden states, of which every logit of the teacher is made."""

    tells = Knowledge.LOGITS
    contents: Literal["hidden"] = Field(
        default="hidden", description="What a cache keeps per answer token: hidden states, which are exact."
    )


class TopKCache(Cache):
    """A cache of the most likely tokens, and of the mass of all others."""

    tells = Knowledge.ENTRIES
    contents: Literal["top_k"] = Field(description="top_k, the most likely entries and the mass of the others.")
    k: int = Field(default=64, ge=1, description="Entries kept by top_k.")


class SampleCache(Cache):
    """A cache of tokens drawn from the teacher."""

    tells = Knowledge.ENTRIES
    contents: Literal["samples"] = Field(description="samples, tokens drawn from it.")
    num_samples: int = Field(default=12, ge=1, description="Tokens drawn by samples.")


class NoTeacher(Section):
    """No teacher is asked: the answers' own tokens are learned."""

    tells: ClassVar = Knowledge.TOKENS
    source: Literal["none"] = Field(description="none asks no teacher: the answers' own tokens are learned.")


SparseCache: TypeAlias = TopKCache | SampleCache
AnyCache: TypeAlias = HiddenCache | SparseCache
AnyTeacher: TypeAlias = LiveTeacher | AnyCache | NoTeacher


def tagged(values: Any) -> Any:
    """The section's keys with those that tell teachers apart, where they are left out."""
    if not isinstance(values, dict):
        return values
    section = {"source": "live", **{key: value for key, value in values.items() if value is not None}}
    return {"contents": "hidden", **section} if section["source"] == "cache" else section


TeacherKey: TypeAlias = Annotated[
    LiveTeacher | Annotated[AnyCache, Field(discriminator="contents")] | NoTeacher,
    Field(discriminator="source"),
    BeforeValidator(tagged),
]


def is_sharded(teacher: AnyTeacher) -> bool:
    """Whether each process holds a shard of the teacher."""
    return isinstance(teacher, LiveTeacher) and teacher.parallelism == "fsdp2"


def named(teacher: AnyTeacher) -> str:
    """The key that says what it tells: "contents is top_k"."""
    return f"contents is {teacher.contents}" if isinstance(teacher, Cache) else f"source is {teacher.source}"


def served_losses(teacher: AnyTeacher) -> list[str]:
    """Names of the losses for which the teacher tells enough."""
    return [name for name, loss in LOSSES.items() if loss.needs() <= teacher.tells]


def default_loss(teacher: AnyTeacher) -> str:
    """What a recipe trains on that names no loss."""
    return next(name for name in PREFERRED if name in served_losses(teacher))


def refuse_k_beyond(teacher: AnyTeacher, *, vocab: int, rows: int) -> None:
    """Raise UserError if more entries are to be kept than the vocabulary has, or than the draft's head says."""
    if isinstance(teacher, TopKCache) and teacher.k > rows:
        most = "the target's vocab_size" if rows == vocab else "the number of ids the draft says"
        raise UserError(
            f"distill.teacher.k must be at most {most}, got {teacher.k} and {rows}. "
            "Keep fewer entries, or hidden states."
        )


def refuse_cut_entries(teacher: AnyTeacher, *, vocab_size: int, of_teacher: int) -> None:
    """Refuse kept entries of a vocabulary that a model beside the teacher has only a part of.

    A live teacher, and one of hidden states, is asked for the ids that all models have. Kept entries were taken of all
    the teacher's, and some of them may have no logit in the student.

    Raises:
        UserError: If the teacher has more entries than all models share, and the cache keeps some of them.
    """
    if isinstance(teacher, SparseCache) and of_teacher > vocab_size:
        raise UserError(
            f"distill.teacher.contents must be hidden when the vocabularies differ: the target has {of_teacher} "
            f"entries, of which {vocab_size} are shared, and {teacher.contents} was taken of all of them. "
            "Choose another run_name with contents hidden, or with a live teacher."
        )


def kept_of(cache: AnyCache, split: str) -> AnyCache:
    """What a cache holds of the "train" or the "eval" answers.

    Held-out answers are few and always kept as hidden states: their metrics are exact whatever is trained on.
    """
    return cache if split == "train" else HiddenCache(source="cache")


def bytes_per_token(cache: AnyCache, split: str, *, hidden: int, rows: int, dtype: str) -> int:
    """Bytes a cache takes for one answer token, its index left out.

    Args:
        cache: As the recipe has it.
        split: "train" or "eval".
        hidden: Width of the teacher's last hidden state.
        rows: Ids that kept entries are of.
        dtype: Of its hidden states.
    """
    match kept_of(cache, split):
        case HiddenCache():
            return hidden * DTYPE_BYTES[dtype]
        case TopKCache(k=k):
            return k * (id_bytes(rows) + LOG_PROB_BYTES) + LOG_TAIL_BYTES
        case SampleCache(num_samples=num_samples):
            return num_samples * id_bytes(rows)


def id_bytes(vocab: int) -> int:
    """Bytes of the smallest integer type that holds every id: 1, 2 or 4."""
    return next(width for width in (1, 2, 4) if vocab <= 256**width)


def teacher_dtype(dtype: Dtype, precision: str) -> Dtype:
    """Number type of the teacher while it teaches: the target's, and float32 where training is."""
    return "float32" if precision == "fp32" else dtype
