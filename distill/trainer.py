"""Composer's trainer, built from a recipe: model, data, optimiser and callbacks.

CPU memory: glibc returns large freed blocks to the system, and every training step allocates the same amount again, so
all pages are cleared anew. Without that, a draft whose embeddings are trained, and have a gradient of their size,
trains 1.2 times as fast; one with frozen embeddings no faster (docs/benchmarks.md).

Hybrid sharding divides weights, gradients and moments over the processes of a machine and keeps a copy per machine:
layers are gathered only within machines, and gradients are reduced between them once per step.

Activation checkpointing source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174),
as in torch.utils.checkpoint. transformers' own switch wraps a layer's call in some versions and its forward in others,
and loses hooks that are removed before the backward pass, as the gates of learned masks are.

Shape suffixes used in this file:
    C = some response tokens, one row each
    V = vocabulary entries
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed
from composer import Algorithm, Callback, DataSpec, Evaluator, Trainer, optim
from composer.callbacks import LRMonitor, SpeedMonitor
from composer.devices import Device, DeviceCPU, DeviceGPU
from composer.utils import dist
from composer.utils.parallelism import FSDP2Config, ParallelismConfig
from torch import nn
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from architectures.errors import UserError
from architectures.requested_shape import MasksConfig
from architectures.vocabulary_head import begin_unknown, with_unknown
from distill.callbacks import EvaluationIntervals, GradientNorm, StepTimer, build_loggers, profiled_steps
from distill.checkpoints.checkpoint_files import guard_composer
from distill.checkpoints.folders import newest_intact_checkpoint
from distill.checkpoints.saving import CheckpointWriter, agreed, read_checkpoint
from distill.chunked_loss import ResponseLogits
from distill.data.batches import ResponseDataset, UnknownInputs
from distill.distributed import reject_differing
from distill.export import vocab_size_of
from distill.losses import build_objective
from distill.metrics import Known
from distill.model import DistillModel, HeldOut
from distill.online.learning import request_training
from distill.recipe import sections
from distill.recipe.recipe import Recipe
from distill.response_batches import build_dataspec, padding_for, padding_multiple
from distill.rollouts import Generation, Rollouts
from distill.run import Run, identity_values
from distill.teacher import AbsentTeacher, CachedTeacher, Teacher, load_sharded_teacher, load_teacher
from distill.teacher_cache import CachedResponses, load_head
from distill.text_training import text_training, without_dur
from eval.decoding.sampling import Sampling
from eval.machine import share_cores
from eval.models import keep_freed_memory, load_model, stop_token_ids

Value = TypeVar("Value")

DIVISION = "_get_gradient_divide_factors"  # private in torch
FIRST_TO_DIVIDE = TorchVersion("2.8")  # from this torch on the function differs


class HybridConfig(FSDP2Config):
    """FSDP2 with replicas: Composer 0.32.1 builds the mesh itself, over any given one, by default without replicas."""

    copies: int = 1

    @property
    def data_parallel_replicate_degree(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Number of replicas; consecutive ranks, like those of a machine, form one."""
        return self.copies


def parallelism_config(config: sections.DistillConfig) -> ParallelismConfig | None:
    """Return the sharding of a model; None for DDP. Call on all processes, after they have joined.

    The trainer of Composer 0.32.1 reads only the keys `fsdp` and `tp` of a dict and ignores any other, so a dict with
    fsdp2 silently trains with DDP: it must be given the objects.

    Raises:
        UserError: If the shard degree does not divide the number of processes, or gradients cannot be averaged.
    """
    if config.parallelism == "ddp":
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP2 Config/APIs are experimental")
        shards = (FSDP2Config if config.parallelism == "fsdp2" else HybridConfig)(state_dict_type="full")
    if isinstance(shards, HybridConfig):
        processes = dist.get_world_size()
        shards.copies = processes // shard_degree(config, processes, dist.get_local_world_size())
    average_gradients()
    return ParallelismConfig(fsdp2=shards)


