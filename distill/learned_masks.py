"""Training of learned masks before pruning, the first step of `composer -n N -m distill.train RECIPE`.

Writes <run>/mask_checkpoints, <run>/logs/masks.jsonl and finally <run>/masks: the target's files with trained weights,
the gates multiplied into them, and the pruning plan of the draft. A rerun after an interruption resumes.

Shape suffixes used in this file:
    B = sequences in the batch, T = tokens per sequence, V = vocabulary entries, H = channels
    A = positions that predict a token of the text, of all sequences of a batch; C = some of these
"""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from composer import Callback, DataSpec, Logger, State, Trainer
from composer.callbacks import SpeedMonitor
from composer.loggers import LoggerDestination
from composer.models import ComposerModel
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW
from composer.utils import dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from architectures.checkpoint import TensorInfo, require_replaceable, write_weights
from architectures.families import FAMILIES
from architectures.files import staged_folder, write_json, write_text
from architectures.hub import read_config, require_whole_head
from architectures.manifest import MANIFEST_NAME, fingerprint_checkpoint
from architectures.pruning.masks import Masks, fold, masked, middle, plan_from_masks
from architectures.pruning.plan import PLAN_NAME
from architectures.pruning.prune import with_dtype
from architectures.requested_shape import MasksConfig, masked_shape
from architectures.settings import command_of
from architectures.shapes import tensor_locations
from architectures.target_files import carry_files
from distill.callbacks import ConsoleReport, GradientNorm, MetricsFile, profiled_steps
from distill.checkpoints.checkpoint_files import MASK_CHECKPOINTS_KEPT, guard_composer
from distill.checkpoints.saving import CheckpointWriter
from distill.chunked_loss import Head, ResponseLogits, logits_of, sum_of_rows, vocab_size_of
from distill.losses import cross_entropy, forward_kl
from distill.recipe.sections import split_time, teacher_dtype
from distill.run import Run, shape_of
from distill.stage_inputs import mask_inputs
from distill.teacher import Teacher, TeacherRows, load_sharded_teacher, load_teacher
from distill.text_data import text_eval_loaders, text_loader
from distill.text_training import DynamicLoading, RandomStateOnResume, held_out_losses, reference_losses
from distill.trainer import (
    DIST_TIMEOUT_S,
    device_batch_size,
    microbatch_size,
    newest_for_all,
    parallelism_config,
    recompute_layers,
    training_device,
)
from eval.large_targets import without_weights
from eval.models import load_model, load_tokenizer, require_rows

WARMUP, ALPHA_F = "0.1dur", 0.1  # of the learning rates, as in Sheared LLaMA
TARGET_WARMUP = "0.5dur"  # over which the required size moves from the target's to the draft's
SAVE_INTERVAL = "0.25dur"
CLIPPING_THRESHOLD = 1.0
RATES = "architecture.masks.weight_lr or architecture.masks.mask_lr"
ENOUGH_OPEN = 0.9  # of an axis's kept gates; below, the choice of kept ones was close to arbitrary


def train_masks(run: Run, profile: Path | None = None) -> None:
    """Train masks into <run>/masks, from the start or from the checkpoint of an earlier session.

    Args:
        profile: Directory for rank 0's profile of a step.

    Raises:
        UserError: If the target is a draft with a reduced vocabulary, the shape cannot be pruned from it, it lacks a
            row for one of its tokens, the text cannot be read, or an earlier session of this run began with another
            recipe.
    """
    target, config = run.target, run.recipe.architecture.masks
    require_whole_head(target)
    run.reject_long_texts()
    require_rows(target, last_id=max(load_tokenizer(target).get_vocab().values()))

    # Record the inputs of this training run; an earlier session must have begun with the same.
    begun, inputs = run.mask_checkpoints, mask_inputs(run)
    if begun.is_finished:
        begun.reject_changed(inputs)
    elif dist.get_global_rank() == 0:
        run.record(begun, inputs)
    model = build_mask_model(run)
    trainer = build_mask_trainer(run, model, profile)
    try:
        if trainer.state.timestamp.batch < in_batches("1dur", config):  # else only the directory is missing
            trainer.fit()
    finally:
        trainer.engine.close()

    # Gather the full state of student and masks on rank 0's host memory; all processes take part.
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    metrics, state = mask_metrics(model), get_model_state_dict(model, options=options)
    if dist.get_global_rank() == 0:
        write_masks(run, state, metrics)


# --- the model ------------------------------------------------------------------------------------------------------


