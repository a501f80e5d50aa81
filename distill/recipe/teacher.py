"""Recipe section `distill.teacher`: whether the teacher is run beside the student, read from a cache, or not asked.

No torch. Also what follows from it before a weight is read: which losses it can serve, and how many bytes a token of
a cache takes.
"""

from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from architectures.errors import UserError
from architectures.files.section import Section

Value = TypeVar("Value", bound=str)
Contents = Literal["hidden", "top_k", "samples"]
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LOG_PROB_BYTES, LOG_TAIL_BYTES = 2, 4  # float16 and float32
# What a loss needs of the teacher where not its whole distribution: a gradient that is that of the loss, or bounds it.
SPARSE_LOSSES = ("forward_kl", "cross_entropy")
LOSS_OF_TOKENS = "cross_entropy"  # which needs no teacher at all
WITHOUT_SHARDS = {"cache": "Of a cached teacher only the output head is loaded.", "none": "No teacher is loaded."}


class TeacherConfig(Section):
    """Where the teacher's distributions come from."""

    source: Literal["live", "cache", "none"] = Field(
        default="live",
        description="live runs the teacher beside the student; cache reads what it said from the disk; none asks no "
        "teacher: the answers' own tokens are learned.",
    )
    contents: Contents | None = Field(
        default=None,
        description="What a cache keeps per answer token: hidden states (exact, where left out), the top_k entries and "
        "the mass of the others, or tokens drawn as samples.",
    )
    k: int | None = Field(default=None, ge=1, description="Entries kept by top_k; 64 where left out.")
    num_samples: int | None = Field(default=None, ge=1, description="Tokens drawn by samples; 12 where left out.")
    captured_while: Literal["reading", "answering"] | None = Field(
        default=None,
        description="When a cache's hidden states are taken: while the target reads the finished answers (reading, "
        "where left out), or while it writes them (answering), which spares it that pass.",
    )
    parallelism: Literal["replicated", "fsdp2"] = Field(
        default="replicated", description="Whether each process holds the whole live teacher or a shard of it."
    )

    @field_validator("contents")
    @classmethod
    def _of_a_cache(cls, contents: Contents | None, info: ValidationInfo) -> Contents | None:
        return of_a_cache(contents, default="hidden", info=info)

    @field_validator("captured_while")
    @classmethod
    def _while_a_cache_is_made(cls, captured_while: str | None, info: ValidationInfo) -> str | None:
        return of_a_cache(captured_while, default="reading", info=info)

    @field_validator("k")
    @classmethod
    def _of_top_k(cls, k: int | None, info: ValidationInfo) -> int | None:
        return count_for("top_k", k, default=64, info=info)

    @field_validator("num_samples")
    @classmethod
    def _of_samples(cls, num_samples: int | None, info: ValidationInfo) -> int | None:
        return count_for("samples", num_samples, default=12, info=info)

    @property
    def captured_while_answering(self) -> bool:
        """Whether the target keeps its hidden states of the answers it writes, for a cache."""
        return self.captured_while == "answering"

    @field_validator("parallelism")
    @classmethod
    def _of_a_live_one(cls, parallelism: str, info: ValidationInfo) -> str:
        source = info.data.get("source")
        if source in WITHOUT_SHARDS and parallelism != "replicated":
            raise ValueError(
                f"must be left out when distill.teacher.source is {source}, got {parallelism}. {WITHOUT_SHARDS[source]}"
            )
        return parallelism


def of_a_cache(value: Value | None, *, default: Value, info: ValidationInfo) -> Value | None:
    """What a cache is made by, its default filled in; None where there is none.

    Raises:
        ValueError: If a value is given and there is none.
    """
    source = info.data.get("source")
    if source in ("live", "none") and value is not None:
        raise ValueError(
            f"must be left out when distill.teacher.source is {source}, got {value}. Set source to cache, or leave it "
            "out (null on the command line)."
        )
    return default if source == "cache" and value is None else value


def count_for(contents: Contents, count: int | None, *, default: int, info: ValidationInfo) -> int | None:
    """The count where the cache has these contents, its default filled in; None where it has others."""
    if "contents" not in info.data:  # reported already
        return count
    found = info.data["contents"]
    if found == contents:
        return default if count is None else count
    if count is not None:
        raise ValueError(
            f"must be left out unless distill.teacher.contents is {contents}, got {count} "
            f"and {'no contents' if found is None else found}."
        )
    return None


def recorded(teacher: dict[str, Any]) -> dict[str, Any]:
    """The section's values as fingerprints know them; what was recorded before there was captured_while holds."""
    if teacher["captured_while"] == "answering":
        return teacher
    return {name: value for name, value in teacher.items() if name != "captured_while"}


def default_loss(teacher: TeacherConfig) -> Literal["negative_log_acceptance", "forward_kl", "cross_entropy"]:
    """What a recipe trains on that names no loss: the best of docs/losses.md that this teacher can serve."""
    if teacher.source == "none":
        return LOSS_OF_TOKENS
    return "forward_kl" if is_sparse(teacher) else "negative_log_acceptance"


