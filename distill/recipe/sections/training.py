"""Recipe section `distill`. No torch, no Composer."""

from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from architectures.files.number_types import PrecisionOrAuto
from architectures.files.section import Section
from distill.formulas.losses import Loss, LossTerm, loss_terms
from distill.recipe.sections.export import RepoId
from distill.recipe.sections.online import OnlineConfig
from distill.recipe.sections.teacher import TeacherConfig
from distill.recipe.sections.times import Duration, Interval, Warmup

TIED_AND_FROZEN = (
    "distill.freeze_input_embeddings must be left out of a draft whose output head is its input embedding: the head "
    "would not be trained either. Leave it out, or give architecture.vocabulary a size, which makes the head a matrix "
    "of its own."
)


LoggerName = Literal["file", "tensorboard", "wandb", "mlflow"]
Loggers: TypeAlias = dict[LoggerName, dict[str, Any]]  # arguments of Composer's logger of that name


def missing_package(name: str) -> str | None:
    """What is wrong where a logger's package is not installed; None where it is, or the logger needs none."""
    if name == "file" or find_spec(name) is not None:
        return None
    return (
        f"distill.loggers.{name}: the package {name} is not installed. "
        f"Run `pip install 'widedraft[{name}]'`, or leave the logger out."
    )


class OptimizerConfig(Section):
    """PyTorch's AdamW, fused into one pass, with betas 0.9 and 0.95."""

    lr: float = Field(default=1e-3, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="Fraction of the weights removed each step, multiplied by the learning rate.",
    )


class SchedulerConfig(Section):
    """How the learning rate moves over training."""

    name: Literal["cosine_with_warmup", "linear_decay_with_warmup", "constant_with_warmup"] = Field(
        default="cosine_with_warmup", description="Course after the warm-up."
    )
    t_warmup: Warmup = Field(default="0.05dur", description="Time over which the learning rate rises from zero.")
    alpha_f: float = Field(
        default=0.1,
        ge=0,
        description="Learning rate at the end as a multiple of lr; constant_with_warmup has none.",
    )


class DistillConfig(Section):
    """How the student learns from its teacher. Times are Composer time strings: ep, ba, sp, tok, dur."""

    train_on: Literal["answers", "text"] = Field(
        default="answers",
        description="What the student reads while it learns: the target's answers, or the text of section text, every "
        "token of it. Evaluations are of held-out answers either way.",
    )
    teacher: TeacherConfig = TeacherConfig()
    unknown_inputs: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the input tokens outside architecture.vocabulary that are shown to the student as one "
        "unknown id, for engines whose draft reads its own vocabulary alone (`widedraft export --form "
        "own-tokenizer`).",
    )
    freeze_input_embeddings: bool = Field(
        default=False,
        description="Whether the rows of token ids stay as the target has them. Steps are faster, the optimiser holds "
        "less, and few answers are learned by heart later; not for a draft whose head is its embedding.",
    )
    loss: Loss | Literal["auto"] = Field(
        default="auto",
        description="What is minimised per answer token: a loss, or a weighted sum of several. auto is "
        "negative_log_acceptance; forward_kl where the teacher is a cache of top_k or samples; cross_entropy where "
        "there is none.",
    )
    temperature: float = Field(default=1.0, gt=0, description="Divides the logits of teacher and student in the loss.")
    samples: Literal["teacher", "student", "mix_request", "mix_token"] = Field(
        default="teacher",
        description="Who generates the responses that the student is trained on, by the sampling of `data`. teacher "
        "takes the responses of section data; student generates each again while it trains; mix_request tosses a fair "
        "coin for every sequence, mix_token for every token, of which the teacher generates the others live.",
    )
    max_duration: Duration = Field(default="1ep", description="Length of training.")
    global_train_batch_size: int = Field(default=8, ge=1, description="Sequences per step over all processes.")
    device_train_microbatch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="Sequences per forward pass on one device; auto finds the largest that fits a GPU's memory.",
    )
    device_eval_batch_size: int = Field(default=8, ge=1, description="Sequences per evaluation step on one device.")
    packing: bool = Field(
        default=False,
        description="Whether the sequences of a forward pass share rows where that computes less padding.",
    )
    precision: PrecisionOrAuto = Field(
        default="amp_bf16",
        description="Arithmetic of forward and backward; weights and moments stay float32. auto is amp_bf16 on a GPU "
        "and on processors that multiply many rows faster in bfloat16, else fp32.",
    )
    optimizer: OptimizerConfig = Field(default=OptimizerConfig())
    scheduler: SchedulerConfig = Field(default=SchedulerConfig())
    gradient_clipping: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0, description="Maximum norm of the gradient of a step; null for no clipping."
    )
    eval_interval: Interval = Field(
        default="0.25dur", description="Time between evaluations; the first is before the first step."
    )
    save_interval: Interval = Field(default="0.25dur", description="Time between checkpoints.")
    save_num_checkpoints_to_keep: int = Field(
        default=2,
        ge=1,
        description="Newest checkpoints kept; one more exists while it is written.",
    )
    checkpoints: Literal["whole", "sharded"] = Field(
        default="whole",
        description="whole: one file, which process 0 gathers and writes while all wait. sharded: a folder, in which "
        "each process writes its own part. Either is continued by any number of processes.",
    )
    parallelism: Literal["ddp", "fsdp2", "hsdp"] = Field(
        default="ddp",
        description="Whether each process holds the whole student (ddp) or a shard of it: of all processes (fsdp2), or "
        "of those of its machine, with a copy on each machine (hsdp). Also of learned masks.",
    )
    shard_degree: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="With parallelism hsdp: over how many processes one copy is divided. auto: those of a machine.",
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="Whether layers keep their inputs alone and are computed again in the backward pass: less memory, "
        "a forward pass more. Also of learned masks.",
    )
    loggers: Loggers = Field(
        default={"file": {}},
        description="Where training logs go: file, tensorboard, wandb, mlflow, with arguments of Composer's.",
    )
    push_to_hub: RepoId | None = Field(
        default=None,
        description="`widedraft run` publishes the draft in this private repository once it is scored; null keeps it "
        "here. `widedraft push` has more options.",
    )
    online: OnlineConfig | None = Field(
        default=None,
        description="Requests, what is learned of them, and when; null learns from responses that are there.",
    )

    @field_validator("loss")
    @classmethod
    def _fill_auto(cls, loss: Loss | Literal["auto"], info: ValidationInfo) -> Loss:
        return info.data.get("teacher", TeacherConfig()).default_loss if loss == "auto" else loss

    @property
    def learns_answers(self) -> bool:
        """Whether the answers to data.prompts are learned; otherwise held-out prompts alone are answered beforehand."""
        return self.train_on == "answers" and (self.online is None or self.online.answers == "recorded")

    @property
    def terms(self) -> tuple[LossTerm, ...]:
        """The terms of the loss; what `auto` means was filled in when the recipe was read."""
        assert self.loss != "auto"
        return loss_terms(self.loss)