class MaskModel(ComposerModel):
    """Weights and masks trained to minimise the loss under constraints on the number of open gates.

    Only the submodules `student` and `masks` are trained and saved, not the teacher. `step` must be set before every
    batch (MaskSchedule does); gates and required sizes depend on it.

    Args:
        warmup_batches: Over which the required sizes move from the target's to the draft's.
        cpu_bfloat16: As in DistillModel.
    """

    def __init__(
        self, student: ResponseLogits, masks: Masks, teacher: Teacher, *, warmup_batches: int, cpu_bfloat16: bool
    ):
        super().__init__()
        self.student, self.masks, self.teacher = student, masks, teacher
        self.warmup_batches, self.cpu_bfloat16 = warmup_batches, cpu_bfloat16
        self.vocab_size = vocab_size_of(student.lm)
        self.step = 0

    @property
    def progress(self) -> float:
        """Progress of the required sizes, in [0, 1]."""
        return min(1.0, self.step / self.warmup_batches)

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute losses of the masked student on a batch: `tokens` in nats per token, its parts, and `constraint`."""
        ids_BT = batch["input_ids"]
        predicting_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        predicting_BT[:, -1] = False  # a sequence's last position predicts nothing
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cpu_bfloat16),
            masked(self.student.lm, self.masks.sampled(self.step), self.masks.source),
        ):
            rows = {"input_ids": ids_BT, "keep": predicting_BT}
            teacher = self.teacher.rows(rows, vocab_size=self.vocab_size)
            losses = self.student(ids_BT, predicting_BT, partial(token_losses, teacher, ids_BT[:, 1:].flatten()))
        with torch.autocast(ids_BT.device.type, enabled=False):
            return {**losses, "constraint": self.masks.lagrangian(self.progress)}

    def loss(  # pyright: ignore[reportIncompatibleMethodOverride]  # Composer's trainer takes a dict with a total
        self,
        outputs: dict[str, Tensor],
        batch: Mapping[str, Tensor],  # noqa: ARG002  # Composer's signature
    ) -> dict[str, Tensor]:
        """Return the loss that is trained on as `total`, and its parts.

        All sequences have one length, so the trainer's weighting by sequences equals weighting by tokens.
        """
        reported = {name: value for name, value in outputs.items() if name != "tokens"}
        return {**reported, "total": outputs["tokens"] + outputs["constraint"]}


def token_losses(teacher: TeacherRows, next_ids_A: Tensor, student_AH: Tensor, head: Head) -> dict[str, Tensor]:
    """Compute means over tokens: `tokens`, and without gradients its parts, `lm` and `kl`, KL(target || masked)."""
    parts = {name: torch.zeros((), device=student_AH.device) for name in ("lm", "kl")}

    def loss_of_rows(student_CV: Tensor, rows: slice) -> Tensor:
        lm_C = cross_entropy(student_CV, next_ids_A[rows])
        kl_C = forward_kl(student_CV, teacher.logits(rows))
        for name, loss_C in (("lm", lm_C), ("kl", kl_C)):
            parts[name] += loss_C.detach().sum()
        return lm_C + kl_C

    tokens = sum_of_rows(student_AH, head, loss_of_rows)
    return {name: each / len(next_ids_A) for name, each in {**parts, "tokens": tokens}.items()}


def build_mask_model(run: Run) -> MaskModel:
    """Build float32 weights and initial masks; if sharded, rank 0 loads the weights and Composer distributes them."""
    recipe, target, on_gpu = run.recipe, run.target, torch.cuda.is_available()
    precision = recipe.distill.precision
    device = f"cuda:{dist.get_local_rank()}" if on_gpu else "cpu"
    if recipe.distill.parallelism == "ddp":
        student = load_model(target, dtype="float32", device=device, trained=True)
    elif dist.get_global_rank() == 0:
        student = load_model(target, dtype="float32", device="cpu", trained=True)
    else:
        student = without_weights(target, dtype="float32")
    if recipe.distill.activation_checkpointing:
        recompute_layers(student)
    return MaskModel(
        ResponseLogits(student),
        fresh_masks(run),
        load_frozen(run, dtype=teacher_dtype(recipe.target.dtype, precision)),
        warmup_batches=in_batches(TARGET_WARMUP, recipe.architecture.masks),
        cpu_bfloat16=not on_gpu and precision != "fp32",
    )


def fresh_masks(run: Run) -> Masks:
    source = shape_of(run.target)
    return Masks(source, masked_shape(source, run.recipe.architecture), seed=run.recipe.seed)


def load_frozen(run: Run, *, dtype: str, sharded: bool | None = None) -> Teacher:
    """Load the original target, by default sharded as the recipe's teacher."""
    device = f"cuda:{dist.get_local_rank()}" if torch.cuda.is_available() else "cpu"
    sharded = run.recipe.distill.teacher.is_sharded if sharded is None else sharded
    return (load_sharded_teacher if sharded else load_teacher)(run.target, dtype=dtype, device=device)


