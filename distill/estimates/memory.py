"""What one training process holds at its fullest, part by part, before anything is loaded. Pure; no torch.

The fullest moment is the end of a forward pass: weights, gradients of the micro-batches before, moments, the teacher,
what the student's layers keep for the backward pass, and the loss. A GPU's own context (about half a GiB) and the
fragments of its allocator come on top; docs/recipes.md says how far the sum was from a measured peak.

What layers keep was counted with torch's saved-tensor hooks on transformers 5.23 (LLaMA, Qwen2, Mistral; a law of
tests/distill/test_memory.py), for attention by a fused kernel that keeps no scores: torch's processor kernel is none
where query heads share keys, and keeps 12 bytes per query channel and 4 per head and token attended to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from architectures.families import FAMILIES
from architectures.pages.counts import number_of
from architectures.shapes.shape import DTYPE_BYTES, Shape
from distill.estimates.trainings import Training
from distill.recipe.sections.token_selection import GPU_CHUNKS, chunk_size

MASTER_BYTES = 4  # the student's weights, gradients and each of Adam's two moments are float32
KEPT_FREE = 1.75  # of a processor's memory for what comes and goes, what is freed and not given back included
NORM_BYTES = 8  # of a norm, per channel and token: its input and its normalised input, in float32
SHARED_KEYS_BYTES, SCORE_BYTES = 12, 4  # of a query channel, and of a head and token attended to
GROUP_OF_PROCESSES = 8
# Of cross_entropy in a chunk, per token and vocabulary entry, its gradient included: logits, their float32 copy and
# log-probabilities, and the gradients of these. Measured as loss_bytes: 14.1 and 16.1 (12.1 and 12.1 where one chunk
# holds all tokens).
TOKEN_LOSS_BYTES = {"amp_bf16": 14, "fp32": 16}


@dataclass(frozen=True)
class KeptBytes:
    """Bytes that one layer keeps per token, for every channel of an axis; norms come on top."""

    hidden: int
    query: int
    key_value: int
    intermediate: int


# amp_bf16: the inputs of five projections are copied to bfloat16. fp32: a norm's output serves them all.
KEPT = {"amp_bf16": KeptBytes(10, 4, 4, 8), "fp32": KeptBytes(8, 8, 8, 16)}
KEPT_BY_GATES = {"amp_bf16": KeptBytes(4, 2, 0, 2), "fp32": KeptBytes(8, 4, 0, 4)}


@dataclass(frozen=True)
class Part:
    """One part of the memory: what it is, its bytes, and where the number comes from."""

    name: str
    size_bytes: int
    origin: str


def process_counts(training: Training) -> list[int]:
    """One process, and the most of a machine's that can share the batch."""
    most = max(n for n in range(1, GROUP_OF_PROCESSES + 1) if training.batch % n == 0)
    return sorted({1, most})


def memory_parts(training: Training, processes: int) -> list[Part]:
    """What one of so many processes holds at its fullest."""
    passing = [activation_part(training, processes), loss_part(training, processes)]
    held = [each for of in (student_parts, replica_parts, teacher_parts) for each in of(training, processes)]
    gathered = [part for part in held if "gathered" in part.name]
    return [
        *held,
        *passing,
        *freed_parts(training, together([*passing, *gathered])),
        *new_answer_parts(training, processes),
        *request_parts(training),
    ]


def freed_parts(training: Training, passing_bytes: int) -> list[Part]:
    """What a processor's C library keeps of what comes and goes in a step, which nothing else then fits into."""
    if training.on_gpu:
        return []
    kept = int((KEPT_FREE - 1) * passing_bytes)
    return [
        Part("freed, and kept by the C library", kept, f"{KEPT_FREE - 1:g} x activations, loss, and what is gathered")
    ]


def request_parts(training: Training) -> list[Part]:
    """What learning from requests takes beside the training: what serves, and the draft that may come back."""
    parts = []
    if training.serving_bytes:
        origin = "target and draft in a process of its own, keys and values of one request"
        parts.append(Part("what answers requests", training.serving_bytes, origin))
    if training.keeps_good:
        trained = training.trained_parameters
        size = 3 * MASTER_BYTES
        parts.append(Part("last good draft", trained * size, f"{trained:,} parameters x {size} bytes, moments too"))
    return parts


def new_answer_parts(training: Training, processes: int) -> list[Part]:
    """Keys and values of answers written anew, before there are activations: what they take beyond those."""
    sequences = training.batch // processes
    held = sequences * training.seq_len * training.written_bytes
    later = activation_part(training, processes).size_bytes + loss_part(training, processes).size_bytes
    if held <= later:
        return []
    counted = f"{number_of(sequences, 'sequence')} x {training.seq_len} tokens x {training.written_bytes:,} bytes"
    origin = f"{counted}, less activations, logits and loss, which are not there then"
    return [Part("keys and values of new answers", held - later, origin)]


