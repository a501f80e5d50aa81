"""Parameters, memory, disk, steps and hours of a recipe as formulas of shapes and counts. No torch, no weights.

Memory is that of one process at its fullest; hours are those of one device. Counts that are not known yet (answers
that nobody has generated) are taken at the most that the recipe allows.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from statistics import mean
from typing import Any

from architectures.checkpoints.manifest import Counts, changed_inputs, hardware
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.pruning.selection import needed_scores
from architectures.shapes.context_length import ContextLength
from architectures.shapes.shape import DTYPE_BYTES, Shape
from architectures.tables import plural
from distill.data.conversations import Conversation, load_conversations
from distill.flops import forward_flops, head_flops, training_flops
from distill.formulas.losses import GPU_CHUNKS, Knowledge, chunk_size
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import (
    bytes_per_token,
    teacher_dtype,
)
from distill.recipe.sections.times import split_time
from distill.recipe.sections.training import DistillConfig
from distill.run.recorded import target_record
from distill.run.run import Run
from distill.run.stage_inputs import asked_inputs
from eval.prompts import Prompt, load_prompts
from eval.tasks import PromptSource

Rows = Sequence[Prompt | Conversation]
Encode = Callable[[str], list[int]]

PROCESSES_PER_MACHINE = 8
GIB = 2**30

# --- devices -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """What hours are computed from.

    Attributes:
        name: As the driver calls it, or the CPU with its number of cores.
        train_flops_per_s: Achieved by training steps, by distill.precision.
        bandwidth_gb_s: Memory bandwidth that decoding steps achieve.
        layer_ms: Least time of a layer in a decoding step: kernel launches.
        memory_gib: As torch reports it; None for a CPU.
        source: "measured DATE", or "assumed from published peaks".
    """

    name: str
    train_flops_per_s: Mapping[str, float]
    bandwidth_gb_s: float
    layer_ms: float
    memory_gib: float | None
    source: str

    @property
    def is_gpu(self) -> bool:
        return not re.search(r", \d+ cores?$", self.name)


def published(name: str, tflops_bf16: float, tflops_fp32: float, bandwidth_gb_s: float, memory_gib: float) -> Device:
    """A GPU at 30 % of its dense peaks and 60 % of its bandwidth; a layer of eager kernels takes 0.7 ms (H200)."""
    flops = {"amp_bf16": 0.3e12 * tflops_bf16, "fp32": 0.3e12 * tflops_fp32}
    return Device(name, flops, 0.6 * bandwidth_gb_s, 0.7, memory_gib, "assumed from published peaks")


# Published: NVIDIA's data sheets, without sparsity. Measured: benchmarks/results/devices.
DEVICES = (
    Device("NVIDIA H200", {"amp_bf16": 3.75e14, "fp32": 1.5e13}, 1650, 0.133, 139.8, "measured 2026-11-26"),
    Device("AMD EPYC, 2 cores", {"amp_bf16": 2.57e11, "fp32": 6.1e10}, 11.0, 0.777, None, "measured 2026-11-23"),
    published("NVIDIA H100 80GB HBM3", 989, 67, 3350, 79.1),
    published("NVIDIA H100 PCIe", 756, 51, 2000, 79.1),
    published("NVIDIA A100-SXM4-80GB", 312, 19.5, 2039, 79.1),
)


def slug_of(name: str) -> str:
    """Of NVIDIA H100 80GB HBM3: nvidia-h100-80gb-hbm3."""
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")


def find_device(wanted: str | None) -> Device | None:
    """The device of a name; of no name this machine's, None if unknown.

    Raises:
        UserError: If the wanted device is not known.
    """
    name = wanted or gpu_name() or processor_device_name()
    found = next((device for device in DEVICES if slug_of(device.name) == slug_of(name)), None)
    if found is None and wanted is not None:
        raise UserError(
            f"--device {wanted}: is not known. Choose one of {', '.join(slug_of(each.name) for each in DEVICES)}."
        )
    return found


def processor_device_name() -> str:
    """The CPU and the cores this process may use."""
    machine = hardware()
    processor, cores = machine["processor"], machine["cores"]
    return processor if cores is None else f"{processor}, {plural(cores, 'core')}"


def gpu_name() -> str | None:
    """What nvidia-smi calls the first GPU; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    names = done.stdout.splitlines() if done.returncode == 0 else []
    return names[0].strip() if names else None


