"""The training of learned masks, before anything is pruned: `composer -n N -m distill.train RECIPE` begins with it.

Reads the target and the recipe's text, writes <run>/mask_checkpoints and <run>/logs/masks.jsonl, and ends with
<run>/masks: the target's folder with trained weights, the gates multiplied into them, and the plan that cuts the draft
out of it. Run it again after an interruption and it continues.
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from composer import Callback, DataSpec, Logger, State, Trainer
from composer.callbacks import SpeedMonitor
from composer.loggers import LoggerDestination
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW
from composer.utils import dist
from torch import nn

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.errors import UserError
from architectures.masks.gating import masked
from architectures.masks.masks import plan_from_masks
from architectures.settings.recipe_command import command_of
from architectures.shapes.section import MasksConfig
from architectures.targets.target import require_whole_head
from distill.callbacks import GradientNorm, profiled_steps
from distill.checkpoints.files import MASK_CHECKPOINTS_KEPT
from distill.checkpoints.trust import guard_composer
from distill.checkpoints.writer import CheckpointWriter
from distill.loggers import ConsoleReport, MetricsFile
from distill.losses.answer_logits import AnswerLogits
from distill.masks.building import (
    all_logits,
    build_mask_model,
    gathered,
    in_batches,
    load_frozen,
    masks_of,
    part_of,
    without_dur,
)
from distill.masks.export import export_masks, open_kept_fraction
from distill.masks.model import MaskModel
from distill.run.run import Run
from distill.run.stage_inputs import mask_inputs
from distill.sharding import parallelism_config
from distill.text.dynamic_loading import DynamicLoading, RandomStateOnResume, held_out_losses, reference_losses
from distill.text.mixture import text_eval_loaders, text_loader
from distill.text.streams import Share
from distill.training.trainer import DIST_TIMEOUT_S, newest_for_all, training_device
from distill.training.training_data import device_batch_size, microbatch_size
from eval.models.loading import load_tokenizer, require_rows

WARMUP, ALPHA_F = "0.1dur", 0.1  # of the learning rates, as in Sheared LLaMA
CLIPPING_THRESHOLD = 1.0
RATES = "architecture.masks.weight_lr or architecture.masks.mask_lr"
WEIGHTS = "student.lm."  # begins the names of the target's weights in a checkpoint
ENOUGH_OPEN = 0.9  # of an axis's kept gates; below, what is kept was a toss-up


def train_masks(run: Run, profile: Path | None = None) -> None:
    """Train masks into <run>/masks, from the start or from where an earlier session stopped.

    Args:
        run: Whose recipe says how.
        profile: Folder that takes a profile of a step, by rank 0; none is made if left out.

    Raises:
        UserError: If the target is a draft that says some ids alone, the shape cannot be cut out of it, it has no row
            for one of its tokens, the text cannot be read, or an earlier session of this run began with another recipe.
    """
    target, config = run.target, run.recipe.architecture.masks
    require_whole_head(target)
    run.refuse_long_texts()
    require_rows(target, last_id=max(load_tokenizer(target).get_vocab().values()))
    begin_masks(run)
    model = build_mask_model(run)
    trainer = build_mask_trainer(run, model, profile)
    try:
        if trainer.state.timestamp.batch < in_batches("1dur", config):  # else only the folder is missing
            trainer.fit()
    finally:
        trainer.engine.close()
    metrics, state = mask_metrics(model), gathered(model)
    if dist.get_global_rank() == 0:
        write_masks(run, state, metrics)


def begin_masks(run: Run) -> None:
    """Record on rank 0 what this training starts from, or check that an earlier session started from the same."""
    begun, inputs = run.mask_checkpoints, mask_inputs(run)
    if begun.is_finished:
        begun.refuse_changed(inputs)
    elif dist.get_global_rank() == 0:
        run.record(begun, inputs)


def build_mask_trainer(run: Run, model: MaskModel, profile: Path | None = None) -> Trainer:
    """A trainer that stands at the newest checkpoint, or at the start where there is none."""
    recipe, folder = run.recipe, run.mask_checkpoints.path
    config, checkpoint = recipe.architecture.masks, newest_for_all(folder, refuse_older_names)
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
        precision=config.precision if torch.cuda.is_available() else "fp32",  # bfloat16 on CPU: see MaskModel
        device_train_microbatch_size=microbatch_size(config),
        parallelism_config=parallelism_config(run.recipe.distill),
        callbacks=[
            *profiled_steps(profile),
            MaskSchedule(),
            mixture,
            RandomStateOnResume(),
            CheckpointWriter(
                folder, save_interval=without_dur(config.save_interval, config), num_to_keep=MASK_CHECKPOINTS_KEPT
            ),
            SpeedMonitor(window_size=10),
        ],
        loggers=build_mask_loggers(run),
        progress_bar=False,  # ours is among the loggers
        run_name=recipe.run_name,
        seed=recipe.seed,
        load_path=None if checkpoint is None else str(checkpoint),
        dist_timeout=DIST_TIMEOUT_S,
    )


def refuse_older_names(checkpoint: Path, saved: dict[str, Any]) -> None:
    """Raise UserError for a checkpoint from before 2026-11-26, when the target's weights got a longer name."""
    names = saved["state"]["model"]
    if not any(name.startswith(WEIGHTS) for name in names):
        raise UserError(
            f"{checkpoint}: an earlier widedraft wrote it, which named the target's weights student.* in place of "
            f"{WEIGHTS}*, so this training of masks cannot be continued. Delete {checkpoint.parent} to train them "
            "anew, or finish it with the widedraft that began it (a commit before 55d76b49)."
        )