def held_bytes(training: Training, processes: int) -> int:
    """The least one of so many processes can do with: student and teacher, and what an optimiser's step looks at."""
    return together([*student_parts(training, processes), *teacher_parts(training, processes)])


def student_parts(training: Training, processes: int) -> list[Part]:
    """The student's weights, and as much for the gradients and moments of what is trained; a process's share."""
    shards = min(processes, training.shard_degree or processes) if training.sharded else 1
    trained = training.trained_parameters
    divided = f" / {shards} processes" if shards > 1 else ""
    return [
        Part(
            f"{name}, float32",
            count * copies * MASTER_BYTES // shards,
            f"{count:,} parameters x {copies * MASTER_BYTES} bytes{divided}",
        )
        for name, count, copies in (
            ("student weights", training.student.parameters(), 1),
            ("gradients", trained, 1),
            ("Adam's two moments", trained, 2),
        )
    ]


def teacher_parts(training: Training, processes: int) -> list[Part]:
    """The frozen teacher: all of it where it runs; where it is cached its head, for evaluations, and a batch's rows."""
    teacher = training.teacher
    if teacher is None:
        return []
    dtype, item = training.teacher_dtype, DTYPE_BYTES[training.teacher_dtype]
    rows = kept_rows_parts(training)
    if training.teacher_sharded and processes > 1:
        return [*sharded_teacher_parts(teacher, dtype, processes), *rows]
    if training.cached_bytes is None:
        origin = f"{teacher.parameters():,} parameters x {item} bytes, whole"
        return [Part(f"teacher weights, {dtype}", teacher.weight_bytes(dtype), origin), *rows]
    head, tokens = teacher.vocab * teacher.hidden, training.batch // processes * training.loss_tokens
    return [
        Part(f"teacher's head, {dtype}", head * item, f"{teacher.vocab:,} x {teacher.hidden:,} x {item} bytes"),
        *rows,
        Part("cached teacher's rows", tokens * training.cached_bytes, f"{tokens:,} x {training.cached_bytes:,} bytes"),
    ]


def kept_rows_parts(training: Training) -> list[Part]:
    """The rows of the teacher's head that a student with a small one is compared with, copied out of it once."""
    teacher, rows = training.teacher, training.student.head_vocab
    if teacher is None or not rows or not training.logits_of_teacher:
        return []
    item = DTYPE_BYTES[training.teacher_dtype]
    origin = f"{rows:,} x {teacher.hidden:,} x {item} bytes"
    return [Part(f"rows of the teacher's head, {training.teacher_dtype}", rows * teacher.hidden * item, origin)]