def shard_degree(config: sections.DistillConfig, processes: int, of_machine: int) -> int:
    """Return the number of processes per replica.

    Raises:
        UserError: If it does not divide the number of processes.
    """
    degree = of_machine if config.shard_degree == "auto" else config.shard_degree
    if processes % degree:
        raise UserError(
            f"distill.shard_degree must divide the number of processes, got {config.shard_degree}"
            f"{f' ({degree} on a machine)' if config.shard_degree == 'auto' else ''} and {processes}. "
            "Change one of the two."
        )
    return degree


def average_gradients() -> None:
    """Make FSDP2 average gradients on CPUs too.

    It uses ReduceOp.AVG, which gloo of torch 2.7 does not support: reduce-scatter then silently sums, and all-reduce
    fails. Sum and division afterwards, as torch does for other dtypes, is correct. After the all-reduce of replicas
    torch 2.7 also requires an event, which CPU streams lack.

    Raises:
        UserError: If this torch supports neither.
    """
    if torch.cuda.is_available():
        return
    mean = torch.zeros(1)
    torch.distributed.reduce_scatter_tensor(mean, torch.ones(dist.get_world_size()), op=ReduceOp.AVG)
    if mean == 1:
        return
    if TorchVersion(torch.__version__) >= FIRST_TO_DIVIDE:
        raise UserError(
            f"distill.parallelism cannot be fsdp2 on CPUs with torch {torch.__version__}, whose gloo sums instead of "
            "averaging. Use ddp, GPUs, or torch 2.7 or 2.11."
        )
    setattr(_fsdp_collectives, DIVISION, sum_and_divide)
    torch.cpu.Stream.record_event = lambda _: torch.cpu.Event()  # pyright: ignore[reportAttributeAccessIssue]


def sum_and_divide(
    shards: ProcessGroup,
    copies: ProcessGroup | None,
    dtype: torch.dtype,  # noqa: ARG001  # torch's signature
    device_type: str = "",  # noqa: ARG001
) -> tuple[float, float]:
    """Return the divisors of gradients before and after the reduction."""
    return 1.0, float(shards.size() * (1 if copies is None else copies.size()))


def recompute_layers(lm: nn.Module) -> None:
    """Checkpoint every layer of a model, of its encoder too: keep only the inputs, and recompute in the backward pass.

    Results are the same, bit for bit if the arithmetic is deterministic: dropout and autocast are restored, and a
    layer's own hooks, including FSDP2's, are not called again.
    """
    for layer in lm.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = recomputed(layer)


def recomputed(layer: nn.Module) -> Any:
    forward = layer.forward

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and layer.training):
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=partial(contexts, layer), **kwargs)

    return run


