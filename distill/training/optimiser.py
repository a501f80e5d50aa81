"""What moves the student: the optimiser, and the course of its learning rate."""

import torch
from composer.optim import (
    ComposerScheduler,
    ConstantScheduler,
    ConstantWithWarmupScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWithWarmupScheduler,
    DecoupledAdamW,
    LinearScheduler,
    LinearWithWarmupScheduler,
)

from distill.recipe.sections.times import split_time
from distill.recipe.sections.training import OptimizerConfig, SchedulerConfig
from distill.training.model import DistillModel


def build_optimizer(config: OptimizerConfig, model: DistillModel) -> torch.optim.Optimizer:
    """The optimiser of the student's parameters; the teacher has none here.

    torch's is fused: one pass over weights, gradients and moments, where Composer's makes eight: half of a step on a
    processor where the draft is one layer and so mostly embeddings.
    """
    settings = {"lr": config.lr, "betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.name == "decoupled_adamw":
        return DecoupledAdamW(trained, **settings)
    return torch.optim.AdamW(trained, fused=True, **settings)


def build_scheduler(config: SchedulerConfig) -> ComposerScheduler:
    """The course of the learning rate; Composer's classes with warm-up complain when there is none."""
    if split_time(config.t_warmup)[0] == 0:
        return {
            "constant_with_warmup": ConstantScheduler(),
            "linear_decay_with_warmup": LinearScheduler(alpha_f=config.alpha_f),
            "cosine_with_warmup": CosineAnnealingScheduler(alpha_f=config.alpha_f),
        }[config.name]
    return {
        "constant_with_warmup": ConstantWithWarmupScheduler(t_warmup=config.t_warmup),
        "linear_decay_with_warmup": LinearWithWarmupScheduler(t_warmup=config.t_warmup, alpha_f=config.alpha_f),
        "cosine_with_warmup": CosineAnnealingWithWarmupScheduler(t_warmup=config.t_warmup, alpha_f=config.alpha_f),
    }[config.name]