def build_text(run: Run, model: MaskModel) -> tuple[DataSpec, DynamicLoading]:
    """Batches of text, and what moves the share of each domain by the masked model's held-out losses."""
    recipe, text, tokenizer = run.recipe, run.recipe.text, load_tokenizer(run.target)
    assert text is not None  # a recipe with learned masks has text
    size = device_batch_size(recipe.architecture.masks)
    share = Share.of_all()
    loader, domains = text_loader(text, tokenizer, batch_size=size, seed=recipe.seed, share=share)
    held_out = text_eval_loaders(text, tokenizer, batch_size=1, share=share)

    def measured(read: AnswerLogits) -> dict[str, float]:
        device = next(read.parameters()).device
        return held_out_losses(partial(all_logits, read), held_out, device=device)

    def masked_losses(_: State) -> dict[str, float]:
        model.eval()
        with masked(model.student.lm, model.masks.expected(), model.masks.source):
            losses = measured(model.student)
        model.train()
        return losses

    references = reference_losses(text, lambda: measured(untrained(run, model)))
    interval = without_dur(text.mixture.update_interval, recipe.architecture.masks)
    rule = text.mixture.model_copy(update={"update_interval": interval})
    mixture = DynamicLoading(domains, masked_losses, config=rule, references=references, rates=RATES)
    return DataSpec(loader, get_num_tokens_in_batch=lambda batch: batch["input_ids"].numel()), mixture


def untrained(run: Run, model: MaskModel) -> AnswerLogits:
    """The target in float32, before a checkpoint is loaded; where only rank 0 has it, in shards of its own."""
    whole = run.recipe.distill.parallelism == "ddp"
    return model.student if whole else load_frozen(run, dtype="float32", sharded=True).model


def build_mask_optimizer(config: MasksConfig, model: MaskModel) -> DecoupledAdamW:
    """Weights with their rate; masks and multipliers with theirs. The teacher has none."""
    groups = [
        {"params": list(model.student.parameters()), "lr": config.weight_lr},
        {"params": list(model.masks.parameters()), "lr": config.mask_lr},
    ]
    return DecoupledAdamW(groups, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


def weights(state: State) -> Iterator[nn.Parameter]:
    """The parameters whose gradients are bounded together; those of the constraints would shrink them to nothing.

    Adam makes the steps of masks and multipliers independent of the size of their gradients.
    """
    return mask_model(state).student.parameters()


class MaskSchedule(Callback):
    """Tells the model which step it is, keeps log-alphas within their limits, and logs what the constraints say."""

    def batch_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002  # Composer's signature
        """Gates and the sizes asked for follow from the number of batches trained, so a resumed training has them."""
        mask_model(state).step = state.timestamp.batch.value

    def batch_end(self, state: State, logger: Logger) -> None:
        """After the step and before a checkpoint."""
        model = mask_model(state)
        model.masks.limit()
        logger.log_metrics(mask_metrics(model))


@torch.no_grad()
def mask_metrics(model: MaskModel) -> dict[str, float]:
    """Of every axis: gates expected open, the largest gap of a constraint, and how decided the kept ones are."""
    masks, metrics = model.masks, {}
    for name, size in masks.expected_sizes().items():
        metrics[f"masks/{name}/expected"] = float(size)
        metrics[f"masks/{name}/kept_open"] = open_kept_fraction(masks, name)
    for name, gap in masks.gaps(model.progress).items():
        metrics[f"masks/{name}/gap"] = float(gap.abs().max())
    return metrics


def mask_model(state: State) -> MaskModel:
    """The model inside whatever Composer wrapped around it."""
    model = getattr(state.model, "module", state.model)
    assert isinstance(model, MaskModel)
    return model


class MaskReport(ConsoleReport):
    """As the console reports distillation, with the sizes that are left."""

    def describe(self, state: State) -> str:
        """The state of training in one line."""
        latest: dict[str, Any] = self.latest
        losses = [f"{name} {latest[key]:.4f}" for name in ("lm", "kl") if (key := f"loss/train/{name}") in latest]
        axes = mask_model(state).masks.axes
        sizes = [f"{name} {latest[f'masks/{name}/expected']:.1f} of {axes[name].size[-1]}" for name in axes]
        return f"batch {state.timestamp.batch.value}: {', '.join(losses)} nats/token, {', '.join(sizes)}"


def build_mask_loggers(run: Run) -> list[LoggerDestination]:
    """The console and a file; where distillation reports to is for distillation."""
    config = run.recipe.distill
    report = MaskReport(show_bar=config.progress_bar, log_interval=config.console_log_interval)
    return [report, MetricsFile(str(run.logs / "masks.jsonl"))]


def write_masks(run: Run, state: dict[str, Any], metrics: dict[str, float]) -> None:
    """Make <run>/masks from the trained model's state, and say what comes next."""
    out, masks, target = run.masks.path, masks_of(run, state), run.target
    plan = plan_from_masks(masks, masks.source, masks.draft, target=fingerprint_checkpoint(target))

    def finish(folder: Path) -> None:
        run.record(run.masks, mask_inputs(run), folder, metrics=metrics)

    student = part_of(state, "student.lm.")
    export_masks(student, masks, plan, target, out, dtype=run.recipe.target.dtype, finish=finish)
    for name in masks.axes:
        if (share := open_kept_fraction(masks, name)) < ENOUGH_OPEN:
            print(
                f"{out}: only {share:.0%} of the {name} that are kept have open gates; the masks have not decided. "
                "Raise architecture.masks.max_duration, or lower mask_lr.",
                file=sys.stderr,
            )
    print(f"{out}: {plan.summary()}. Run {command_of('prune')} next.", file=sys.stderr)