# --- counts: prompts, responses, steps -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """How much there is to generate and to learn.

    Attributes:
        prompts: Number of them; None until a data set is opened.
        sequences: To train on; None likewise.
        prompt_tokens: Mean of a prompt, counted with the target's tokenizer; at most, where that is not here.
        response_tokens: Mean of a response that is on the disk; at most, where none is.
        is_bound: Whether the first two are bounds: a data set may have fewer rows than the recipe reads.
    """

    prompts: int | None
    sequences: int | None
    prompt_tokens: int
    response_tokens: int
    is_bound: bool = False

    @property
    def sequence_tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens


def read_prompts(source: PromptSource) -> list[Prompt] | None:
    """The prompts of a file; None for a data set, which takes longer to open than a check may."""
    return None if source.path is None else load_prompts([source])


def read_rows(source: PromptSource, recipe: Recipe) -> Rows | None:
    """The same of data.prompts, which may bring their responses."""
    if recipe.data.answers == "written" or source.path is None:
        return read_prompts(source)
    return load_conversations([source])


def finished_counts(recipe: Recipe) -> Counts | None:
    """Counts in the manifest of a finished <run>/data that this recipe made; the target's files are not compared."""
    manifest = Run.of(recipe).data.manifest
    if manifest is None or manifest.get("target") != target_record(recipe.target):
        return None
    return manifest.get("counts") if set(changed_inputs(manifest, asked_inputs(recipe))) <= {"target"} else None


def expected_work(
    recipe: Recipe, sources: Sequence[Rows | None], counts: Counts | None, encode: Encode | None = None
) -> Work:
    """What a recipe generates and learns.

    Args:
        recipe: The recipe.
        sources: Rows of each of data.prompts; None for a data set.
        counts: Of finished responses (`finished_counts`); None where there are none.
        encode: The target's tokenizer; None where it is not here.

    Raises:
        UserError: If no prompt would be left to train on.
    """
    data, rows = recipe.data, [row for source in sources for row in source or ()]
    given = [row for row in rows if isinstance(row, Conversation)]
    response = data.longest_answer
    trained = None if counts is None else counts["train"]
    if trained is not None and trained["answers"]:
        response = round(trained["answer_tokens"] / trained.get("sequences", trained["answers"]))
    elif given and encode is not None:
        response = mean_tokens([[row.messages[index] for index in row.answers] for row in given], encode)
    response = max(1, min(response, data.longest_answer))
    prompt = data.max_seq_len - data.longest_answer
    if rows and encode is not None:
        texts = [
            [
                each
                for index, each in enumerate(row.messages)
                if not isinstance(row, Conversation) or index not in row.answers
            ]
            for row in rows
        ]
        prompt = min(mean_tokens(texts, encode), data.max_seq_len - response)
    prompt = max(1, prompt)
    if counts is not None and trained is not None:
        return Work(counts["prompts"], trained.get("sequences", trained["answers"]), prompt, response)
    bounds = [named.num_prompts for named, rows in zip(recipe.data.prompts, sources, strict=True) if rows is None]
    if None in bounds:
        return Work(None, None, prompt, response)
    total, held_out = len(rows) + sum(each or 0 for each in bounds) + data.self_written_prompts, data.num_eval_prompts
    learns = recipe.distill.learns_answers
    if held_out >= total + (not learns):
        raise UserError(
            f"data.num_eval_prompts must be {'less than' if learns else 'at most'} the number of prompts, got "
            f"{held_out} and {total}. Hold out fewer, or add prompts."
        )
    if not learns:
        return Work(total, 0, prompt, response, is_bound=bool(bounds))
    asked = [row for row in rows if isinstance(row, Prompt)]
    sequences = total - held_out + sum(len(row.later_turns) for row in asked)
    return Work(total, sequences, prompt, response, is_bound=bool(bounds))


def mean_tokens(texts: Sequence[Sequence[Mapping[str, str]]], encode: Encode, sample: int = 200) -> int:
    """Mean number of tokens of some messages, over evenly spaced ones; a chat template's own are not counted."""
    step = ceil(len(texts) / sample)
    return round(mean(sum(len(encode(each["content"])) for each in messages) for messages in texts[::step]))


@dataclass(frozen=True)
class Steps:
    """How long a training is: optimiser steps, sequences read, and epochs (None for text)."""

    steps: int
    sequences: int
    epochs: float | None = None


