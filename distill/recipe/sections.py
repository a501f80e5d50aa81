"""Recipe sections `data`, `distill`, `text` and `export`, one pydantic model each. No torch, no Composer.

Source of `distill.online`: Liu et al. 2024, "Online Speculative Decoding" (arXiv 2310.07177), algorithm 2. It stores
the full distributions at rejected tokens; here the target's hidden states are stored, from which its head computes
them.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from architectures.compatibility import EngineName, TensorParallel
from architectures.errors import UserError
from architectures.settings import (
    BatchSize,
    Dtype,
    Flag,
    MaxNewTokens,
    NumSpeculativeTokens,
    PrecisionOrAuto,
    Section,
    Temperature,
)
from architectures.shapes import DTYPE_BYTES
from distill.losses import LOSSES, PREFERRED, Knowledge, Loss, LossTerm, loss_terms
from eval.stream import StreamConfig
from eval.tasks import PromptSource

# Composer's time strings, without `sec` and `iter`: `dur` intervals never trigger when training is limited in seconds,
# and an iteration of unset length never ends.
#
# The number of digits is bounded so that no value is infinite, and no fraction rounds to zero.
WHOLE = r"[1-9](?:_?[0-9]){0,14}(?:e[0-9]|e1[0-5])?"

FRACTION = r"(?:0?\.[0-9]{0,9}[1-9][0-9]{0,9}|1(?:\.0{0,9})?)"

FRACTION_OR_ZERO = r"(?:0(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"

Duration = Annotated[
    str,
    Field(pattern=rf"^{WHOLE}(?:ep|ba|sp|tok)$", title="a Composer time", examples=["1ep", "200ba", "1_000_000tok"]),
]

Interval = Annotated[
    str,
    Field(
        pattern=rf"^(?:{WHOLE}(?:ep|ba|sp|tok)|{FRACTION}dur)$",
        title="a Composer time",
        examples=["0.25dur", "200ba", "1ep"],
    ),
]

Warmup = Annotated[
    str,
    Field(
        pattern=rf"^(?:(?:0|{WHOLE})(?:ep|ba|sp|tok)|{FRACTION_OR_ZERO}dur)$",
        title="a Composer time",
        examples=["0.05dur", "100ba", "0ba"],
    ),
]


def split_time(time: str) -> tuple[float, str]:
    """Split a time string of a recipe into value and unit: "1_000tok" is (1000.0, "tok")."""
    match = re.fullmatch("(.+)(ep|ba|sp|tok|dur)", time)
    assert match is not None, time
    return float(match[1]), match[2]


ChatTemplateKwargs = Annotated[
    tuple[dict[str, Any], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, Mapping) else value),
    Field(min_length=1, strict=False),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]}),
]


class DataConfig(Section):
    """Prompts and responses. Needs prompts, self_written_prompts, or both.

    Responses to held-out prompts are always the target's: acceptance can be measured only on its own responses.
    """

    prompts: tuple[PromptSource, ...] = Field(default=(), strict=False, description="Sources of prompts.")
    responses: Literal["written", "given"] = Field(
        default="written",
        description="written: the target generates the training responses; given: they are in the rows of prompts.",
    )
    self_written_prompts: int = Field(default=0, ge=0, description="Prompts that the target generates itself.")
    num_eval_prompts: int = Field(
        default=64, ge=1, description="Prompts held out of training, drawn with the seed, for metrics and evaluation."
    )
    max_seq_len: int = Field(default=1024, ge=2, description="Maximum tokens of prompt plus response.")
    max_new_tokens: MaxNewTokens = Field(default=256, description="Maximum tokens of a response.")
    temperature: Temperature | Annotated[tuple[Temperature, ...], Field(min_length=1, strict=False)] = Field(
        default=0.0,
        description="Sampling temperature of the responses; 0 is greedy. Of a list, one per prompt in turn; held-out "
        "prompts take the first.",
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling; 1 samples from all tokens.")
    batch_size: BatchSize = Field(default=48, description="Batch size of generation.")
    malformed: Literal["error", "skip"] = Field(
        default="error",
        description="Malformed rows of prompts: error: reported together, with the first examples of each kind; skip: "
        "left out and counted in the manifest.",
    )
    chat_template_kwargs: ChatTemplateKwargs = Field(
        default=({},),
        description="Arguments of the chat template, such as {enable_thinking: false}; of a list of them, one per row "
        "in turn.",
    )

    @property
    def temperatures(self) -> tuple[float, ...]:
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)

    @property
    def shard_size(self) -> int:
        """Prompts per file of responses, the unit of resumption: two batches."""
        return 2 * self.batch_size

    @property
    def longest_response(self) -> int:
        """Maximum number of trained tokens per sequence."""
        return self.max_seq_len - 1 if self.responses == "given" else self.max_new_tokens


LOG_PROB_BYTES, LOG_TAIL_BYTES = 2, 4  # float16 and float32


class TeacherConfig(Section):
    """Source of the teacher's distributions."""

    source: Literal["live", "cache", "none"] = Field(
        default="live",
        description="live: forward pass of the teacher in every step; cache: outputs stored by `widedraft cache`; "
        "none: no teacher, only the tokens of the responses.",
    )
    parallelism: Literal["replicated", "fsdp2"] = Field(
        default="replicated", description="Whether each process holds the whole live teacher, or a shard."
    )
    contents: Literal["hidden", "top_k", "samples"] = Field(
        default="hidden",
        description="What a cache stores per response token: hidden: the last hidden state (exact); top_k: the k most "
        "likely tokens and the remaining mass; samples: sampled tokens.",
    )
    k: int = Field(default=64, ge=1, description="Entries per token of top_k.")
    num_samples: int = Field(default=12, ge=1, description="Sampled tokens per response token of samples.")

    @property
    def is_cache(self) -> bool:
        return self.source == "cache"

    @property
    def is_sharded(self) -> bool:
        return self.source == "live" and self.parallelism == "fsdp2"

    @property
    def keeps_entries(self) -> bool:
        """True for a cache of some entries of the teacher's distribution."""
        return self.is_cache and self.contents != "hidden"

    @property
    def tells(self) -> Knowledge:
        """Knowledge of the teacher on training responses; held-out ones are always cached as hidden states."""
        if self.source == "none":
            return Knowledge.TOKENS
        return Knowledge.ENTRIES if self.keeps_entries else Knowledge.LOGITS

    @property
    def served_losses(self) -> list[str]:
        return [name for name, loss in LOSSES.items() if loss.needs <= self.tells]

    @property
    def default_loss(self) -> str:
        return next(name for name in PREFERRED if name in self.served_losses)


