"""Composer's trainer, built from a recipe."""

from functools import partial
from pathlib import Path

import torch
from composer import Algorithm, Callback, Evaluator, Logger, State, Trainer
from composer.callbacks import LRMonitor, SpeedMonitor
from composer.devices import Device, DeviceCPU, DeviceGPU
from composer.utils import dist
from transformers import PreTrainedModel

from architectures.errors import UserError
from architectures.vocabulary_head import begin_unknown, with_unknown
from distill.callbacks import EvaluationIntervals, GradientNorm, StepTimes, profiled_steps
from distill.checkpoints.files import newest_intact_checkpoint
from distill.checkpoints.saving import read_into
from distill.checkpoints.trust import guard_composer
from distill.checkpoints.writer import CheckpointWriter
from distill.data.batches import AnswerDataset
from distill.data.unknown_inputs import UnknownInputs
from distill.exporting.export import vocab_size_of
from distill.exporting.reading import read_checkpoint, read_state
from distill.loggers import CONSOLE_INTERVAL, build_loggers
from distill.losses.answer_logits import AnswerLogits
from distill.losses.objective import build_objective
from distill.metrics import Known
from distill.recipe.sections.data import DataConfig
from distill.recipe.sections.teacher import (
    TeacherConfig,
    refuse_cut_entries,
    teacher_dtype,
)
from distill.recipe.sections.training import TIED_AND_FROZEN, DistillConfig
from distill.run.run import Run
from distill.sharding import parallelism_config, recompute_layers
from distill.teacher import (
    AbsentTeacher,
    CachedTeacher,
    Selection,
    Teacher,
    load_sharded_teacher,
    load_teacher,
    refuse_other_ids,
)
from distill.teacher_cache import CachedAnswers, load_head
from distill.training.alpha_bounds import AlphaBounds
from distill.training.batches import Widths, build_dataspec, padding_multiple
from distill.training.model import DistillModel, HeldOut
from distill.training.optimiser import build_optimizer, build_scheduler
from distill.training.training_data import interval, microbatch_size, training_data
from eval.models.loading import load_model

DIST_TIMEOUT_S = 1800.0  # the other ranks wait while rank 0 writes a checkpoint of many gigabytes


def training_device() -> Device:
    """This process's GPU, or the processor; `fp32` means float32 also where Composer would round to tf32."""
    return DeviceGPU(allow_tf32=False) if torch.cuda.is_available() else DeviceCPU()


def newest_for_all(folder: Path) -> Path | None:
    """The newest intact checkpoint of a folder, chosen and read by rank 0 for all; None where there is none.

    Composer asks again before it reads it; under FSDP2 a refusal would then come to rank 0 alone, the others waiting.

    Args:
        folder: Of the checkpoints.

    Raises:
        UserError: On all processes, if it holds anything but what a training here saves.
    """
    outcome = [newest_or_problem(folder) if dist.get_global_rank() == 0 else None]
    dist.broadcast_object_list(outcome, src=0)
    assert outcome[0] is not None  # rank 0 has filled it
    checkpoint, problem = outcome[0]
    if problem is not None:
        raise UserError(problem)
    return checkpoint


def newest_or_problem(folder: Path) -> tuple[Path | None, str | None]:
    """The newest intact checkpoint, or why it is refused."""
    try:
        checkpoint = newest_intact_checkpoint(folder)
        if checkpoint is not None:
            read_checkpoint(checkpoint)
    except UserError as error:
        return None, str(error)
    return checkpoint, None


