"""Estimate parameters, memory, disk, steps and hours of a recipe from shapes and counts. No torch, no weights.

Memory is the peak of one process; hours are for one device. Unknown counts (responses not generated yet) are taken at
the maximum that the recipe allows.
"""

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from statistics import mean
from typing import TYPE_CHECKING

from architectures.console import plural
from architectures.errors import UserError
from architectures.manifest import ResponseCounts, changed_inputs, hardware
from architectures.pruning.plan import needed_scores
from architectures.shapes import DTYPE_BYTES, ContextLength, Shape
from distill.data.conversations import Conversation
from distill.losses import GPU_CHUNKS, Knowledge, chunk_size
from distill.recipe.recipe import Recipe
from distill.recipe.sections import DistillConfig, bytes_per_token, split_time, teacher_dtype
from distill.run import Run, target_record
from distill.stage_inputs import configured_inputs
from eval.config import PROMPT_TOKENS
from eval.prompts import Prompt

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = 2  # multiple of the forward pass: gradients of inputs and of weights


def forward_flops(shape: Shape, responses: Iterable[tuple[int, int]]) -> int:
    """Compute the FLOPs of a forward pass whose output head runs at some positions only.

    Args:
        responses: (tokens, positions that the head runs at) of each sequence.
    """
    head = head_flops(shape.head_rows, shape.hidden)
    return sum(
        num_tokens * (shape.flops_per_token((num_tokens + 1) // 2) - head) + num_kept * head
        for num_tokens, num_kept in responses
    )


def head_flops(rows: int, hidden: int) -> int:
    return 2 * rows * hidden


def training_flops(student: Shape, responses: Iterable[tuple[int, int]], *, teacher: int) -> int:
    """Compute the FLOPs of a training step, forward and backward, plus `teacher`; without recomputation."""
    return (1 + BACKWARD) * forward_flops(student, responses) + teacher


def responses_in(batch: Mapping[str, "Tensor"]) -> list[tuple[int, int]]:
    """Return (tokens, positions that the head runs at) of each sequence of a batch."""
    return list(zip(batch["attention_mask"].sum(dim=1).tolist(), batch["keep"].sum(dim=1).tolist(), strict=True))


Rows = Sequence[Prompt | Conversation]
Encode = Callable[[str], list[int]]

PROCESSES_PER_MACHINE = 8
GIB = 2**30

# --- devices -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """Speed and memory of a device.

    Attributes:
        name: As nvidia-smi reports it, or the CPU with its number of cores.
        train_flops_per_s: Achieved by training steps, by distill.precision.
        bandwidth_gb_s: Achieved by decoding steps.
        layer_ms: Minimum time of a layer in a decoding step: kernel launches.
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
    """Build a GPU at 30 % of its peak FLOPs and 60 % of its bandwidth; eager kernels of a layer take 0.7 ms (H200)."""
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
    """Return e.g. nvidia-h100-80gb-hbm3 for NVIDIA H100 80GB HBM3."""
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")


def find_device(wanted: str | None) -> Device | None:
    """Return the named device, or by default this machine's, None if unknown; raises UserError for an unknown name."""
    name = wanted or gpu_name() or processor_device_name()
    found = next((device for device in DEVICES if slug_of(device.name) == slug_of(name)), None)
    if found is None and wanted is not None:
        raise UserError(
            f"--device {wanted}: unknown device. Choose one of {', '.join(slug_of(each.name) for each in DEVICES)}."
        )
    return found


def processor_device_name() -> str:
    machine = hardware()
    processor, cores = machine["processor"], machine["cores"]
    return processor if cores is None else f"{processor}, {plural(cores, 'core')}"


def gpu_name() -> str | None:
    """Return the name of the first GPU by nvidia-smi; None without one."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() or None


# --- counts: prompts, responses, steps -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Prompts to generate responses for, and sequences to train on.

    Attributes:
        prompts, sequences: Their numbers; None until a data set is opened.
        prompt_tokens: Mean by the target's tokenizer; the maximum if that is not available locally.
        response_tokens: Mean of the responses on disk; the maximum without any.
        is_bound: True if the numbers are upper bounds: a data set may have fewer rows than the recipe reads.
    """

    prompts: int | None
    sequences: int | None
    prompt_tokens: int
    response_tokens: int
    is_bound: bool = False

    @property
    def sequence_tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens


def finished_counts(recipe: Recipe) -> ResponseCounts | None:
    """Return the counts of this recipe's finished <run>/data, without comparing the target's files."""
    manifest = Run.of(recipe).data.manifest
    if manifest is None or manifest.get("target") != target_record(recipe.target):
        return None
    return manifest.get("counts") if set(changed_inputs(manifest, configured_inputs(recipe))) <= {"target"} else None


def expected_work(
    recipe: Recipe, sources: Sequence[Rows | None], counts: ResponseCounts | None, encode: Encode | None = None
) -> Work:
    """Estimate how much a recipe generates and trains on.

    Args:
        sources: Rows of each of data.prompts; None for a data set.
        counts: Of finished responses (`finished_counts`).
        encode: The target's tokenizer; None if it is not available locally.

    Raises:
        UserError: If no prompt would be left to train on.
    """
    data, rows = recipe.data, [row for source in sources for row in source or ()]

    # Tokens: of finished responses, else counted in the rows, else the maximum of the recipe.
    prompt, response = data.max_seq_len - data.longest_response, data.longest_response
    if rows and encode is not None:
        prompt = mean_tokens(rows, encode, learned=False)
        response = mean_tokens(rows, encode, learned=True) or response
    trained = None if counts is None else counts["train"]
    if trained is not None and trained["responses"]:
        response = round(trained["response_tokens"] / trained.get("sequences", trained["responses"]))
    response = max(1, min(response, data.longest_response))
    prompt = max(1, min(prompt, data.max_seq_len - response))

    if counts is not None and trained is not None:
        return Work(counts["prompts"], trained.get("sequences", trained["responses"]), prompt, response)
    bounds = [named.num_prompts for named, rows in zip(data.prompts, sources, strict=True) if rows is None]
    if None in bounds:
        return Work(None, None, prompt, response)
    total, held_out = len(rows) + sum(each or 0 for each in bounds) + data.self_written_prompts, data.num_eval_prompts
    learns = recipe.distill.trains_on_responses
    if held_out >= total + (not learns):
        raise UserError(
            f"data.num_eval_prompts must be {'less than' if learns else 'at most'} the number of prompts, got "
            f"{held_out} and {total}. Hold out fewer, or add prompts."
        )
    turns = sum(len(row.later_turns) for row in rows if isinstance(row, Prompt))
    return Work(total, total - held_out + turns if learns else 0, prompt, response, is_bound=bool(bounds))


def mean_tokens(rows: Rows, encode: Encode, *, learned: bool, sample: int = 200) -> int:
    """Return the mean tokens per row of learned, or of not learned, messages in a sample, without the chat template."""
    return round(
        mean(
            sum(
                len(encode(message["content"]))
                for place, message in enumerate(row.messages)
                if (isinstance(row, Conversation) and place in row.responses) is learned
            )
            for row in rows[:: ceil(len(rows) / sample)]
        )
    )


@dataclass(frozen=True)
class Steps:
    """Length of a training run; epochs are None for text."""

    steps: int
    sequences: int
    epochs: float | None = None


def training_steps(config: DistillConfig, sequences: int | None, sequence_tokens: int) -> Steps | None:
    """Convert distill.max_duration to steps; None for a duration in epochs of unknown length."""
    (value, unit), batch = split_time(config.max_duration), config.global_train_batch_size
    if unit == "tok":
        value, unit = ceil(value / sequence_tokens), "sp"
    if not sequences:  # text, or a data set that is not open yet
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


def expected_steps(recipe: Recipe, work: Work) -> tuple[Steps | None, int, int]:
    """Return the steps of the distillation, the tokens of a sequence, and how many of these contribute to the loss."""
    if recipe.distill.train_on == "text":
        seq_len, loss_tokens = longest_lengths(recipe, on_text=True)
        return training_steps(recipe.distill, None, seq_len), seq_len, loss_tokens
    steps = training_steps(recipe.distill, work.sequences, work.sequence_tokens)
    return steps, work.sequence_tokens, work.response_tokens


# --- memory of one process -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedShapes:
    """Shapes of a run, from config files only.

    Attributes:
        source: The target, unless architecture.source names another.
        how: Pruning method, for display.
        lengths: Context lengths of target and source.
        unread: Checkpoints whose shape comes from the built-in table, not from their config.json.
    """

    target: Shape
    source: Shape
    draft: Shape
    how: str
    lengths: tuple[ContextLength | None, ContextLength | None]
    unread: tuple[str, ...] = ()


MASTER_BYTES = 4  # of weights, of gradients and of each of Adam's two moments: float32
NORM_BYTES = 8  # per channel and token of a norm: its input and its normalised input, in float32

# Bytes that one layer saves per token for the backward pass, for every channel of (hidden, query, key/value,
# intermediate), without norms. Counted with torch's saved-tensor hooks on transformers 5.23 (LLaMA, Qwen2, Mistral)
# and a fused attention kernel. amp_bf16: the inputs of five projections are copied to bfloat16. fp32: the output of a
# norm serves them all.
KEPT = {"amp_bf16": (10, 4, 4, 8), "fp32": (8, 8, 8, 16)}
KEPT_BY_MASKS = {"amp_bf16": (4, 2, 0, 2), "fp32": (8, 4, 0, 4)}
# Of cross-entropy, per token and vocabulary entry of a chunk, gradient included. Measured: 14.1 and 16.1.
TOKEN_LOSS_BYTES = {"amp_bf16": 14, "fp32": 16}


def stage_memory(
    recipe: Recipe, shapes: PlannedShapes, *, processes: int, on_gpu: bool, sequences: int | None = None
) -> dict[str, dict[str, int]]:
    """Estimate the bytes of one process in each stage, by part; `sequences` as in `training_memory`.

    Stages that only run models hold weights and the KV cache of a batch.
    """
    target, source, dtype = shapes.target, shapes.source, recipe.target.dtype
    held, max_seq_len = target_bytes(recipe, target, dtype), recipe.data.max_seq_len
    stages: dict[str, dict[str, int]] = {}
    if recipe.architecture.plan is None and needed_scores(source, recipe.architecture):
        whole = recipe.target.placement == "whole" or recipe.architecture.source is not None
        stages["prune"] = {"weights": source.weight_bytes(dtype) if whole else two_layers_bytes(source, dtype)}
    kept = recipe.data.batch_size * max_seq_len * target.kv_bytes_per_token(dtype)
    stages["generate"] = {"target": held, "keys and values": kept}
    if recipe.distill.teacher.is_cache:
        stages["cache"] = {"target": held}
    for stage in (*(["masks"] if recipe.architecture.method == "learned_masks" else []), "distill"):
        limits = {"processes": processes, "on_gpu": on_gpu, "sequences": None if stage == "masks" else sequences}
        stages[stage] = training_memory(recipe, shapes, stage, **limits)
    dtype, scoring = recipe.eval.dtype, recipe.eval
    longest = scoring.max_prompt_len or scoring.batch_size * PROMPT_TOKENS
    longest = longest if scoring.tasks else min(longest, max_seq_len)
    read = max(longest, scoring.batch_size * min(longest, PROMPT_TOKENS)) + scoring.batch_size * scoring.max_new_tokens
    stages["eval"] = {
        "target": target_bytes(recipe, target, dtype),
        "drafts": 2 * shapes.draft.weight_bytes(dtype),
        "keys and values": read * target.kv_bytes_per_token(dtype),
    }
    return stages


def target_bytes(recipe: Recipe, target: Shape, dtype: str) -> int:
    """Return the bytes of a target's weights in memory; for a layer-by-layer target its memory limit, or two layers."""
    if recipe.target.placement == "whole":
        bits = recipe.target.bits
        return target.weight_bytes(dtype) * (bits or 8 * DTYPE_BYTES[dtype]) // (8 * DTYPE_BYTES[dtype])
    allowed = recipe.target.device_memory_gib
    return two_layers_bytes(target, dtype) if allowed is None else int(allowed * GIB)


def two_layers_bytes(shape: Shape, dtype: str) -> int:
    """Return the minimum bytes of a model loaded layer by layer: the larger of its output head and two layers."""
    return max(2 * shape.parameters_per_layer(), shape.head_rows * shape.hidden) * DTYPE_BYTES[dtype]


def training_memory(
    recipe: Recipe,
    shapes: PlannedShapes,
    stage: str = "distill",
    *,
    processes: int = 1,
    on_gpu: bool = False,
    sequences: int | None = None,
) -> dict[str, int]:
    """Estimate the bytes of one process of stage "distill" or "masks" at its peak, the end of a forward pass.

    A micro-batch of "auto" counts as 1 on a GPU, since it shrinks until it fits. Not counted: the CUDA context (about
    half a GiB) and fragmentation of the allocator.

    Args:
        sequences: Of the training data, which bound a batch; None if unknown or unlimited.
    """
    config, target, masks = recipe.distill, shapes.target, stage == "masks"
    student = target if masks else shapes.draft
    batch = recipe.architecture.masks.global_train_batch_size if masks else config.global_train_batch_size
    if sequences is not None:
        batch = min(batch, ceil(sequences / processes) * processes)
    seq_len, loss_tokens = longest_lengths(recipe, on_text=masks or config.train_on == "text")
    item = 2 if config.precision == "amp_bf16" else 4

    # Weights, gradients and moments, sharded by FSDP2; then further copies of weights and gradients.
    is_sharded = config.parallelism != "ddp"
    degree = processes if config.parallelism == "fsdp2" else PROCESSES_PER_MACHINE
    shards = min(processes, degree if config.shard_degree == "auto" else config.shard_degree) if is_sharded else 1
    frozen = config.freeze_input_embeddings and not masks
    trained = student.parameters() - (student.vocab * student.hidden if frozen else 0)
    parts = {
        "weights": MASTER_BYTES * student.parameters() // shards,
        "gradients": MASTER_BYTES * trained // shards,
        "moments": 2 * MASTER_BYTES * trained // shards,
    }
    if is_sharded:
        parts["gathered by FSDP2"] = 2 * item * gathered_parameters(student)
    else:
        parts["bfloat16 matrices"] = item * matrix_parameters(student) if item == 2 else 0
        parts["DDP buckets"] = MASTER_BYTES * trained if processes > 1 else 0

    # The teacher: whole, sharded, or its head and the cached rows of a batch.
    dtype, has_teacher = teacher_dtype(recipe.target.dtype, config.precision), masks or config.teacher.source != "none"
    if has_teacher and config.teacher.is_sharded and processes > 1:
        parts["teacher"] = target.weight_bytes(dtype) // processes
        gathered = DTYPE_BYTES[dtype] * gathered_parameters(target)
        parts["gathered by FSDP2"] = parts.get("gathered by FSDP2", 0) + gathered
    elif has_teacher and config.teacher.is_cache and not masks:
        # Cached ids are widened to 8 bytes, floats to 4.
        per_token = {
            "hidden": target.hidden * DTYPE_BYTES[dtype],
            "top_k": config.teacher.k * (8 + 4) + 4,
            "samples": config.teacher.num_samples * 8,
        }[config.teacher.contents]
        head = DTYPE_BYTES[dtype] * target.vocab * target.hidden
        parts["teacher"] = head + batch // processes * loss_tokens * per_token
    elif has_teacher:
        parts["teacher"] = target.weight_bytes(dtype)

    # Activations saved for the backward pass.
    microbatch, share = config.device_train_microbatch_size, batch // processes
    sequences = min(microbatch if microbatch != "auto" else 1 if on_gpu else share, share)
    per_layer = layer_bytes_per_token(student, config.precision, masks=masks)
    kept = student.layers * per_layer
    if config.activation_checkpointing:  # inputs of all layers, and all activations of the layer being recomputed
        kept = student.layers * MASTER_BYTES * student.hidden + per_layer
    parts["activations"] = sequences * seq_len * (kept + NORM_BYTES * student.hidden)

    # Logits and loss of one chunk of tokens, at the peak of the loss: both models' logits in their dtype, the
    # student's logits divided by the temperature and its log-probabilities (4 + 4), the teacher's log-probabilities,
    # its probabilities and the difference (4 + 4 + 4); of masks also the next token's log-probabilities with their
    # gradient. Measured on 1024 x 49152: 24.0. Several chunks also need an accumulator for the head's gradient.
    all_tokens = sequences * loss_tokens
    chunk = min(all_tokens, chunk_size(student.head_rows) * (GPU_CHUNKS if on_gpu else 1))
    per_entry = 2 * item + 20 + (8 if masks else 0) if has_teacher else TOKEN_LOSS_BYTES[config.precision]
    parts["logits and loss"] = chunk * student.head_rows * per_entry
    if all_tokens > chunk:
        parts["logits and loss"] += MASTER_BYTES * student.head_rows * student.hidden

    # Online: both models and the KV cache of one live request, and the last good draft with its moments.
    if config.online is not None and not masks:
        models = (target, student) if config.online.responses == "live" else ()
        parts["online"] = 3 * MASTER_BYTES * student.parameters() + sum(
            each.weight_bytes(recipe.target.dtype)
            + recipe.data.max_seq_len * each.kv_bytes_per_token(recipe.target.dtype)
            for each in models
        )
    return {name: size for name, size in parts.items() if size}


def longest_lengths(recipe: Recipe, *, on_text: bool) -> tuple[int, int]:
    """Return the maximum tokens of a training sequence, and the maximum that contribute to the loss."""
    if not on_text:
        return recipe.data.max_seq_len, recipe.data.longest_response
    assert recipe.text is not None  # guaranteed by the validation of recipes
    return recipe.text.max_seq_len - 1, recipe.text.max_seq_len - 1


def gathered_parameters(shape: Shape) -> int:
    """Return the parameters that FSDP2 holds unsharded: everything outside the layers, and two layers."""
    return shape.parameters() - (shape.layers - min(2, shape.layers)) * shape.parameters_per_layer()


def matrix_parameters(shape: Shape) -> int:
    """Return the parameters of the layers' matrices and the output head."""
    in_layer = sum(prod(size) for size in shape.layer_tensors().values() if len(size) > 1)
    return shape.layers * in_layer + shape.head_rows * shape.hidden


def layer_bytes_per_token(shape: Shape, precision: str, *, masks: bool = False) -> int:
    total = shape.norms_per_layer * NORM_BYTES * shape.hidden
    for hidden, query, key_value, intermediate in (KEPT[precision], *([KEPT_BY_MASKS[precision]] if masks else [])):
        total += hidden * shape.hidden + intermediate * shape.intermediate * max(1, shape.active_experts)
        total += query * shape.axis("query") + key_value * shape.axis("key_value")
    return total


# --- disk ----------------------------------------------------------------------------------------------------------

BYTES_PER_TOKEN = 12  # of responses: a token's id and its text as JSON
CHECKPOINTS = 3  # two are kept, and one more exists while it is written


def disk_bytes(recipe: Recipe, shapes: PlannedShapes, work: Work) -> dict[str, int]:
    """Estimate the maximum size of the run directory, by part."""
    target, draft, data, teacher = shapes.target, shapes.draft, recipe.data, recipe.distill.teacher
    parts = {"init": draft.weight_bytes(recipe.target.dtype)}
    if recipe.architecture.method == "learned_masks":
        trained = CHECKPOINTS * 3 * MASTER_BYTES * target.parameters()
        parts["masks"] = trained + target.weight_bytes(recipe.target.dtype)
    if recipe.target.path.endswith(".gguf"):
        parts["imported target"] = target.weight_bytes("float32")
    written = (work.prompts or 0) if recipe.distill.trains_on_responses else data.num_eval_prompts
    parts["responses"] = written * data.max_seq_len * BYTES_PER_TOKEN
    if teacher.is_cache:
        dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
        tokens = {
            "train": (work.sequences or 0) * work.response_tokens,
            "eval": data.num_eval_prompts * data.max_new_tokens,
        }
        parts["teacher cache"] = sum(
            count * bytes_per_token(teacher, split, hidden=target.hidden, rows=draft.head_rows, dtype=dtype)
            for split, count in tokens.items()
        )
    frozen = draft.vocab * draft.hidden if recipe.distill.freeze_input_embeddings else 0
    parts["checkpoints"] = CHECKPOINTS * MASTER_BYTES * (3 * draft.parameters() - 2 * frozen)
    parts["draft"] = draft.weight_bytes(recipe.export.dtype)
    return {name: size for name, size in parts.items() if size}


# --- hours ---------------------------------------------------------------------------------------------------------


def step_seconds(device: Device, shape: Shape, dtype: str, *, batch: int, context: int) -> float:
    """Estimate the seconds of a decoding step: the maximum of kernel launches, memory traffic and compute."""
    read = matrix_parameters(shape) * DTYPE_BYTES[dtype] + batch * context * shape.kv_bytes_per_token(dtype)
    flops_per_s = device.train_flops_per_s.get("fp32" if dtype == "float32" else "amp_bf16")
    computed = 0.0 if flops_per_s is None else batch * shape.flops_per_token(context) / flops_per_s
    return max(shape.layers * device.layer_ms / 1e3, read / (1e9 * device.bandwidth_gb_s), computed)


def stage_seconds(recipe: Recipe, shapes: PlannedShapes, work: Work, device: Device) -> dict[str, float | None]:
    """Estimate the seconds of the long stages on one device; None if a count, or the speed of an engine, is unknown.

    Empty if no training in distill.precision was measured on the device. Not counted: loading, pruning, writing files,
    evaluations.
    """
    data, config, target = recipe.data, recipe.distill, shapes.target
    flops_per_s = device.train_flops_per_s.get(config.precision)
    if flops_per_s is None:
        return {}
    seconds: dict[str, float | None] = {}
    if recipe.architecture.method == "learned_masks":
        masks, sequence = recipe.architecture.masks, [longest_lengths(recipe, on_text=True)]
        count = int(split_time(masks.max_duration)[0]) * masks.global_train_batch_size
        each = training_flops(target, sequence, teacher=forward_flops(target, sequence))
        seconds["masks"] = count * each / flops_per_s

    # Responses of the target: decoding steps of full batches, and prefill.
    held_out_only = data.responses == "given" or not config.trains_on_responses
    count = 0 if held_out_only else work.sequences
    seconds["generate"] = None
    if count is not None and recipe.generate.is_local:
        count += data.num_eval_prompts
        tokens = data.max_new_tokens if held_out_only else work.response_tokens
        context = work.prompt_tokens + tokens // 2
        one_step = step_seconds(device, target, recipe.target.dtype, batch=data.batch_size, context=context)
        read = count * forward_flops(target, [(work.prompt_tokens, 1)]) / flops_per_s
        seconds["generate"] = ceil(count / data.batch_size) * tokens * one_step + read

    # A cached teacher runs once over every response.
    if config.teacher.is_cache and work.sequences is not None:
        each = forward_flops(target, [(work.sequence_tokens, work.response_tokens)])
        seconds["cache"] = (work.sequences + data.num_eval_prompts) * each / flops_per_s

    seconds["distill"] = distill_seconds(recipe, shapes, work, device, flops_per_s)
    return seconds


def distill_seconds(
    recipe: Recipe, shapes: PlannedShapes, work: Work, device: Device, flops_per_s: float
) -> float | None:
    """Estimate the seconds of distillation; None if unknown, or online, where requests set the pace."""
    data, config, target, draft = recipe.data, recipe.distill, shapes.target, shapes.draft
    length, seq_len, loss_tokens = expected_steps(recipe, work)
    if length is None or config.online is not None:
        return None
    teacher, of_teacher = replace(target, head_vocab=draft.head_vocab), 0
    if any(term.loss.needs is not Knowledge.TOKENS for term in config.terms):
        if config.teacher.source == "live":
            of_teacher = forward_flops(teacher, [(seq_len, loss_tokens)])
        elif config.teacher.contents == "hidden":
            of_teacher = loss_tokens * head_flops(teacher.head_rows, teacher.hidden)
    each = training_flops(draft, [(seq_len, loss_tokens)], teacher=of_teacher)
    seconds = length.sequences * each / flops_per_s

    # On-policy samples: the student generates in every step.
    if config.samples != "teacher":
        place = {"batch": config.global_train_batch_size, "context": work.prompt_tokens + data.max_new_tokens // 2}
        one_step = step_seconds(device, draft, "float32", **place)
        if config.samples == "mix_token":
            one_step += step_seconds(device, target, recipe.target.dtype, **place)
        seconds += length.steps * data.max_new_tokens * one_step
    return seconds * len(recipe.architecture.stages or [draft])
