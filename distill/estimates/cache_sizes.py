"""What a cache of the teacher takes on the disk, told before it is made. No torch."""

from architectures.shapes.shape import DTYPE_BYTES
from distill.estimates.expected_work import Work
from distill.recipe.recipe import Recipe
from distill.recipe.sections.data import DataConfig
from distill.recipe.sections.teacher import Cache, bytes_per_token, keeps_states, teacher_dtype


def cache_sizes(recipe: Recipe, work: Work, *, hidden: int, rows: int) -> dict[str, int]:
    """Bytes of what there will be for the answers on disk, or for the longest there can be; none without a cache.

    Args:
        recipe: Says of which teacher.
        work: Its answers.
        hidden: Width of the teacher's last hidden state.
        rows: Ids that kept entries are of.
    """
    teacher, tokens = recipe.distill.teacher, answer_tokens(recipe.data, work)
    if not isinstance(teacher, Cache):
        return {}
    dtype = teacher_dtype(recipe.target.dtype, recipe.distill.precision)
    widths = {"hidden": hidden, "rows": rows, "dtype": dtype}
    kept = sum(count * bytes_per_token(teacher, name, **widths) for name, count in tokens.items())
    cache = {f"teacher cache, {teacher.contents}": kept}
    if not keeps_states(teacher):
        return cache
    return {"hidden states beside the answers": sum(tokens.values()) * hidden * DTYPE_BYTES[dtype], **cache}


def answer_tokens(data: DataConfig, work: Work) -> dict[str, int]:
    """Tokens of the answers to train on and of those to evaluate on."""
    train = (work.answers or 0) * data.longest_answer if work.answer_tokens is None else work.answer_tokens
    return {"train": train, "eval": data.num_eval_prompts * data.max_new_tokens}