def training_steps(config: DistillConfig, sequences: int | None, sequence_tokens: int) -> Steps | None:
    """What distill.max_duration means for so many sequences an epoch; None in epochs of an unknown number."""
    (value, unit), batch = split_time(config.max_duration), config.global_train_batch_size
    if unit == "tok":
        value, unit = ceil(value / sequence_tokens), "sp"
    if not sequences:  # text, or a data set that nobody has opened
        if unit == "ep":
            return None
        read = int(value) * (batch if unit == "ba" else 1)
        return Steps(ceil(read / batch), read)
    per_epoch = ceil(sequences / batch)  # the last batch of an epoch may be smaller
    if unit == "sp":
        epochs, rest = divmod(int(value), sequences)
        return Steps(epochs * per_epoch + ceil(rest / batch), int(value), value / sequences)
    steps = int(value) * (per_epoch if unit == "ep" else 1)
    epochs, rest = divmod(steps, per_epoch)
    read = epochs * sequences + rest * batch
    return Steps(steps, read, read / sequences)


# --- shapes and memory of trainings --------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedShapes:
    """The shapes of a run, from config files only.

    Attributes:
        target: What generates, teaches and verifies.
        source: What the draft is cut out of: the target, unless architecture.source names another.
        draft: What is trained.
        how: How the draft is cut, in words.
        lengths: Context lengths of target and source.
        unread: Checkpoints whose shape comes from our table and not from their config.json.
    """

    target: Shape
    source: Shape
    draft: Shape
    how: str
    lengths: tuple[ContextLength | None, ContextLength | None]
    unread: tuple[str, ...] = ()


MASTER_BYTES = 4  # weights, gradients and each of Adam's two moments are float32
NORM_BYTES = 8  # of a norm, per channel and token: its input and its normalised input, in float32


@dataclass(frozen=True)
class KeptBytes:
    """Bytes that one layer keeps per token for the backward pass, for every channel of an axis; norms come on top.

    Counted with torch's saved-tensor hooks on transformers 5.23 (LLaMA, Qwen2, Mistral), attention by a fused kernel.
    """

    hidden: int
    query: int
    key_value: int
    intermediate: int


