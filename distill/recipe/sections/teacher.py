"""Recipe section `distill.teacher`: whether the teacher is run beside the student, read from a cache, or not asked.

No torch. Also what follows from it before a weight is read: which losses it can serve, and how many bytes a token of a
cache takes.
"""

from typing import Literal

from pydantic import Field

from architectures.errors import UserError
from architectures.files.number_types import Dtype
from architectures.files.section import Section
from architectures.shapes.shape import DTYPE_BYTES
from distill.formulas.losses import LOSSES, PREFERRED, Knowledge

LOG_PROB_BYTES, LOG_TAIL_BYTES = 2, 4  # float16 and float32


class TeacherConfig(Section):
    """Where the teacher's distributions come from."""

    source: Literal["live", "cache", "none"] = Field(
        default="live",
        description="live runs the teacher beside the student; cache reads its outputs from the disk; none asks no "
        "teacher: the answers' own tokens are learned.",
    )
    parallelism: Literal["replicated", "fsdp2"] = Field(
        default="replicated", description="Whether each process holds the whole live teacher or a shard of it."
    )
    contents: Literal["hidden", "top_k", "samples"] = Field(
        default="hidden",
        description="What a cache keeps per answer token: hidden states, which are exact; top_k, the most likely "
        "entries and the mass of the others; samples, tokens drawn from it.",
    )
    k: int = Field(default=64, ge=1, description="Entries kept by top_k.")
    num_samples: int = Field(default=12, ge=1, description="Tokens drawn by samples.")

    @property
    def is_cache(self) -> bool:
        return self.source == "cache"

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a shard of the teacher."""
        return self.source == "live" and self.parallelism == "fsdp2"

    @property
    def keeps_entries(self) -> bool:
        """Whether it is a cache of some entries of the teacher's distribution."""
        return self.is_cache and self.contents != "hidden"

    @property
    def tells(self) -> Knowledge:
        """What is known of the teacher at an answer to train on: held-out ones are always kept as hidden states."""
        if self.source == "none":
            return Knowledge.TOKENS
        return Knowledge.ENTRIES if self.keeps_entries else Knowledge.LOGITS

    @property
    def served_losses(self) -> list[str]:
        """Names of the losses for which the teacher tells enough."""
        return [name for name, loss in LOSSES.items() if loss.needs <= self.tells]

    @property
    def default_loss(self) -> str:
        """What a recipe trains on that names no loss."""
        return next(name for name in PREFERRED if name in self.served_losses)


def refuse_k_beyond(teacher: TeacherConfig, *, vocab: int, rows: int) -> None:
    """Raise UserError if more entries are to be kept than the vocabulary has, or than the draft's head says."""
    if teacher.is_cache and teacher.contents == "top_k" and teacher.k > rows:
        most = "the target's vocab_size" if rows == vocab else "the number of ids the draft says"
        raise UserError(
            f"distill.teacher.k must be at most {most}, got {teacher.k} and {rows}. "
            "Keep fewer entries, or hidden states."
        )


def refuse_cut_entries(teacher: TeacherConfig, *, vocab_size: int, of_teacher: int) -> None:
    """Refuse kept entries of a vocabulary that a model beside the teacher has only a part of.

    A live teacher, and one of hidden states, is asked for the ids that all models have. Kept entries were taken of all
    the teacher's, and some of them may have no logit in the student.

    Raises:
        UserError: If the teacher has more entries than all models share, and the cache keeps some of them.
    """
    if teacher.keeps_entries and of_teacher > vocab_size:
        raise UserError(
            f"distill.teacher.contents must be hidden when the vocabularies differ: the target has {of_teacher} "
            f"entries, of which {vocab_size} are shared, and {teacher.contents} was taken of all of them. "
            "Choose another run_name with contents hidden, or with a live teacher."
        )


def kept_of(cache: TeacherConfig, split: str) -> TeacherConfig:
    """What a cache holds of the "train" or the "eval" answers.

    Held-out answers are few and always kept as hidden states: their metrics are exact whatever is trained on.
    """
    return cache if split == "train" else TeacherConfig(source="cache")


def bytes_per_token(cache: TeacherConfig, split: str, *, hidden: int, rows: int, dtype: str) -> int:
    """Bytes a cache takes for one answer token, its index left out.

    Args:
        cache: As the recipe has it.
        split: "train" or "eval".
        hidden: Width of the teacher's last hidden state.
        rows: Ids that kept entries are of.
        dtype: Of its hidden states.
    """
    match kept_of(cache, split).contents:
        case "hidden":
            return hidden * DTYPE_BYTES[dtype]
        case "top_k":
            return cache.k * (id_bytes(rows) + LOG_PROB_BYTES) + LOG_TAIL_BYTES
        case "samples":
            return cache.num_samples * id_bytes(rows)


def id_bytes(vocab: int) -> int:
    """Bytes of the smallest integer type that holds every id: 1, 2 or 4."""
    return next(width for width in (1, 2, 4) if vocab <= 256**width)


def teacher_dtype(dtype: Dtype, precision: str) -> Dtype:
    """Number type of the teacher while it teaches: the target's, and float32 where training is."""
    return "float32" if precision == "fp32" else dtype