def reject_k_beyond(teacher: TeacherConfig, *, vocab: int, rows: int) -> None:
    """Raise UserError if k exceeds the number of ids of the vocabulary or of the draft's head."""
    if teacher.is_cache and teacher.contents == "top_k" and teacher.k > rows:
        most = "the target's vocab_size" if rows == vocab else "the size of the draft's vocabulary"
        raise UserError(
            f"distill.teacher.k must be at most {most}, got {teacher.k} and {rows}. Lower it, or store hidden states."
        )


def reject_cut_entries(teacher: TeacherConfig, *, vocab_size: int, of_teacher: int) -> None:
    """Raise UserError if cached entries cover ids that some model lacks.

    A live teacher and cached hidden states can be restricted to the shared ids. Cached entries are of the teacher's
    whole vocabulary, and some may have no logit in the student.
    """
    if teacher.keeps_entries and of_teacher > vocab_size:
        raise UserError(
            f"distill.teacher.contents must be hidden when the vocabularies differ: the target has {of_teacher} "
            f"entries, of which {vocab_size} are shared, but {teacher.contents} covers all of them. "
            "Choose another run_name with contents hidden, or with a live teacher."
        )


def kept_of(cache: TeacherConfig, split: str) -> TeacherConfig:
    """Return the cache settings of the "train" or "eval" split.

    Held-out responses are few and always cached as hidden states, so their metrics are exact.
    """
    return cache if split == "train" else TeacherConfig(source="cache")