def contexts(layer: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first pass and of the recomputation, which restores the hooks of the first pass."""
    parts = [module for module in layer.modules() if module is not layer]
    before = [(part, hook) for part in parts for hook in part._forward_pre_hooks.values()]  # noqa: SLF001  # private in torch
    after = [(part, hook) for part in parts for hook in part._forward_hooks.values()]  # noqa: SLF001
    return nullcontext(), hooked(before, after)


@contextmanager
def hooked(before: list[tuple[nn.Module, Any]], after: list[tuple[nn.Module, Any]]) -> Iterator[None]:
    """Register hooks for the duration of the block, each at most once per module."""
    with ExitStack() as hooks:
        for part, hook in before:
            if hook not in part._forward_pre_hooks.values():  # noqa: SLF001
                hooks.enter_context(part.register_forward_pre_hook(hook))
        for part, hook in after:
            if hook not in part._forward_hooks.values():  # noqa: SLF001
                hooks.enter_context(part.register_forward_hook(hook))
        yield


MIXED_PROBABILITY = 0.5  # that the student generates the sequence, or the token, of mixed samples
DIST_TIMEOUT_S = 1800.0  # the other ranks wait while rank 0 writes a checkpoint of many gigabytes


def training_device() -> Device:
    """Return this process's GPU, or the CPU; with `fp32`, Composer must not round to tf32."""
    return DeviceGPU(allow_tf32=False) if torch.cuda.is_available() else DeviceCPU()


def use_resources() -> None:
    """Give each process its share of the cores; retain freed memory on CPUs."""
    share_cores(dist.get_local_world_size())
    if not torch.cuda.is_available():
        keep_freed_memory()


def init_distributed(recipe: Recipe) -> None:
    """Join the other processes, if there are any or the recipe shards; raise UserError if their recipes differ."""
    config = recipe.distill
    if dist.get_world_size() > 1 or config.parallelism != "ddp" or config.teacher.is_sharded:
        dist.initialize_dist(training_device(), timeout=DIST_TIMEOUT_S)
    if dist.get_world_size() > 1:
        reject_differing("recipe", dist.all_gather_object(identity_values(recipe)))


def on_rank_0(make: Callable[[], Value]) -> Value:
    """Return on every rank what rank 0 made; call before or after `init_distributed`."""
    if dist.get_world_size() > 1:
        dist.initialize_dist(training_device(), timeout=DIST_TIMEOUT_S)
    return agreed(make() if dist.get_global_rank() == 0 else None)


def newest_for_all(folder: Path) -> Path | None:
    """Return the newest intact checkpoint of a directory or None, selected and read by rank 0 for all ranks.

    Composer checks again before it reads; under FSDP2 only rank 0 would see that error, while the other ranks wait.

    Raises:
        UserError: On all ranks, if a checkpoint contains anything that training here does not save.
    """
    checkpoint, problem = on_rank_0(lambda: newest_or_problem(folder))
    if problem is not None:
        raise UserError(problem)
    return checkpoint


def newest_or_problem(folder: Path) -> tuple[Path | None, str | None]:
    try:
        checkpoint = newest_intact_checkpoint(folder)
        if checkpoint is not None:
            read_checkpoint(checkpoint)
    except UserError as error:
        return None, str(error)
    return checkpoint, None


def build_model(run: Run, *, eval_tasks: tuple[str, ...]) -> DistillModel:
    """Build the student of <run>/init in float32 with its teacher, on this process's device.

    Of a cached teacher only the output head is loaded.

    Raises:
        UserError: If cached entries cover ids that the student lacks, a model does not support distill.packing, or
            tied embeddings are to be frozen.
    """
    recipe, config, init, on_gpu = run.recipe, run.recipe.distill, run.init.path, torch.cuda.is_available()

    # The student.
    student = load_model(init, dtype="float32", device="cpu", trained=True)
    if config.unknown_inputs:
        begin_unknown(student, init)
    if config.freeze_input_embeddings:
        freeze_input_embeddings(student)
    if config.activation_checkpointing:
        recompute_layers(student)

    # Its teacher.
    dtype = sections.teacher_dtype(recipe.target.dtype, config.precision)
    place = {"dtype": dtype, "device": f"cuda:{dist.get_local_rank()}" if on_gpu else "cpu"}
    layout = {"packing": config.packing, "multiple": padding_multiple()}
    match config.teacher.source:
        case "live":
            load = load_sharded_teacher if config.teacher.is_sharded else partial(load_teacher, bits=recipe.target.bits)
            teacher = load(run.target, **place, **layout)
        case "none":
            teacher = AbsentTeacher(vocab_size_of(run.target))
        case "cache":
            teacher = CachedTeacher(load_head(run.target, **place))

    model = DistillModel(
        ResponseLogits(student, **layout),
        teacher,
        objective=build_objective(config.terms, temperature=config.temperature),
        held_out=HeldOut(eval_tasks, recipe.data.temperatures[0], recipe.data.top_p),
        cpu_bfloat16=not on_gpu and config.precision != "fp32",
    )
    if model.ids_K is None:  # otherwise cached entries are restricted to the student's ids
        sections.reject_cut_entries(config.teacher, vocab_size=model.vocab_size, of_teacher=model.teacher.vocab_size)
    return model


def freeze_input_embeddings(student: "PreTrainedModel") -> None:
    """Freeze the student's token embeddings; learned position embeddings stay trainable.

    Raises:
        UserError: If the output head is tied to them.
    """
    embeddings, head = student.get_input_embeddings().weight, student.get_output_embeddings()
    if head is not None and head.weight is embeddings:
        raise UserError(sections.TIED_AND_FROZEN)
    embeddings.requires_grad_(False)  # noqa: FBT003  # a tensor's takes it no other way


def build_trainer(
    run: Run,
    model: DistillModel,
    *,
    train_set: ResponseDataset | CachedResponses | None,
    eval_set: ResponseDataset | CachedResponses,
    checkpoint: Path | None,
    profile: Path | None = None,
) -> Trainer:
    """Build a trainer, resumed from the checkpoint if there is one.

    Args:
        train_set: None if the recipe trains on text.
        profile: Directory for rank 0's profile of a step; None for no profile.

    Raises:
        UserError: If the global batch does not divide over the processes, or the text cannot be read.
    """
    recipe, config, checkpoints = run.recipe, run.recipe.distill, run.checkpoints.path
    optimizer = build_optimizer(config.optimizer, model)
    train_data, data_callbacks, max_duration = training_data(run, model, optimizer, train_set)
    eval_data = build_dataspec(
        eval_set,
        device_batch_size=config.device_eval_batch_size,
        shuffle=False,
        seed=recipe.seed,
        fit=padding_for(recipe),
    )
    guard_composer()
    folder = checkpoint if checkpoint is not None and checkpoint.is_dir() else None
    algorithms: list[Algorithm] = [
        GradientNorm(checkpoints, config.gradient_clipping, passes_over=config.online is not None)
    ]
    if config.unknown_inputs:
        replaced = UnknownInputs(with_unknown(run.init.path), share=config.unknown_inputs, seed=recipe.seed)
        algorithms.insert(0, replaced)
    trainer = Trainer(
        model=model,
        train_dataloader=train_data,
        eval_dataloader=Evaluator(label="eval", dataloader=eval_data),
        max_duration=max_duration,
        optimizers=optimizer,
        schedulers=build_scheduler(config.scheduler),
        algorithms=algorithms,
        device=training_device(),
        precision=config.precision if torch.cuda.is_available() else "fp32",  # bfloat16 on CPU: see DistillModel
        device_train_microbatch_size=microbatch_size(config.device_train_microbatch_size, config),
        accumulate_train_batch_on_tokens=True,
        eval_interval=interval(config.eval_interval, config, max_duration),
        parallelism_config=parallelism_config(config),
        callbacks=[
            StepTimer(model.clock),
            *profiled_steps(profile, model.clock),
            *data_callbacks,
            CheckpointWriter(
                checkpoints,
                save_interval=interval(config.save_interval, config, max_duration),
                num_to_keep=config.save_num_checkpoints_to_keep,
                best_by=Known(config.teacher.source != "none", recipe.data.temperatures[0]).best_by,
                sharded=config.checkpoints == "sharded",
                resume_from=folder,
            ),
            EvaluationIntervals(),
            SpeedMonitor(window_size=10),
            LRMonitor(),
        ],
        loggers=build_loggers(config, run.logs, recipe.run_name),
        progress_bar=False,  # the loggers include a progress bar
        run_name=recipe.run_name,
        seed=recipe.seed,
        load_path=None if checkpoint is None or checkpoint == folder else str(checkpoint),
        dist_timeout=DIST_TIMEOUT_S,
    )
    if folder is not None:
        trainer._rng_state = read_checkpoint(folder)["rng"]  # noqa: SLF001  # as Composer does for a file
    return trainer


def device_batch_size(config: sections.DistillConfig | MasksConfig) -> int:
    """Return the sequences per step on one process.

    Raises:
        UserError: If the global batch does not divide over the processes.
    """
    size, remainder = divmod(config.global_train_batch_size, dist.get_world_size())
    if remainder:
        section = "distill" if isinstance(config, sections.DistillConfig) else "architecture.masks"
        raise UserError(
            f"{section}.global_train_batch_size must be a multiple of the number of processes, got "
            f"{config.global_train_batch_size} and {dist.get_world_size()}. Change one of the two."
        )
    return size


def microbatch_size(size: int | Literal["auto"], config: sections.DistillConfig | MasksConfig) -> int | Literal["auto"]:
    """Return sequences per forward pass. Composer resolves auto on GPUs; on CPU it is the device's batch."""
    return device_batch_size(config) if size == "auto" and not torch.cuda.is_available() else size


def response_training(
    run: Run, model: DistillModel, train_set: ResponseDataset | CachedResponses, *, batch_size: int
) -> tuple[DataSpec, list[Callback]]:
    """Return this process's batches of responses, and the callback that regenerates some of them."""
    samples, data, seed = run.recipe.distill.samples, run.recipe.data, run.recipe.seed
    fit, student = padding_for(run.recipe), model.student.lm
    build = partial(build_dataspec, train_set, device_batch_size=batch_size, shuffle=True, seed=seed, fit=fit)
    if samples == "teacher":
        return build(), []
    teacher = None
    if samples == "mix_token":
        assert isinstance(model.teacher, Teacher), "recipes whose teacher generates have a live one"
        teacher = model.teacher.model.lm
    rollouts = Rollouts(
        student,
        teacher,
        Generation(Sampling(data.temperatures[0], data.top_p), stop_token_ids(student), model.vocab_size),
        probability=1.0 if samples == "student" else MIXED_PROBABILITY,
        max_new_tokens=data.max_new_tokens,
        max_seq_len=data.max_seq_len,
        seed=seed,
        clock=model.clock,
    )
    return build(rewritten=rollouts.replace_responses), [rollouts]


def training_data(
    run: Run, model: DistillModel, optimizer: torch.optim.Optimizer, train_set: ResponseDataset | CachedResponses | None
) -> tuple[DataSpec, list[Callback], str]:
    """Return this process's batches, their callbacks, and max_duration, never in epochs.

    Composer saves the last batch of an epoch before it counts the epoch as done, so training measured in epochs would
    look unfinished in its own last checkpoint.
    """
    config, size = run.recipe.distill, device_batch_size(run.recipe.distill)
    if config.online is not None:
        return request_training(run, model, optimizer, batch_size=size)
    if train_set is not None:
        spec, callbacks = response_training(run, model, train_set, batch_size=size)
        value, unit = sections.split_time(config.max_duration)
        assert isinstance(spec.dataloader, DataLoader)
        in_batches = f"{int(value) * len(spec.dataloader)}ba"
        return spec, callbacks, in_batches if unit == "ep" else config.max_duration
    device = f"cuda:{dist.get_local_rank()}" if torch.cuda.is_available() else "cpu"
    return *text_training(run, model, batch_size=size, device=torch.device(device)), config.max_duration


def interval(time: str, config: sections.DistillConfig, max_duration: str) -> str:
    """Convert a time for Composer: text and requests have no length, so `dur` cannot be a share of it."""
    has_length = config.train_on == "responses" and config.online is None
    return time if has_length else without_dur(time, max_duration)


def build_optimizer(config: sections.OptimizerConfig, model: DistillModel) -> torch.optim.Optimizer:
    """Build AdamW over the trainable parameters of the student.

    Fused makes one pass over weights, gradients and moments; Composer's DecoupledAdamW makes eight, half of a CPU step
    if the draft has one layer and so consists mostly of embeddings.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True)


def build_scheduler(config: sections.SchedulerConfig) -> optim.ComposerScheduler:
    """Build the learning rate schedule; Composer's classes with warm-up warn if there is none."""
    kinds: dict[str, tuple[Any, Any]] = {  # without warm-up, and with it
        "constant_with_warmup": (optim.ConstantScheduler, optim.ConstantWithWarmupScheduler),
        "linear_decay_with_warmup": (optim.LinearScheduler, optim.LinearWithWarmupScheduler),
        "cosine_with_warmup": (optim.CosineAnnealingScheduler, optim.CosineAnnealingWithWarmupScheduler),
    }
    has_warmup = sections.split_time(config.t_warmup)[0] > 0
    settings: dict[str, Any] = {"t_warmup": config.t_warmup} if has_warmup else {}
    if config.name != "constant_with_warmup":
        settings["alpha_f"] = config.alpha_f
    return kinds[config.name][has_warmup](**settings)