# amp_bf16: the inputs of five projections are copied to bfloat16. fp32: a norm's output serves them all.
KEPT = {"amp_bf16": KeptBytes(10, 4, 4, 8), "fp32": KeptBytes(8, 8, 8, 16)}
KEPT_BY_GATES = {"amp_bf16": KeptBytes(4, 2, 0, 2), "fp32": KeptBytes(8, 4, 0, 4)}
# Of cross-entropy, per token and vocabulary entry of a chunk, gradient included. Measured: 14.1 and 16.1.
TOKEN_LOSS_BYTES = {"amp_bf16": 14, "fp32": 16}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training as far as memory goes.

    Attributes:
        stage: "distill" or "masks".
        student: Its shape.
        teacher: The frozen one's; None without one.
        teacher_dtype: Of its weights.
        precision: amp_bf16 or fp32.
        batch: Sequences per step over all processes.
        microbatch: Sequences per forward pass; None for the whole batch of a process.
        seq_len: Tokens of a sequence at most.
        loss_tokens: Tokens of a sequence that make loss, at most.
        gated: Whether learned masks are multiplied in.
        sharded: Whether FSDP2 divides the student.
        shard_degree: Over how many processes one copy is divided; None for all.
        teacher_sharded: Whether FSDP2 divides the teacher.
        recomputed: Whether layers keep their inputs only (activation checkpointing).
        packing: Whether sequences share rows, so that attention needs a mask.
        cached_bytes: Of a cached teacher per response token of a batch; None where the teacher runs.
        frozen_embeddings: Whether the input embeddings have neither gradients nor moments.
        beside_bytes: Of what else shares the device: the models that serve requests, the last good draft.
        on_gpu: Losses of a GPU are made of larger chunks.
    """

    stage: str
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
    shard_degree: int | None = None
    teacher_sharded: bool = False
    recomputed: bool = False
    packing: bool = False
    cached_bytes: int | None = None
    frozen_embeddings: bool = False
    beside_bytes: int = 0
    on_gpu: bool = False

    @property
    def trained_parameters(self) -> int:
        frozen = self.student.vocab * self.student.hidden if self.frozen_embeddings else 0
        return self.student.parameters() - frozen


def trainings(recipe: Recipe, shapes: PlannedShapes, *, on_gpu: bool) -> list[Training]:
    """The trainings of a recipe: of learned masks, where it has them, and of the draft."""
    config, target, draft = recipe.distill, shapes.target, shapes.draft
    dtype = teacher_dtype(recipe.target.dtype, config.precision)
    seq_len, loss_tokens = trained_lengths(recipe)
    microbatch = config.device_train_microbatch_size
    shared: dict[str, Any] = {
        "teacher_dtype": dtype,
        "precision": config.precision,
        "microbatch": None if microbatch == "auto" else microbatch,
        "sharded": config.parallelism != "ddp",
        "shard_degree": shard_degree(config),
        "teacher_sharded": config.teacher.is_sharded,
        "recomputed": config.activation_checkpointing,
        "on_gpu": on_gpu,
    }
    distillation = Training(
        stage="distill",
        student=draft,
        teacher=None if config.teacher.source == "none" else target,
        batch=config.global_train_batch_size,
        seq_len=seq_len,
        loss_tokens=loss_tokens,
        packing=config.packing,
        cached_bytes=cached_bytes(recipe, target, dtype),
        frozen_embeddings=config.freeze_input_embeddings,
        beside_bytes=online_bytes(recipe, target, draft),
        **shared,
    )
    if recipe.architecture.method != "learned_masks":
        return [distillation]
    masks, text = recipe.architecture.masks, recipe.text
    assert text is not None  # a recipe with learned masks has text
    return [
        Training(
            stage="masks",
            student=target,
            teacher=target,
            batch=masks.global_train_batch_size,
            seq_len=text.max_seq_len,
            loss_tokens=text.max_seq_len - 1,
            gated=True,
            **shared,
        ),
        distillation,
    ]


def trained_lengths(recipe: Recipe) -> tuple[int, int]:
    """Tokens of a training sequence, and how many of them make loss, at most."""
    if recipe.distill.train_on == "answers":
        return recipe.data.max_seq_len, recipe.data.longest_answer
    assert recipe.text is not None  # whoever trains on text has some
    return recipe.text.max_seq_len - 1, recipe.text.max_seq_len - 1


def shard_degree(config: DistillConfig) -> int | None:
    """Processes of one copy of the student; None where there are no copies of shards."""
    if config.parallelism != "hsdp":
        return None
    return PROCESSES_PER_MACHINE if config.shard_degree == "auto" else config.shard_degree


def cached_bytes(recipe: Recipe, target: Shape, dtype: str) -> int | None:
    """What a batch holds per response token of a cached teacher: ids widened to 8 bytes, numbers to 4."""
    teacher = recipe.distill.teacher
    if not teacher.is_cache:
        return None
    match teacher.contents:
        case "hidden":
            return target.hidden * DTYPE_BYTES[dtype]
        case "top_k":
            return teacher.k * (8 + 4) + 4
        case "samples":
            return teacher.num_samples * 8


def online_bytes(recipe: Recipe, target: Shape, draft: Shape) -> int:
    """Both models and the KV cache of one live request, and the last good draft with its moments."""
    online, dtype = recipe.distill.online, recipe.target.dtype
    if online is None:
        return 0
    models = (target, draft) if online.answers == "live" else ()
    serving = sum(
        each.weight_bytes(dtype) + recipe.data.max_seq_len * each.kv_bytes_per_token(dtype) for each in models
    )
    return serving + 3 * MASTER_BYTES * draft.parameters()


def training_memory(training: Training, processes: int) -> dict[str, int]:
    """Bytes of one process, by part, at the end of a forward pass, when most is held.

    A GPU's own context (about half a GiB) and the fragments of its allocator come on top.
    """
    student, trained = training.student, training.trained_parameters
    shards = min(processes, training.shard_degree or processes) if training.sharded else 1
    item = 2 if training.precision == "amp_bf16" else 4

    # Weights, gradients and moments, divided by FSDP2; then further copies of weights and gradients.
    parts = {
        "weights": MASTER_BYTES * student.parameters() // shards,
        "gradients": MASTER_BYTES * trained // shards,
        "moments": 2 * MASTER_BYTES * trained // shards,
    }
    if training.sharded:
        parts["gathered by FSDP2"] = 2 * item * gathered_parameters(student)
    else:
        parts["bfloat16 matrices"] = item * matrix_parameters(student) if item == 2 else 0
        parts["DDP buckets"] = MASTER_BYTES * trained if processes > 1 else 0

    # The teacher: whole, divided, or its head and the cached rows of a batch.
    if (teacher := training.teacher) is not None:
        of_number = DTYPE_BYTES[training.teacher_dtype]
        if training.teacher_sharded and processes > 1:
            parts["teacher"] = teacher.weight_bytes(training.teacher_dtype) // processes
            parts["gathered by FSDP2"] = parts.get("gathered by FSDP2", 0) + of_number * gathered_parameters(teacher)
        elif training.cached_bytes is None:
            parts["teacher"] = teacher.weight_bytes(training.teacher_dtype)
        else:
            rows = training.batch // processes * training.loss_tokens
            parts["teacher"] = of_number * teacher.vocab * teacher.hidden + rows * training.cached_bytes

    # What the layers keep for the backward pass.
    share = training.batch // processes
    sequences = share if training.microbatch is None else min(training.microbatch, share)
    tokens, per_layer = sequences * training.seq_len, layer_bytes_per_token(training)
    kept = student.layers * per_layer
    if training.recomputed:  # inputs of all layers, and all of the one that is computed again
        kept = student.layers * MASTER_BYTES * student.hidden + per_layer
    parts["activations"] = tokens * (kept + NORM_BYTES * student.hidden)

    # Logits and loss of one chunk of tokens; with several chunks the head's gradient is summed beside them.
    all_tokens = sequences * training.loss_tokens
    chunk = min(all_tokens, chunk_size(student.head_rows) * (GPU_CHUNKS if training.on_gpu else 1))
    parts["logits and loss"] = chunk * student.head_rows * loss_bytes(training)
    if all_tokens > chunk:
        parts["logits and loss"] += MASTER_BYTES * student.head_rows * student.hidden
    parts["online"] = training.beside_bytes
    return {name: size for name, size in parts.items() if size}


def gathered_parameters(shape: Shape) -> int:
    """Parameters that are whole at once under FSDP2: everything outside the layers, and two layers."""
    return shape.parameters() - (shape.layers - min(2, shape.layers)) * shape.parameters_per_layer()


def matrix_parameters(shape: Shape) -> int:
    """Parameters of matrix products: those of the layers, and the output head."""
    in_layer = sum(prod(size) for size in shape.layer_tensors().values() if len(size) == 2)
    return shape.layers * in_layer + shape.head_rows * shape.hidden


def layer_bytes_per_token(training: Training) -> int:
    """Bytes that one layer of the student keeps per token."""
    shape = training.student
    norms = sum(part.axes == ("hidden",) for part in FAMILIES[shape.family].layer.values())
    total = norms * NORM_BYTES * shape.hidden
    for kept in (KEPT[training.precision], *([KEPT_BY_GATES[training.precision]] if training.gated else [])):
        total += kept.hidden * shape.hidden + kept.intermediate * shape.intermediate
        total += kept.query * shape.axis("query") + kept.key_value * shape.axis("key_value")
    if training.packing:  # a mask as wide as the longest sequence, and keys and values repeated for every query head
        item, repeated = 2 if training.precision == "amp_bf16" else 4, KEPT[training.precision].key_value
        total += item * training.seq_len + repeated * (shape.axis("query") - shape.axis("key_value"))
    elif not training.on_gpu and shape.kv_heads < shape.heads:  # the CPU's fused kernel takes no shared keys
        total += 12 * shape.axis("query") + 4 * shape.heads * training.seq_len
    return total


def loss_bytes(training: Training) -> int:
    """Per token and vocabulary entry of a chunk, at the loss's fullest moment.

    Both models' logits in their dtype, the student's divided by the temperature and its log-probabilities (4 + 4), and
    the teacher's log-probabilities, probabilities and the difference (4 + 4 + 4). Measured on 1024 x 49152: 24.0.
    """
    with_teacher = 2 * (2 if training.precision == "amp_bf16" else 4) + 20
    if training.gated:  # and the next token's log-probabilities with their gradient
        return 8 + with_teacher
    return TOKEN_LOSS_BYTES[training.precision] if training.teacher is None else with_teacher


# --- memory of every stage -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """What one process of a stage holds, and what makes it smaller."""

    stage: str
    size_bytes: int
    remedy: str


def stage_needs(recipe: Recipe, shapes: PlannedShapes, *, processes: int, on_gpu: bool) -> list[Need]:
    """Memory of one process in each stage, in their order.

    Stages that only read models hold weights and the keys and values of a batch; a training is told at the micro-batch
    of 1 that auto goes down to on a GPU.
    """
    target, source, draft = shapes.target, shapes.source, shapes.draft
    data, config, dtype = recipe.data, recipe.eval, recipe.target.dtype
    held = target_bytes(recipe, target, dtype)
    smaller = "target.placement: layers, target.bits"
    needs = []
    if recipe.architecture.plan is None and needed_scores(source, recipe.architecture):
        whole = recipe.target.placement == "whole" or recipe.architecture.source is not None
        scored = source.weight_bytes(dtype) if whole else two_layers_bytes(source, dtype)
        needs.append(Need("prune", scored, "target.placement: layers, or architecture.method: first_last"))
    kept = data.batch_size * data.max_seq_len * target.kv_bytes_per_token(dtype)
    needs.append(Need("generate", held + kept, f"{smaller}, or a smaller data.batch_size"))
    if recipe.distill.teacher.is_cache:
        needs.append(Need("cache", held, smaller))
    for training in trainings(recipe, shapes, on_gpu=on_gpu):
        shrunk = replace(training, microbatch=1) if on_gpu and training.microbatch is None else training
        needs.append(Need(training.stage, sum(training_memory(shrunk, processes).values()), remedy(shrunk)))
    drafts = 2 * draft.weight_bytes(config.dtype)
    kept = config.batch_size * data.max_seq_len * target.kv_bytes_per_token(config.dtype)
    scored = target_bytes(recipe, target, config.dtype) + drafts + kept
    needs.append(Need("eval", scored, f"{smaller}, or a smaller eval.batch_size"))
    return needs


def target_bytes(recipe: Recipe, target: Shape, dtype: str) -> int:
    """A target's weights in memory; of one that is not whole there, what it may take, or two layers."""
    if recipe.target.placement == "whole":
        bits = recipe.target.bits
        return target.weight_bytes(dtype) * (bits or 8 * DTYPE_BYTES[dtype]) // (8 * DTYPE_BYTES[dtype])
    allowed = recipe.target.device_memory_gib
    return two_layers_bytes(target, dtype) if allowed is None else int(allowed * GIB)