def bytes_per_token(cache: TeacherConfig, split: str, *, hidden: int, rows: int, dtype: str) -> int:
    """Return the bytes of a cache per response token, without its index.

    Args:
        hidden: Width of the teacher's last hidden state.
        rows: Number of ids that entries are drawn from.
    """
    match kept_of(cache, split).contents:
        case "hidden":
            return hidden * DTYPE_BYTES[dtype]
        case "top_k":
            return cache.k * (id_bytes(rows) + LOG_PROB_BYTES) + LOG_TAIL_BYTES
        case "samples":
            return cache.num_samples * id_bytes(rows)


def id_bytes(vocab: int) -> int:
    """Return the bytes of the smallest integer dtype that holds every id: 1, 2 or 4."""
    return next(width for width in (1, 2, 4) if vocab <= 256**width)


def teacher_dtype(dtype: Dtype, precision: str) -> Dtype:
    """Return the dtype of the teacher during training: the target's, or float32 if training is in float32."""
    return "float32" if precision == "fp32" else dtype


class OnlineConfig(Section):
    """Requests and updates."""

    responses: Literal["live", "recorded"] = Field(
        default="live",
        description="live: serve each request by speculative decoding, in a separate process; recorded: replay the "
        "current draft on the responses and hidden states of the run's own data.",
    )
    stream: StreamConfig | None = Field(
        default=None, description="The requests and their order; null: those of `widedraft serve RECIPE`."
    )
    num_speculative_tokens: NumSpeculativeTokens = 4
    update_interval: int = Field(
        default=8, ge=1, le=256, description="Requests between two updates, over all processes."
    )
    steps_per_update: int = Field(default=3, ge=1, description="Optimiser steps of an update.")
    baselines: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="Directories of static drafts that `widedraft eval` compares with the online one on its stream; "
        "init is the initial draft.",
    )

    @property
    def waits(self) -> bool:
        """True if a request waits for the update before it: not over HTTP, nor if the stream follows a file."""
        return self.stream is not None and not self.stream.follow


def valid_repo_id(repo_id: str) -> str:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"must be a repository of the hub, got {repo_id!r}: {error}") from error
    return repo_id


RepoId = Annotated[
    str,
    AfterValidator(valid_repo_id),
    Flag(metavar="ORG/NAME"),
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        title="a repository, as ORG/NAME",
        examples=["my-org/llama2-7b-draft-796m"],
    ),
]


class ExportConfig(Section):
    """Settings of the exported draft."""

    dtype: Dtype = Field(default="bfloat16", description="Dtype of the draft's weights.")
    checkpoint: Literal["best", "latest"] = Field(
        default="best",
        description="Exported checkpoint: the one with the highest held-out tau, or the newest.",
    )
    engines: list[EngineName] = Field(
        default=[],
        description="Engines that will serve the draft. `widedraft check` rejects shapes they do not support; the "
        "draft does not change.",
    )
    tensor_parallel: TensorParallel = Field(default=1, description="Tensor parallel size of those engines.")


JSON_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")

# As `Interval` without epochs: text restarts when it ends, so it has none.
UpdateInterval = Annotated[
    str,
    Field(
        pattern=rf"^(?:{WHOLE}(?:ba|sp|tok)|{FRACTION}dur)$",
        title="a Composer time",
        examples=["50ba", "1_000_000tok", "0.1dur"],
    ),
]