def build_model(run: Run, *, eval_tasks: tuple[str, ...]) -> DistillModel:
    """The student at <run>/init in float32 beside its teacher on this process's device.

    Of a teacher that is cached only the output head is loaded, and nothing where none is asked.

    Args:
        run: Whose target teaches.
        eval_tasks: The tasks of the held-out prompts.

    Raises:
        UserError: If the teacher's cache keeps entries of a vocabulary that the student has only a part of, the
            reference of a selection cannot say what the student says, distill.packing is true and one of the models
            cannot be packed, or embeddings are to be frozen that are the head as well.
    """
    recipe, config, init, on_gpu = run.recipe, run.recipe.distill, run.init.path, torch.cuda.is_available()
    dtype = teacher_dtype(recipe.target.dtype, config.precision)
    placed = {"dtype": dtype, "device": f"cuda:{dist.get_local_rank()}" if on_gpu else "cpu"}
    laid_out = {"packing": config.packing, "multiple": padding_multiple(config.pad_to_multiple)}
    load_frozen, selection = partial(load_teacher, **placed, **laid_out), config.token_selection
    student = load_model(init, dtype="float32", device="cpu", trained=True)
    if config.unknown_inputs:
        begin_unknown(student, init)
    if config.freeze_input_embeddings:
        freeze_input_embeddings(student)
    if config.activation_checkpointing:
        recompute_layers(student)
    return distill_model(
        config,
        recipe.data,
        student,
        teacher_of(config.teacher, run.target, **placed, **laid_out, bits=recipe.target.bits),
        selection=None if selection is None else Selection(load_frozen(Path(selection.reference)), selection.fraction),
        eval_tasks=eval_tasks,
    )


def freeze_input_embeddings(student: "PreTrainedModel") -> None:
    """Leave the rows of the student's token ids as they are; positions that are learned go on learning.

    Raises:
        UserError: If the output head is made of the same rows.
    """
    embeddings, head = student.get_input_embeddings().weight, student.get_output_embeddings()
    if head is not None and head.weight is embeddings:
        raise UserError(TIED_AND_FROZEN)
    embeddings.requires_grad_(False)  # noqa: FBT003  # a tensor's takes it no other way


def teacher_of(
    teacher: TeacherConfig, target: Path, *, dtype: str, device: str, packing: bool, multiple: int, bits: int | None
) -> Teacher | CachedTeacher | AbsentTeacher:
    """What a recipe's teacher is while the student trains."""
    match teacher.source:
        case "live":
            load = load_sharded_teacher if teacher.is_sharded else partial(load_teacher, bits=bits)
            return load(target, dtype=dtype, device=device, packing=packing, multiple=multiple)
        case "none":
            return AbsentTeacher(vocab_size_of(target))
        case "cache":
            return CachedTeacher(load_head(target, dtype=dtype, device=device))


def distill_model(
    config: DistillConfig,
    answers: DataConfig,
    student: PreTrainedModel,
    teacher: Teacher | CachedTeacher | AbsentTeacher,
    *,
    selection: Selection | None = None,
    eval_tasks: tuple[str, ...] = (),
) -> DistillModel:
    """A student beside its teacher, as a recipe trains them, wherever their weights came from.

    Raises:
        UserError: As build_model.
    """
    if selection is not None and config.token_selection is not None:
        refuse_other_ids(selection.reference.model.lm, student, where=config.token_selection.reference)
    model = DistillModel(
        AnswerLogits(student, packing=config.packing, multiple=padding_multiple(config.pad_to_multiple)),
        teacher,
        objective=build_objective(config.terms, temperature=config.temperature),
        selection=selection,
        held_out=HeldOut(eval_tasks, answers.temperature, answers.top_p),
        cpu_bfloat16=not torch.cuda.is_available() and config.precision != "fp32",
    )
    if model.ids_K is None:  # else a cache's entries are of ids that the student says
        refuse_cut_entries(config.teacher, vocab_size=model.vocab_size, of_teacher=model.teacher.vocab_size)
    return model