def two_layers_bytes(shape: Shape, dtype: str) -> int:
    """The least that is held of a model read layer by layer: the larger of its output head and two layers."""
    return max(2 * shape.parameters_per_layer(), shape.head_rows * shape.hidden) * DTYPE_BYTES[dtype]


def remedy(training: Training) -> str:
    """What makes a training smaller that is not done yet."""
    steps = [
        *([] if training.sharded else ["distill.parallelism: fsdp2"]),
        *([] if training.recomputed else ["distill.activation_checkpointing: true"]),
        *([] if training.teacher is None or training.teacher_sharded else ["distill.teacher: {parallelism: fsdp2}"]),
        *([] if training.microbatch == 1 else ["a smaller device_train_microbatch_size"]),
    ]
    return f"{', '.join(steps)} or more processes" if steps else "more processes"


# --- disk ----------------------------------------------------------------------------------------------------------

BYTES_PER_TOKEN = 12  # of responses: a token's id and its text as JSON
MASK_CHECKPOINTS = 3  # kept, and one more while it is written


def disk_bytes(recipe: Recipe, shapes: PlannedShapes, work: Work) -> dict[str, int]:
    """What the run directory grows to, by part, at most."""
    target, draft = shapes.target, shapes.draft
    parts = {"init": draft.weight_bytes(recipe.target.dtype)}
    if recipe.architecture.method == "learned_masks":
        masks = MASK_CHECKPOINTS * 3 * MASTER_BYTES * target.parameters() + target.weight_bytes(recipe.target.dtype)
        parts["masks"] = masks
    if recipe.target.path.endswith(".gguf"):
        parts["imported target"] = target.weight_bytes("float32")
    if work.prompts is not None:
        written = work.prompts if recipe.distill.learns_answers else recipe.data.num_eval_prompts
        parts["responses"] = written * recipe.data.max_seq_len * BYTES_PER_TOKEN
    parts["teacher cache"] = cache_size(recipe, target, draft, work)
    frozen = draft.vocab * draft.hidden if recipe.distill.freeze_input_embeddings else 0
    kept = recipe.distill.save_num_checkpoints_to_keep + 1  # one more while it is written
    parts["checkpoints"] = kept * MASTER_BYTES * (3 * draft.parameters() - 2 * frozen)
    parts["draft"] = draft.weight_bytes(recipe.export.dtype)
    return {name: size for name, size in parts.items() if size}