class TextDomain(Section):
    """One kind of text. Needs exactly one of path and dataset."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        title="a name of letters, digits, '.', '_' and '-'",
        examples=["wiki", "github"],
        description="Name of the domain in logs and checkpoints.",
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        description="A file: JSON lines if it ends in .jsonl or .json (.gz too), else plain text.",
    )
    dataset: str | None = Field(default=None, min_length=1, description="A hub id or directory for `datasets`.")
    config: str | None = Field(default=None, min_length=1, description="Configuration of the dataset.")
    split: str = Field(default="train", min_length=1, description="Split of the dataset.")
    field: str = Field(default="text", min_length=1, description="Field with the text.")
    weight: float = Field(default=1.0, gt=0, description="Initial weight, relative to the other domains.")
    reference_loss_nats: float | None = Field(
        default=None,
        ge=0,
        description="Loss the model should reach here; null measures it with the teacher or the unpruned target.",
    )


def is_plain_text(path: str) -> bool:
    return not Path(path).name.endswith(JSON_SUFFIXES)


class TextConfig(Section):
    """Text in domains, packed into sequences of one length."""

    domains: tuple[TextDomain, ...] = Field(
        strict=False,
        json_schema_extra={"minItems": 1},
        description="Weighted sources of text.",
    )
    max_seq_len: int = Field(default=1024, ge=2, description="Tokens per sequence.")
    num_eval_sequences: int = Field(
        default=64, ge=1, description="First sequences of each domain, held out to measure its loss."
    )
    mixture: Literal["fixed", "paper", "code"] = Field(
        default="paper",
        description="How domain weights follow the held-out losses: fixed: they do not; paper, code: dynamic batch "
        "loading as published, or as released.",
    )
    update_interval: UpdateInterval = Field(
        default="50ba", description="Time between two measurements of the held-out losses and updates of the weights."
    )


TIED_AND_FROZEN = (
    "distill.freeze_input_embeddings must not be set for a draft with tied embeddings: the head would not be trained "
    "either. Remove it, or set architecture.vocabulary.size, which unties the head."
)


LoggerName = Literal["file", "tensorboard", "wandb", "mlflow"]
Loggers: TypeAlias = dict[LoggerName, dict[str, Any]]  # arguments of Composer's logger of that name


def missing_package(name: str) -> str | None:
    """Return an error message if a logger's package is not installed, else None."""
    if name == "file" or find_spec(name) is not None:
        return None
    return (
        f"distill.loggers.{name}: the package {name} is not installed. "
        f"Run `pip install 'widedraft[{name}]'`, or remove the logger."
    )


class OptimizerConfig(Section):
    """PyTorch's fused AdamW, with betas 0.9 and 0.95."""

    lr: float = Field(default=1e-3, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="Decoupled weight decay, multiplied by the learning rate.",
    )


class SchedulerConfig(Section):
    """Learning rate schedule."""

    name: Literal["cosine_with_warmup", "linear_decay_with_warmup", "constant_with_warmup"] = Field(
        default="cosine_with_warmup", description="Learning rate schedule."
    )
    t_warmup: Warmup = Field(default="0.05dur", description="Warm-up time, from a learning rate of zero.")
    alpha_f: float = Field(
        default=0.1,
        ge=0,
        description="Final learning rate as a multiple of lr; not for constant_with_warmup.",
    )


