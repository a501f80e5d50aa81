"""What one process holds in the stages that only read models, at their fullest. Pure; no torch.

The fullest moment is a batch of texts as long as the recipe allows: weights, the keys and values that are kept, and
what one layer computes with. Held against measured peaks in docs/scale.md. On a
processor the C library keeps part of what is freed, and blocks that are asked for next do not fit into it: of 16 texts
of 480 tokens torch held 550 MiB beside the weights, and the process 905 to 965.
"""

from dataclasses import dataclass

from architectures.shapes.shape import DTYPE_BYTES, Shape
from distill.estimates.memory import KEPT_FREE
from distill.recipe.recipe import Recipe
from distill.recipe.sections.teacher import AnyCache, HiddenCache, keeps_states, teacher_dtype
from distill.teacher_cache.shard_sizes import MAX_SHARD_BYTES
from eval.targets.layer_memory import layer_memory

SCORE_BYTES = 8  # attention scores before and after the softmax, in float32 whatever the weights are
ENTRY_ROWS = 256  # answer tokens whose entries are made together (distill/caching/capture.py)
ENTRY_BYTES = 20  # of a token and vocabulary entry while a cache's entries are drawn: logits and their sums
SEARCH_BYTES = 24  # of a token and vocabulary entry in a search: both models' log-probabilities and their divergence
REPLAY_BYTES = 28  # likewise of a replay: both models' logits and log-probabilities, and the likeliest as one-hot ids
SEARCHES = ("greedy", "merge")  # architecture.method: layers are taken out, or merged, one by one
SUM_BYTES = 16  # of a channel of an activation whose squares are summed, in float64


@dataclass(frozen=True)
class Texts:
    """So many rows of so many tokens, read at once."""

    rows: int
    width: int

    @property
    def tokens(self) -> int:
        return self.rows * self.width


def layer_bytes(shape: Shape, dtype: str, texts: Texts, *, on_gpu: bool, masked: bool = False) -> int:
    """What one layer computes with while it reads some texts.

    Args:
        shape: Of the model.
        dtype: Of its weights and states.
        texts: That are read.
        on_gpu: Where a fused kernel keeps no attention scores.
        masked: Whether attention is given a mask. Keys and values are then repeated for every query head, and a
            processor's fused kernel takes them; it does not take shared ones.
    """
    memory = layer_memory(shape, dtype, keeps_scores=False)
    shared = shape.kv_heads < shape.heads and not masked
    scores = SCORE_BYTES * shape.heads * texts.width if shape.buckets or (shared and not on_gpu) else 0
    return memory.pass_bytes(texts.rows, texts.width) + texts.tokens * scores


def decoding_bytes(shape: Shape, dtype: str, rows: int, prompt: int, answer: int, *, on_gpu: bool) -> int:
    """Keys and values of rows that are decoded together, and the reading of their prompts."""
    kept = rows * (prompt + answer) * shape.kv_bytes_per_token(dtype)
    return kept + layer_bytes(shape, dtype, Texts(rows, prompt), on_gpu=on_gpu, masked=True)


def answers_bytes(recipe: Recipe, target: Shape, *, on_gpu: bool) -> int:
    """Beside the target's weights, while it answers."""
    data = recipe.data
    return decoding_bytes(
        target, recipe.target.dtype, data.batch_size, data.max_seq_len - 1, data.max_new_tokens, on_gpu=on_gpu
    )


def calibration_bytes(recipe: Recipe, source: Shape, *, on_gpu: bool) -> int:
    """Beside the weights of what is cut, while scores are computed: one sequence at a time."""
    width, wanted = recipe.architecture.calibration.sequence_len, recipe.architecture
    at_work = layer_bytes(source, recipe.target.dtype, Texts(1, width), on_gpu=on_gpu)
    summed = width * SUM_BYTES * max(source.hidden, source.intermediate)
    if wanted.method not in SEARCHES:
        return at_work + summed
    sequences = wanted.calibration.tokens // width
    known = sequences * width * 2 * source.hidden * DTYPE_BYTES[recipe.target.dtype]
    layers = source.layers * source.parameters_per_layer() * DTYPE_BYTES[recipe.target.dtype]
    merged = layers if wanted.method == "merge" else 0
    return at_work + known + merged + width * source.vocab * SEARCH_BYTES


def capture_bytes(recipe: Recipe, cache: AnyCache, target: Shape, written_bytes: int, *, on_gpu: bool) -> int:
    """Beside the teacher's weights, or its head's, while a cache is written.

    Args:
        recipe: Says how many answers are read at once.
        cache: That is written.
        target: The teacher's shape.
        written_bytes: Of the whole cache on the disk.
        on_gpu: Where the rows of a file, which wait for the last, are not in the device's memory.
    """
    dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
    batch = Texts(recipe.data.batch_size, recipe.data.max_seq_len)
    read = 0 if keeps_states(cache) else layer_bytes(target, dtype, batch, on_gpu=on_gpu)
    entries = 0 if isinstance(cache, HiddenCache) else ENTRY_ROWS * target.vocab * ENTRY_BYTES
    waiting = 0 if on_gpu else 2 * min(MAX_SHARD_BYTES, written_bytes)
    return max(read, entries) + waiting


def scoring_bytes(recipe: Recipe, target: Shape, draft: Shape, *, on_gpu: bool) -> int:
    """Beside the weights of target and drafts: answers decoded, replayed, or timed, whichever takes most."""
    dtype, config = recipe.eval.dtype, recipe.eval
    prompt = config.max_prompt_len if config.tasks else min(config.max_prompt_len, recipe.data.max_seq_len - 1)
    text = Texts(1, prompt + config.max_new_tokens)
    answered = decoding_bytes(target, dtype, config.batch_size, prompt, config.max_new_tokens, on_gpu=on_gpu)
    replayed = layer_bytes(target, dtype, text, on_gpu=on_gpu) + config.max_new_tokens * target.vocab * REPLAY_BYTES
    both = target.kv_bytes_per_token(dtype) + draft.kv_bytes_per_token(dtype)
    context = max((*config.latency_contexts, text.width))
    timed = max((1, *config.latency_batch_sizes)) * context * both
    return max(answered, replayed, timed)


def resident(working_bytes: int, *, on_gpu: bool) -> int:
    """What the process takes for so many bytes of tensors that come and go."""
    return working_bytes if on_gpu else int(KEPT_FREE * working_bytes)
