"""The trainings of a recipe as far as memory and time go: models, number types, tokens. No torch."""

from dataclasses import dataclass

from architectures.shapes.requested_shape import masked_shape
from architectures.shapes.shape import DTYPE_BYTES, Shape
from distill.estimates.frozen_embeddings import trained_parameters
from distill.formulas.losses import Knowledge
from distill.recipe.recipe import Recipe
from distill.recipe.sections.samples import SamplesConfig
from distill.recipe.sections.teacher import (
    AnyTeacher,
    HiddenCache,
    NoTeacher,
    SampleCache,
    TopKCache,
    is_sharded,
    teacher_dtype,
)
from distill.recipe.sections.training import DistillConfig

OF_A_MACHINE = 8  # processes


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training, as far as memory goes.

    Attributes:
        title: What is trained.
        student: Its shape; all of it is trained, but for frozen embeddings.
        teacher: The frozen one's shape; None where there is none.
        teacher_dtype: Number type of the teacher's weights.
        precision: amp_bf16 or fp32.
        batch: Sequences per step over all processes.
        microbatch: Sequences per forward pass; None for the whole batch of a process.
        seq_len: Tokens of a sequence at most.
        loss_tokens: Tokens of a sequence that make loss, at most.
        gated: Whether learned masks are multiplied in.
        sharded: Whether FSDP2 divides the student.
        packing: Whether sequences share rows. The slots of a packed batch are fewer; all of them are counted.
        cached_bytes: What a batch holds of a cached teacher per answer token; None where the teacher runs.
        teacher_sharded: Whether FSDP2 divides the teacher.
        recomputed: Whether layers keep their inputs alone.
        shard_degree: Over how many processes one copy is divided; None for all.
        logits_of_teacher: Whether the loss is made of the teacher's logits, which a cache of entries spares.
        frozen_embeddings: Whether the student's input embeddings have neither gradients nor moments.
        written_bytes: Keys and values per token of those that write answers while the student trains.
        on_gpu: Whether it runs on a GPU, whose losses are made of larger chunks.
        serving_bytes: Of the process that answers requests beside it: both models, and keys and values of a request.
        keeps_good: Whether the last good draft and its moments are kept, too.
    """

    title: str
    student: Shape
    teacher: Shape | None
    teacher_dtype: str
    precision: str
    batch: int
    microbatch: int | None
    seq_len: int
    loss_tokens: int
    gated: bool = False
    sharded: bool = False
    packing: bool = False
    cached_bytes: int | None = None
    teacher_sharded: bool = False
    recomputed: bool = False
    shard_degree: int | None = None
    logits_of_teacher: bool = True
    frozen_embeddings: bool = False
    written_bytes: int = 0
    on_gpu: bool = False
    serving_bytes: int = 0
    keeps_good: bool = False

    @property
    def trained_parameters(self) -> int:
        """Of the student, those that have gradients."""
        return trained_parameters(self.student, frozen=self.frozen_embeddings)


def trainings(recipe: Recipe, target: Shape, draft: Shape, *, on_gpu: bool = False) -> list[Training]:
    """The trainings of a recipe: of learned masks, where it has them, and of the draft."""
    config = recipe.distill
    seq_len, loss_tokens = learned_tokens(recipe)
    dtype = teacher_dtype(recipe.target.dtype, config.precision)
    distillation = Training(
        title="distillation",
        student=draft,
        teacher=None if isinstance(config.teacher, NoTeacher) else target,
        teacher_dtype=dtype,
        precision=config.precision,
        batch=config.global_train_batch_size,
        microbatch=None if config.device_train_microbatch_size == "auto" else config.device_train_microbatch_size,
        seq_len=seq_len,
        loss_tokens=loss_tokens,
        sharded=config.parallelism != "ddp",
        recomputed=config.activation_checkpointing,
        shard_degree=copies_over(config),
        packing=config.packing,
        cached_bytes=cached_bytes(config.teacher, target, dtype),
        teacher_sharded=is_sharded(config.teacher),
        logits_of_teacher=asks_logits(config),
        frozen_embeddings=config.freeze_input_embeddings,
        written_bytes=written_bytes(config.samples, draft, target, dtype),
        on_gpu=on_gpu,
        serving_bytes=serving_bytes(recipe, draft, target),
        keeps_good=config.online is not None,
    )
    masks = recipe.architecture.method == "learned_masks"
    return [mask_training(recipe, target, on_gpu=on_gpu), distillation] if masks else [distillation]


def copies_over(config: DistillConfig) -> int | None:
    """Processes of one copy: auto takes a machine of eight; None where there are no copies of shards."""
    if config.parallelism != "hsdp":
        return None
    return OF_A_MACHINE if config.shard_degree == "auto" else config.shard_degree


def written_bytes(samples: SamplesConfig, draft: Shape, target: Shape, dtype: str) -> int:
    """Bytes of a new answer's token while it is written: in the student, and in a teacher that writes too."""
    if not samples.writes:
        return 0
    of_teacher = target.kv_bytes_per_token(dtype) if samples.source == "mix_token" else 0
    return draft.kv_bytes_per_token("float32") + of_teacher