# --- the trainer ----------------------------------------------------------------------------------------------------


def build_mask_trainer(run: Run, model: MaskModel, profile: Path | None = None) -> Trainer:
    """Build a trainer at the newest checkpoint, or at the start without one."""
    recipe, folder = run.recipe, run.mask_checkpoints.path
    config, checkpoint = recipe.architecture.masks, newest_for_all(folder)
    data, mixture = build_text(run, model)
    guard_composer()
    return Trainer(
        model=model,
        train_dataloader=data,
        max_duration=config.max_duration,
        optimizers=build_mask_optimizer(config, model),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup=f"{in_batches(WARMUP, config)}ba", alpha_f=ALPHA_F),
        algorithms=[GradientNorm(folder, CLIPPING_THRESHOLD, weights)],
        device=training_device(),
        precision=recipe.distill.precision if torch.cuda.is_available() else "fp32",  # bfloat16 on CPU: see MaskModel
        device_train_microbatch_size=microbatch_size(recipe.distill.device_train_microbatch_size, config),
        parallelism_config=parallelism_config(recipe.distill),
        callbacks=[
            *profiled_steps(profile),
            MaskSchedule(),
            mixture,
            RandomStateOnResume(),
            CheckpointWriter(
                folder, save_interval=f"{in_batches(SAVE_INTERVAL, config)}ba", num_to_keep=MASK_CHECKPOINTS_KEPT
            ),
            SpeedMonitor(window_size=10),
        ],
        loggers=build_mask_loggers(run),
        progress_bar=False,  # ConsoleReport has one
        run_name=recipe.run_name,
        seed=recipe.seed,
        load_path=None if checkpoint is None else str(checkpoint),
        dist_timeout=DIST_TIMEOUT_S,
    )


def build_text(run: Run, model: MaskModel) -> tuple[DataSpec, DynamicLoading]:
    """Build the text loader, and the callback that updates domain weights from the masked model's held-out losses."""
    recipe, text, tokenizer = run.recipe, run.recipe.text, load_tokenizer(run.target)
    assert text is not None  # a recipe with learned masks has text
    size = device_batch_size(recipe.architecture.masks)
    rank, world = dist.get_global_rank(), dist.get_world_size()
    loader, domains = text_loader(text, tokenizer, batch_size=size, seed=recipe.seed, rank=rank, size=world)
    held_out = text_eval_loaders(text, tokenizer, batch_size=1)

    def measured(read: ResponseLogits) -> dict[str, float]:
        device = next(read.parameters()).device

        def all_logits(ids_BT: Tensor) -> Tensor:
            with torch.no_grad():  # sharded models support only a full forward
                return read(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool), logits_of).unflatten(0, ids_BT.shape)

        return held_out_losses(all_logits, held_out, device=device)

    def masked_losses(_: State) -> dict[str, float]:
        model.eval()
        with masked(model.student.lm, model.masks.expected(), model.masks.source):
            losses = measured(model.student)
        model.train()
        return losses

    def untrained() -> ResponseLogits:
        """Return the float32 target before a checkpoint is loaded; sharded if only rank 0 has its weights."""
        whole = recipe.distill.parallelism == "ddp"
        return model.student if whole else load_frozen(run, dtype="float32", sharded=True).model

    references = reference_losses(text, lambda: measured(untrained()))
    interval = text.update_interval
    if interval.endswith("dur"):  # Composer would need the length of the text, which is infinite
        interval = f"{in_batches(interval, recipe.architecture.masks)}ba"
    mixture = DynamicLoading(
        domains, masked_losses, rule=text.mixture, update_interval=interval, references=references, rates=RATES
    )
    return DataSpec(loader, get_num_tokens_in_batch=lambda batch: batch["input_ids"].numel()), mixture


def in_batches(share: str, config: MasksConfig) -> int:
    """Convert a fraction of the training run, such as 0.5dur, to batches; at least one."""
    return max(1, round(split_time(share)[0] * split_time(config.max_duration)[0]))