def build_trainer(
    run: Run,
    model: DistillModel,
    *,
    train_set: AnswerDataset | CachedAnswers | None,
    eval_set: AnswerDataset | CachedAnswers,
    checkpoint: Path | None,
    profile: Path | None = None,
) -> Trainer:
    """A trainer that stands at the checkpoint, or at the start where there is none.

    Args:
        run: Whose recipe says how.
        model: That is trained.
        train_set: The answers to train on; None where the recipe trains on text.
        eval_set: Held-out answers.
        checkpoint: To continue from.
        profile: Folder that takes a profile of a step, by rank 0; none is made if left out.

    Raises:
        UserError: If the processes cannot share the batch, or the text cannot be read.
    """
    recipe, config, checkpoints = run.recipe, run.recipe.distill, run.checkpoints.path
    clipping = config.gradient_clipping
    optimizer = build_optimizer(config.optimizer, model)
    learned = training_data(run, model, optimizer, train_set)
    eval_data = build_dataspec(
        eval_set,
        device_batch_size=config.device_eval_batch_size,
        shuffle=False,
        seed=recipe.seed,
        widths=Widths.of(recipe),
    )
    guard_composer()
    folder = checkpoint if checkpoint is not None and checkpoint.is_dir() else None
    trainer = Trainer(
        model=model,
        train_dataloader=learned.spec,
        eval_dataloader=Evaluator(label="eval", dataloader=eval_data),
        max_duration=learned.max_duration,
        optimizers=optimizer,
        schedulers=build_scheduler(config.scheduler),
        algorithms=[
            *unknown_inputs(run),
            GradientNorm(
                checkpoints,
                None if clipping is None else clipping.clipping_threshold,
                passes_over=config.mode == "online",
            ),
        ],
        device=training_device(),
        precision=config.precision if torch.cuda.is_available() else "fp32",  # bfloat16 on CPU: see DistillModel
        device_train_microbatch_size=microbatch_size(config.device_train_microbatch_size, config),
        accumulate_train_batch_on_tokens=True,
        eval_interval=interval(config.eval_interval, config, learned),
        parallelism_config=parallelism_config(config),
        callbacks=[
            StepTimes(model.clock),
            *profiled_steps(profile, model.clock),
            *learned.callbacks,
            CheckpointWriter(
                checkpoints,
                save_interval=interval(config.save_interval, config, learned),
                num_to_keep=config.save_num_checkpoints_to_keep,
                best_by=Known(config.teacher.source != "none", recipe.data.temperature).best_by,
                sharded=config.checkpoints == "sharded",
                continues=None if folder is None else partial(continue_from_shards, folder),
            ),
            EvaluationIntervals(),
            *alpha_bounds(config, model),
            SpeedMonitor(window_size=10),
            LRMonitor(),
        ],
        loggers=build_loggers(config, run.logs, recipe.run_name),
        progress_bar=False,  # ours is among the loggers
        run_name=recipe.run_name,
        seed=recipe.seed,
        load_path=None if checkpoint is None or checkpoint == folder else str(checkpoint),
        dist_timeout=DIST_TIMEOUT_S,
    )
    if folder is not None:
        trainer._rng_state = read_checkpoint(folder)["rng"]  # noqa: SLF001  # as Composer keeps those of a file
    return trainer


def continue_from_shards(folder: Path, state: State, logger: Logger) -> None:
    """Weights, moments, times, callbacks and data as they were when a sharded checkpoint was written.

    Random states come back with the first batch that is trained on, which Composer sees to.
    """
    rest = read_state(folder)
    read_into(state, folder, rest.pop("optimizers"))
    state.load_state_dict(rest, logger)


def alpha_bounds(config: DistillConfig, model: DistillModel) -> list[Callback]:
    """What logs between which bounds alpha lies, where a cache keeps the most likely entries."""
    of_entries = config.teacher.keeps_entries and config.teacher.contents == "top_k"
    return [AlphaBounds(model, interval=CONSOLE_INTERVAL)] if of_entries else []


def unknown_inputs(run: Run) -> list[Algorithm]:
    """What shows the student unknown ids, where the recipe wants it."""
    share = run.recipe.distill.unknown_inputs
    if not share:
        return []
    return [UnknownInputs(with_unknown(run.init.path), share=share, seed=run.recipe.seed)]