def serving_bytes(recipe: Recipe, draft: Shape, target: Shape) -> int:
    """Bytes of the process that answers requests; none where recorded answers are replayed."""
    online, dtype = recipe.distill.online, recipe.target.dtype
    if online is None or online.answers == "recorded":
        return 0
    models = (target, draft)
    read = recipe.data.max_seq_len * sum(model.kv_bytes_per_token(dtype) for model in models)
    return read + sum(model.weight_bytes(dtype) for model in models)


def asks_logits(config: DistillConfig) -> bool:
    """Whether a training step makes logits of the teacher: neither of a cache's entries, nor of tokens alone."""
    compares = config.token_selection is not None or any(term.needs() > Knowledge.TOKENS for term in config.terms)
    return compares and config.teacher.tells is Knowledge.LOGITS


def learned_tokens(recipe: Recipe) -> tuple[int, int]:
    """Tokens of a sequence of distillation, and how many of them make loss, at most."""
    if recipe.distill.train_on == "answers":
        return recipe.data.max_seq_len, recipe.data.longest_answer
    assert recipe.text is not None  # whoever trains on text has some
    return recipe.text.max_seq_len - 1, recipe.text.max_seq_len - 1


def mask_training(recipe: Recipe, target: Shape, *, on_gpu: bool = False) -> Training:
    """The training of learned masks: the whole target is trained beside its frozen self."""
    masks, text = recipe.architecture.masks, recipe.text
    assert text is not None  # a recipe with learned masks has text
    masked_shape(target, recipe.architecture)  # the cut is possible
    return Training(
        title="mask training",
        student=target,
        teacher=target if masks.kl_weight else None,
        teacher_dtype=teacher_dtype(recipe.target.dtype, masks.precision),
        precision=masks.precision,
        batch=masks.global_train_batch_size,
        microbatch=None if masks.device_train_microbatch_size == "auto" else masks.device_train_microbatch_size,
        seq_len=text.max_seq_len,
        loss_tokens=text.max_seq_len - 1,
        gated=True,
        sharded=recipe.distill.parallelism != "ddp",
        recomputed=recipe.distill.activation_checkpointing,
        shard_degree=copies_over(recipe.distill),
        teacher_sharded=is_sharded(recipe.distill.teacher),
        on_gpu=on_gpu,
    )


def cached_bytes(teacher: AnyTeacher, target: Shape, dtype: str) -> int | None:
    """What a batch holds per answer token: hidden states as they are, ids widened to 8 bytes and numbers to 4."""
    match teacher:
        case HiddenCache():
            return target.hidden * DTYPE_BYTES[dtype]
        case TopKCache(k=k):
            return k * (8 + 4) + 4
        case SampleCache(num_samples=num_samples):
            return num_samples * 8
    return None