def build_mask_optimizer(config: MasksConfig, model: MaskModel) -> DecoupledAdamW:
    groups = [
        {"params": list(model.student.parameters()), "lr": config.weight_lr},
        {"params": list(model.masks.parameters()), "lr": config.mask_lr},
    ]
    return DecoupledAdamW(groups, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


def weights(state: State) -> Iterator[nn.Parameter]:
    """Return the parameters whose gradients are clipped together; those of the constraints would dominate the norm.

    Adam makes the steps of masks and multipliers independent of the size of their gradients.
    """
    return mask_model(state).student.parameters()


class MaskSchedule(Callback):
    """Sets the model's step, clamps log-alphas to their limits, and logs the constraints."""

    def batch_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Derive gates and required sizes from the number of batches trained, so a resumed training run has them."""
        mask_model(state).step = state.timestamp.batch.value

    def batch_end(self, state: State, logger: Logger) -> None:
        model = mask_model(state)
        model.masks.limit()
        logger.log_metrics(mask_metrics(model))


@torch.no_grad()
def mask_metrics(model: MaskModel) -> dict[str, float]:
    """Return expected open gates, largest constraint gap and open share of kept gates of every axis."""
    masks, metrics = model.masks, {}
    for name, size in masks.expected_sizes().items():
        metrics[f"masks/{name}/expected"] = float(size)
        metrics[f"masks/{name}/kept_open"] = open_kept_fraction(masks, name)
    for name, gap in masks.gaps(model.progress).items():
        metrics[f"masks/{name}/gap"] = float(gap.abs().max())
    return metrics


def mask_model(state: State) -> MaskModel:
    """Unwrap the model from Composer's wrappers."""
    model = getattr(state.model, "module", state.model)
    assert isinstance(model, MaskModel)
    return model


class MaskReport(ConsoleReport):
    """Console report of mask training, with the remaining sizes."""

    def describe(self, state: State) -> str:
        latest: dict[str, Any] = self.latest
        losses = [f"{name} {latest[key]:.4f}" for name in ("lm", "kl") if (key := f"loss/train/{name}") in latest]
        axes = mask_model(state).masks.axes
        sizes = [f"{name} {latest[f'masks/{name}/expected']:.1f} of {axes[name].size[-1]}" for name in axes]
        return f"batch {state.timestamp.batch.value}: {', '.join(losses)} nats/token, {', '.join(sizes)}"


def build_mask_loggers(run: Run) -> list[LoggerDestination]:
    """Build console and file loggers; trackers of the recipe log only the distillation."""
    return [MaskReport(), MetricsFile(str(run.logs / "masks.jsonl"))]


# --- results --------------------------------------------------------------------------------------------------------


def write_masks(run: Run, state: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
    """Write <run>/masks atomically, with the final gates multiplied in, and print the next command."""
    out, target, dtype = run.masks.path, run.target, run.recipe.target.dtype
    masks = fresh_masks(run)
    masks.load_state_dict(part_of(state, "masks."))
    source, family, cast = masks.source, FAMILIES[masks.source.family], getattr(torch, dtype)
    plan = plan_from_masks(masks, target=fingerprint_checkpoint(target))
    require_replaceable(out, MANIFEST_NAME, reading=target, stage="masks")
    trained = {family.stored_name(name): tensor for name, tensor in part_of(state, "student.lm.").items()}
    locations, gates = tensor_locations(source), masks.final()

    def read(name: str) -> Tensor:
        return fold(trained[name], locations[name], gates, source).to("cpu", cast)

    layout = {name: TensorInfo(cast, location.size) for name, location in locations.items()}
    with staged_folder(out) as folder:
        write_weights(layout, read, folder)
        write_json(with_dtype(read_config(target), dtype), folder / "config.json")
        write_text(plan.to_json(), folder / PLAN_NAME)
        carry_files(target, folder)
        run.record(run.masks, mask_inputs(run), folder, metrics=metrics)
    for name in masks.axes:
        if (share := open_kept_fraction(masks, name)) < ENOUGH_OPEN:
            print(
                f"{out}: only {share:.0%} of the selected {name} have open gates; the masks have not converged. "
                "Raise architecture.masks.max_duration, or lower mask_lr.",
                file=sys.stderr,
            )
    print(f"{out}: {plan.summary()}. Run {command_of('prune')} next.", file=sys.stderr)


def part_of(state: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def open_kept_fraction(masks: Masks, name: str) -> float:
    """Return the share of an axis's kept gates that are more open than closed: below 1, training was too short."""
    gates_X = middle(masks.values(name).detach())
    return float((gates_X[masks.kept(name)] > 0.5).double().mean())