def is_sparse(teacher: TeacherConfig) -> bool:
    """Whether a cache kept some entries only: hidden states give every one, so any loss at any temperature."""
    return teacher.contents in ("top_k", "samples")


def refuse_unserved(teacher: TeacherConfig, *, loss: str) -> None:
    """Refuse a loss that needs more of the teacher than there is of it.

    Raises:
        ValueError: If there is none to ask, or the cache says too little of the entries that it left out.
    """
    if teacher.source == "none" and loss != LOSS_OF_TOKENS:
        raise ValueError(
            f"must be {LOSS_OF_TOKENS} when distill.teacher.source is none, got {loss}. "
            "Every other loss compares with a teacher: set source to live or cache."
        )
    if is_sparse(teacher) and loss not in SPARSE_LOSSES:
        raise ValueError(
            f"must be {' or '.join(SPARSE_LOSSES)} when distill.teacher.contents is {teacher.contents}, got {loss}. "
            "A live teacher, or a cache with contents hidden, serves all."
        )


def refuse_temperature(teacher: TeacherConfig, temperature: float) -> None:
    """Refuse a temperature other than the one at which the entries of a cache were taken.

    Raises:
        ValueError: If the cache cannot serve it.
    """
    if is_sparse(teacher) and temperature != 1:
        raise ValueError(
            f"must be 1 when distill.teacher.contents is {teacher.contents}, got {temperature}: that is what it was "
            "taken at. A live teacher, or a cache with contents hidden, serves all."
        )


def refuse_selection(teacher: TeacherConfig) -> None:
    """Refuse to choose tokens by a KL that the teacher cannot give.

    Raises:
        ValueError: If there is no teacher, or the cache keeps less than hidden states.
    """
    if teacher.source == "none":
        raise ValueError(
            "must be live, or a cache with contents hidden, with distill.token_selection, got none: tokens are chosen "
            "by the KL from the teacher."
        )
    if teacher.contents in ("top_k", "samples"):
        raise ValueError(
            f"must be live, or a cache with contents hidden, with distill.token_selection, got {teacher.contents}: "
            "tokens are chosen by the whole KL."
        )


def refuse_uncaptured(teacher: TeacherConfig, *, answers: str, target_dtype: str, precision: str) -> None:
    """Refuse to keep states while answering where nobody answers, or where the teacher's states would be others.

    Raises:
        ValueError: If answers are given, or the teacher teaches in another number type than it answers in.
    """
    if not teacher.captured_while_answering:
        return
    if answers == "given":
        raise ValueError(
            "must have teacher.captured_while: reading when data.answers is given, got answering: the target does not "
            "write those answers. Leave captured_while out: it reads them."
        )
    if precision == "fp32" and target_dtype != "float32":
        raise ValueError(
            "must have teacher.captured_while: reading when distill.precision is fp32 and target.dtype is "
            f"{target_dtype}, got answering: answers are written in {target_dtype}, and the teacher teaches in "
            "float32. Set target.dtype to float32 or precision to amp_bf16, or leave captured_while out."
        )


def refuse_k_beyond(teacher: TeacherConfig, *, vocab: int, rows: int) -> None:
    """Raise UserError if more entries are to be kept than the vocabulary has, or than the draft's head says."""
    if teacher.k is not None and teacher.k > rows:
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
    if teacher.contents in ("top_k", "samples") and of_teacher > vocab_size:
        raise UserError(
            f"distill.teacher.contents must be hidden when the vocabularies differ: the target has {of_teacher} "
            f"entries, of which {vocab_size} are shared, and {teacher.contents} was taken of all of them. "
            "Choose another run_name with contents hidden, or with a live teacher."
        )


def contents_of(teacher: TeacherConfig, split: str) -> Contents:
    """What the cache keeps of the "train" or the "eval" answers.

    Held-out answers are few and always kept as hidden states: their metrics are exact whatever is trained on.
    """
    assert teacher.contents is not None, "of a cache"
    return teacher.contents if split == "train" else "hidden"


def bytes_per_token(teacher: TeacherConfig, split: str, *, hidden: int, rows: int, dtype: str) -> int:
    """Bytes a cache takes for one answer token, its index left out.

    Args:
        teacher: With source cache.
        split: "train" or "eval".
        hidden: Width of the teacher's last hidden state.
        rows: Ids that kept entries are of.
        dtype: Of its hidden states.
    """
    contents = contents_of(teacher, split)
    if contents == "hidden":
        return hidden * DTYPE_BYTES[dtype]
    if contents == "top_k":
        assert teacher.k is not None, "filled in by the config"
        return teacher.k * (id_bytes(rows) + LOG_PROB_BYTES) + LOG_TAIL_BYTES
    assert teacher.num_samples is not None, "filled in by the config"
    return teacher.num_samples * id_bytes(rows)


def id_bytes(vocab: int) -> int:
    """Bytes of the smallest integer type that holds every id: 1, 2 or 4."""
    return next(width for width in (1, 2, 4) if vocab <= 256**width)