def sharded_teacher_parts(teacher: Shape, dtype: str, processes: int) -> list[Part]:
    """A process's share of the teacher, and what is whole while it answers (distill/teacher/sharded.py)."""
    item, count = DTYPE_BYTES[dtype], teacher.parameters()
    at_once = count - (teacher.layers - min(2, teacher.layers)) * teacher.parameters_per_layer()
    origin = f"{count:,} parameters x {item} bytes / {processes} processes"
    return [
        Part(f"teacher weights, {dtype}", count * item // processes, origin),
        Part("teacher's parts gathered by FSDP2", at_once * item, "embedding, head and two layers"),
    ]


def replica_parts(training: Training, processes: int) -> list[Part]:
    """Further copies of weights and gradients: for matrix products, and for talking to other processes."""
    student, item = training.student, 2 if training.precision == "amp_bf16" else 4
    if training.sharded:
        at_once = student.parameters() - (student.layers - min(2, student.layers)) * student.parameters_per_layer()
        origin = "embedding, head and two layers, gathered, and their gradients"
        return [Part("parts gathered by FSDP2", 2 * item * at_once, origin)]
    parts = []
    if training.precision == "amp_bf16":
        matrices = matrix_parameters(student)
        parts.append(Part("student matrices, bfloat16", 2 * matrices, f"{matrices:,} x 2 bytes, for its products"))
    if processes > 1:
        size = training.trained_parameters * MASTER_BYTES
        parts.append(Part("gradient buckets of DDP, float32", size, "as the gradients"))
    return parts


def matrix_parameters(shape: Shape) -> int:
    """Parameters of matrix products: those of the layers, and the output head."""
    in_layer = sum(prod(size) for size in shape.layer_tensors().values() if len(size) == 2)
    return shape.layers * in_layer + shape.head_rows * shape.hidden


def sequences_at_once(training: Training, processes: int) -> int:
    """Sequences of one forward pass on one process."""
    share = training.batch // processes
    return share if training.microbatch is None else min(training.microbatch, share)


def activation_part(training: Training, processes: int) -> Part:
    """What the student's layers keep from their forward pass for their backward pass."""
    sequences, student = sequences_at_once(training, processes), training.student
    tokens, per_token = sequences * training.seq_len, layer_bytes_per_token(training)
    if training.recomputed:
        return recomputed_part(training, tokens, per_token)
    size = tokens * (student.layers * per_token + NORM_BYTES * student.hidden)
    origin = (
        f"{number_of(sequences, 'sequence')} x {training.seq_len} tokens x "
        f"{number_of(student.layers, 'layer')} x {per_token:,} bytes, "
        "and the last norm"
    )
    return Part("activations", size, origin)


def recomputed_part(training: Training, tokens: int, per_token: int) -> Part:
    """As activations, where each layer keeps its input, and one at a time all that it needs."""
    student = training.student
    size = tokens * (student.layers * MASTER_BYTES * student.hidden + per_token + NORM_BYTES * student.hidden)
    origin = (
        f"{tokens:,} tokens x ({number_of(student.layers, 'layer')} x {MASTER_BYTES * student.hidden:,} bytes of their "
        f"inputs, and {per_token:,} of the one that is computed again), and the last norm"
    )
    return Part("activations", size, origin)


def layer_bytes_per_token(training: Training) -> int:
    """Bytes one layer of the student keeps per token."""
    shape, roles = training.student, FAMILIES[training.student.family].layer
    norms = sum(part.axes == ("hidden",) for part in roles.values())
    total = norms * NORM_BYTES * shape.hidden
    for kept in (KEPT[training.precision], *([KEPT_BY_GATES[training.precision]] if training.gated else [])):
        total += kept.hidden * shape.hidden + kept.intermediate * shape.intermediate
        total += kept.query * shape.axis("query") + kept.key_value * shape.axis("key_value")
    total += 0 if training.on_gpu else shared_keys_bytes(training)
    return total + (mask_bytes_per_token(training) if training.packing else 0)


def shared_keys_bytes(training: Training) -> int:
    """What attention keeps of a token on a processor, whose fused kernel takes no keys that query heads share."""
    shape = training.student
    if shape.kv_heads == shape.heads or training.packing:
        return 0
    return SHARED_KEYS_BYTES * shape.axis("query") + SCORE_BYTES * shape.heads * training.seq_len


def mask_bytes_per_token(training: Training) -> int:
    """What one layer keeps beyond that where rows hold several texts and attention needs a mask.

    The mask is kept as numbers, one for each slot of the row, here as many as the longest sequence has tokens; and
    transformers repeats keys and values for every query head of their group.
    """
    item, repeated = 2 if training.precision == "amp_bf16" else 4, KEPT[training.precision].key_value
    return item * training.seq_len + repeated * (training.student.axis("query") - training.student.axis("key_value"))


def loss_part(training: Training, processes: int) -> Part:
    """Logits of student and teacher and what the loss computes from them, of one chunk of tokens.

    It is distill/losses/chunked.py that cuts them. Where there is more than one chunk, the gradient of the output head
    is summed in float32 beside it.
    """
    vocab, hidden = training.student.head_rows, training.student.hidden
    all_tokens = sequences_at_once(training, processes) * training.loss_tokens
    tokens = min(all_tokens, chunk_size(vocab) * (GPU_CHUNKS if training.on_gpu else 1))
    per_logit = mask_loss_bytes(training) if training.gated else distillation_loss_bytes(training)
    size, origin = tokens * vocab * per_logit, f"{tokens} tokens x {vocab:,} entries x {per_logit} bytes"
    if all_tokens > tokens:
        size += vocab * hidden * MASTER_BYTES
        origin += f", and the head's gradient, {vocab:,} x {hidden:,} x {MASTER_BYTES} bytes"
    return Part("logits and loss", size, origin)


def distillation_loss_bytes(training: Training) -> int:
    """As the loss of both models, or of the answers' tokens alone where no teacher is asked."""
    return TOKEN_LOSS_BYTES[training.precision] if training.teacher is None else loss_bytes(training.precision)


def loss_bytes(precision: str) -> int:
    """Per token and vocabulary entry of a chunk, at the loss's own fullest moment.

    Both models' logits in their number type (2 + 2, or 4 + 4), the student divided by the temperature and its
    log-probabilities (4 + 4), and the teacher's log-probabilities, probabilities and the difference (4 + 4 + 4).
    Measured on 1024 x 49152 in bfloat16: 24.0, and no more in the backward pass.
    """
    return 2 * (2 if precision == "amp_bf16" else 4) + 20


def mask_loss_bytes(training: Training) -> int:
    """As the loss, with the next token's log-probabilities and their gradient (4 + 4) beside it."""
    return (loss_bytes(training.precision) if training.teacher is not None else 8) + 8


def together(parts: Sequence[Part]) -> int:
    return sum(part.size_bytes for part in parts)