def cache_size(recipe: Recipe, target: Shape, draft: Shape, work: Work) -> int:
    """Bytes of a teacher's cache for the responses there are, or for the longest there can be."""
    teacher, data = recipe.distill.teacher, recipe.data
    if not teacher.is_cache:
        return 0
    dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
    widths = {"hidden": target.hidden, "rows": draft.head_rows, "dtype": dtype}
    train = (work.sequences or 0) * work.response_tokens
    held_out = data.num_eval_prompts * data.max_new_tokens
    return train * bytes_per_token(teacher, "train", **widths) + held_out * bytes_per_token(teacher, "eval", **widths)


# --- hours ---------------------------------------------------------------------------------------------------------


def step_seconds(device: Device, shape: Shape, dtype: str, *, batch: int, context: int) -> float:
    """Seconds of a decoding step: the longest of kernel launches, bytes read and products."""
    read = matrix_parameters(shape) * DTYPE_BYTES[dtype] + batch * context * shape.kv_bytes_per_token(dtype)
    flops_per_s = device.train_flops_per_s.get("fp32" if dtype == "float32" else "amp_bf16")
    computed = 0.0 if flops_per_s is None else batch * shape.flops_per_token(context) / flops_per_s
    return max(shape.layers * device.layer_ms / 1e3, read / (1e9 * device.bandwidth_gb_s), computed)