class DistillConfig(Section):
    """Training settings. Times are Composer time strings: ep, ba, sp, tok, dur."""

    train_on: Literal["responses", "text"] = Field(
        default="responses",
        description="Train on the target's responses, or on every token of section text. Evaluation always uses "
        "held-out responses.",
    )
    teacher: TeacherConfig = TeacherConfig()
    unknown_inputs: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Fraction of the input tokens outside architecture.vocabulary that the student sees as one unknown "
        "id, for drafts with their own tokenizer (`widedraft export --form own-tokenizer`).",
    )
    freeze_input_embeddings: bool = Field(
        default=False,
        description="Do not train the input embeddings: faster steps, less memory, later overfitting. Needs an untied "
        "head.",
    )
    loss: Loss | Literal["auto"] = Field(
        default="auto",
        description="A loss of docs/train.md, or a weighted sum of several. auto is negative_log_acceptance, "
        "forward_kl with a cache of top_k or samples, cross_entropy without a teacher.",
    )
    temperature: float = Field(
        default=1.0, gt=0, description="Divides the logits of teacher and student in the loss (not in cross_entropy)."
    )
    samples: Literal["teacher", "student", "mix_request", "mix_token"] = Field(
        default="teacher",
        description="Model that generates the training responses. teacher: those of section data; student: the "
        "current student; mix_request, mix_token: one of the two, by a fair coin per sequence or token.",
    )
    max_duration: Duration = Field(default="1ep", description="Length of training.")
    global_train_batch_size: int = Field(default=8, ge=1, description="Sequences per step, over all processes.")
    device_train_microbatch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="Sequences per forward pass of a device; auto finds the largest that fits a GPU.",
    )
    device_eval_batch_size: int = Field(default=8, ge=1, description="Sequences per evaluation step of a device.")
    packing: bool = Field(
        default=False,
        description="Pack several sequences into a row if that saves padding.",
    )
    precision: PrecisionOrAuto = Field(
        default="amp_bf16",
        description="Dtype of matrix products; weights and moments are float32. auto is amp_bf16 on a GPU and on CPUs "
        "that multiply faster in bfloat16, else fp32.",
    )
    optimizer: OptimizerConfig = Field(default=OptimizerConfig())
    scheduler: SchedulerConfig = Field(default=SchedulerConfig())
    gradient_clipping: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0, description="Maximum gradient norm; null disables clipping."
    )
    eval_interval: Interval = Field(
        default="0.25dur", description="Time between evaluations; one precedes the first step."
    )
    save_interval: Interval = Field(default="0.25dur", description="Time between checkpoints.")
    save_num_checkpoints_to_keep: int = Field(
        default=2,
        ge=1,
        description="Number of newest checkpoints to keep; one more while writing.",
    )
    checkpoints: Literal["whole", "sharded"] = Field(
        default="whole",
        description="whole: one file, gathered and written by process 0; sharded: a directory to which each process "
        "writes its shards. Both resume with any number of processes.",
    )
    parallelism: Literal["ddp", "fsdp2", "hsdp"] = Field(
        default="ddp",
        description="ddp: whole student on each process; fsdp2: sharded over all processes; hsdp: sharded within a "
        "machine, replicated across machines. Also applies to mask training.",
    )
    shard_degree: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="Processes per copy with hsdp; auto: those of a machine.",
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="Recompute layers in the backward pass: less memory, one more forward pass. Also for masks.",
    )
    loggers: Loggers = Field(
        default={"file": {}},
        description="file, tensorboard, wandb, mlflow, each with the arguments of Composer's logger.",
    )
    push_to_hub: RepoId | None = Field(
        default=None,
        description="Private hub repository to which `widedraft run` pushes the evaluated draft; see `widedraft push`.",
    )
    online: OnlineConfig | None = Field(
        default=None,
        description="Train on requests while serving them; null: train on existing responses.",
    )

    @field_validator("loss")
    @classmethod
    def _fill_auto(cls, loss: Loss | Literal["auto"], info: ValidationInfo) -> Loss:
        return info.data.get("teacher", TeacherConfig()).default_loss if loss == "auto" else loss

    @property
    def trains_on_responses(self) -> bool:
        """True if responses to data.prompts are trained on; otherwise only held-out prompts need responses."""
        return self.train_on == "responses" and (self.online is None or self.online.responses == "recorded")

    @property
    def terms(self) -> tuple[LossTerm, ...]:
        """Terms of the loss; `auto` was resolved when the recipe was loaded."""
        assert self.loss != "auto"
        return loss_terms(self.loss)