def stage_seconds(recipe: Recipe, shapes: PlannedShapes, work: Work, device: Device) -> dict[str, float | None]:
    """Seconds of every long stage on one device; None where a count, or the speed of an engine, is not known.

    Nothing where no training in distill.precision was measured on the device.

    Not counted: loading, pruning, writing files.
    """
    data, config, target = recipe.data, recipe.distill, shapes.target
    flops_per_s = device.train_flops_per_s.get(config.precision)
    if flops_per_s is None:
        return {}
    seconds: dict[str, float | None] = {}
    if recipe.architecture.method == "learned_masks":
        seconds["masks"] = masks_flops(recipe, target) / flops_per_s

    # Responses of the target: decoding steps of whole batches, and the reading of prompts.
    given = data.answers == "given" or not config.learns_answers
    count = data.num_eval_prompts if given else work.sequences
    count = None if count is None else count if given else count + data.num_eval_prompts
    if count is None or not recipe.generate.is_local:
        seconds["generate"] = None
    else:
        tokens = work.response_tokens if data.answers == "written" else data.max_new_tokens
        context = work.prompt_tokens + tokens // 2
        one_step = step_seconds(device, target, recipe.target.dtype, batch=data.batch_size, context=context)
        read = count * forward_flops(target, [(work.prompt_tokens, 1)]) / flops_per_s
        seconds["generate"] = ceil(count / data.batch_size) * tokens * one_step + read

    # A cached teacher reads every response once.
    teacher = config.teacher
    if teacher.is_cache:
        number = None if work.sequences is None else work.sequences + data.num_eval_prompts
        each = forward_flops(target, [(work.sequence_tokens, work.response_tokens)])
        seconds["cache"] = None if number is None else number * each / flops_per_s

    # Trainings: of the drafts of earlier stages, then of the draft.
    total: float | None = 0.0
    for student in (*earlier_drafts(recipe, shapes), shapes.draft):
        one = distill_seconds(recipe, replace(shapes, draft=student), work, device)
        total = None if total is None or one is None else total + one
    seconds["distill"] = None if config.online is not None else total  # a stream takes as long as requests come
    seconds["eval"] = eval_seconds(recipe, shapes, work, device)
    return seconds


def earlier_drafts(recipe: Recipe, shapes: PlannedShapes) -> list[Shape]:
    """Drafts of the stages of progressive pruning before the last."""
    head = {"vocab": shapes.target.vocab, "head_vocab": shapes.draft.head_vocab, "tied": shapes.draft.tied}
    return [replace(shapes.source, layers=layers, **head) for layers in (recipe.architecture.stages or [])[:-1]]


def masks_flops(recipe: Recipe, target: Shape) -> int:
    masks, text = recipe.architecture.masks, recipe.text
    assert text is not None  # a recipe with learned masks has text
    sequence = [(text.max_seq_len, text.max_seq_len - 1)]
    teacher = forward_flops(target, sequence)
    count = int(split_time(masks.max_duration)[0]) * masks.global_train_batch_size
    return count * training_flops(target, sequence, teacher=teacher)


def distill_seconds(recipe: Recipe, shapes: PlannedShapes, work: Work, device: Device) -> float | None:
    """Seconds of one distillation: its steps, what the student writes itself, and evaluations."""
    config, samples, target, draft = recipe.distill, recipe.distill.samples, shapes.target, shapes.draft
    on_text = config.train_on == "text"
    sequence = trained_lengths(recipe) if on_text else (work.sequence_tokens, work.response_tokens)
    length = training_steps(config, None if on_text else work.sequences, sequence[0])
    if length is None:
        return None
    teacher = replace(target, head_vocab=draft.head_vocab)
    asked = any(term.loss.needs is not Knowledge.TOKENS for term in config.terms)
    of_teacher = 0
    if asked and config.teacher.source == "live":
        of_teacher = forward_flops(teacher, [sequence])
    elif asked and config.teacher.contents == "hidden" and config.teacher.is_cache:
        of_teacher = sequence[1] * head_flops(teacher.head_rows, teacher.hidden)
    flops = length.sequences * training_flops(draft, [sequence], teacher=of_teacher)

    # Evaluations: before the first step, those that come due, and one at the end.
    held_out = [(work.sequence_tokens, work.response_tokens)] * recipe.data.num_eval_prompts
    of_both = forward_flops(draft, held_out)
    of_both += 0 if config.teacher.source == "none" else forward_flops(target, held_out)
    value, unit = split_time(config.eval_interval)
    interval = (
        value
        * {
            "dur": length.sequences,
            "ep": work.sequences or length.sequences,
            "ba": config.global_train_batch_size,
            "sp": 1,
            "tok": 1 / sequence[0],
        }[unit]
    )
    evaluations = 1 + max(1, ceil(length.sequences / interval - 1e-6))
    seconds = (flops + evaluations * of_both) / device.train_flops_per_s[config.precision]

    # On-policy samples: the student writes while it trains, in every step anew.
    if samples.source != "teacher":
        tokens = recipe.data.max_new_tokens
        place = {"batch": config.global_train_batch_size, "context": work.prompt_tokens + tokens // 2}
        one_step = step_seconds(device, draft, "float32", **place)
        if samples.source == "mix_token":
            one_step += step_seconds(device, target, recipe.target.dtype, **place)
        seconds += length.steps * tokens * one_step
    return seconds


def eval_seconds(recipe: Recipe, shapes: PlannedShapes, work: Work, device: Device) -> float:
    """Seconds of a scorecard: the target's responses, their replay by three models, and step times."""
    config, target, draft = recipe.eval, shapes.target, shapes.draft
    there = scored_prompts(recipe)
    count, tokens = len(config.temperatures) * there, config.max_new_tokens
    prompt = min(work.prompt_tokens, config.max_prompt_len)
    place = {"context": prompt + tokens // 2}
    one_step = step_seconds(device, target, config.dtype, batch=config.batch_size, **place)
    written = ceil(count / config.batch_size) * tokens * one_step if recipe.generate.is_local else 0.0
    replayed = forward_flops(target, [(prompt + tokens, tokens)]) + 2 * forward_flops(
        draft, [(prompt + tokens, tokens)]
    )
    alone = step_seconds(device, target, config.dtype, batch=1, **place)
    drafted = step_seconds(device, draft, config.dtype, batch=1, **place)
    timed = config.latency_repeats * ((1 + len(config.lookaheads)) * alone + 18 * drafted)
    return written + count * replayed / device.train_flops_per_s[recipe.distill.precision] + timed


def scored_prompts(recipe: Recipe) -> int:
    """Prompts of the scorecard, at most."""
    bounds: list[Any] = [task.num_prompts for task in recipe.eval.tasks] or [recipe.data.num_eval_prompts]
    return recipe.eval.num_prompts if None in bounds else min(recipe.eval.num_prompts, sum(bounds))
