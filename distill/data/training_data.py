"""The training data: prompts from files, data sets or the target itself, each answered by the target.

Training learns from the target's own answers, because those are the contexts in which the draft will propose.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from architectures.errors import UserError
from architectures.hashes import fingerprint_value
from architectures.manifest import Counts, SplitCounts
from architectures.settings import WHOLE, Holding
from architectures.sharing import ALONE, Share
from distill.data.conversations import Conversation
from distill.data.self_written import SelfWriting, write_own_prompts
from distill.recipe.sections import DataConfig
from eval.decoding.generate import Answerer, Kind, within_context, write_traces
from eval.models import load_tokenizer
from eval.prompts import Prompt, drop_too_long, load_prompts, render_prompt
from eval.responses import EVERY_FILE, DecodingSettings, Part, missing_shards, read_traces

Row = TypeVar("Row", bound=Prompt | Conversation)


def drop_duplicates(prompts: Sequence[Row]) -> list[Row]:
    """The prompts that ask something new, so that none is both held out and trained on; says how many are not."""
    different = distinct(prompts)
    if len(different) < len(prompts):
        print(
            f"{len(prompts) - len(different)} of {len(prompts)} prompts are duplicates and are left out",
            file=sys.stderr,
        )
    return different


def distinct(prompts: Sequence[Row]) -> list[Row]:
    """The first of all prompts that ask the same."""
    first: dict[str, Row] = {}
    for prompt in prompts:
        content = {name: value for name, value in asdict(prompt).items() if name not in ("source", "category", "task")}
        first.setdefault(fingerprint_value(content), prompt)
    return list(first.values())


def hold_out(
    prompts: Sequence[Row], num_eval_prompts: int, *, seed: int, least_left: int = 1
) -> tuple[list[Row], list[Row]]:
    """The prompts to train on and those held out, drawn with the seed; both in their old order.

    Args:
        prompts: All different.
        num_eval_prompts: How many to hold out.
        seed: Of the draw.
        least_left: How many there must be to train on.

    Raises:
        UserError: If there are fewer.
    """
    if num_eval_prompts + least_left > len(prompts):
        problem = (
            f"leaves none of the {len(prompts)} prompts to train on"
            if least_left
            else f"is more than the {len(prompts)} prompts"
        )
        raise UserError(f"data.num_eval_prompts={num_eval_prompts} {problem}. Hold out fewer, or add prompts.")
    drawn = set(random.Random(seed).sample(range(len(prompts)), num_eval_prompts))  # noqa: S311 - not for secrets
    train = [prompt for index, prompt in enumerate(prompts) if index not in drawn]
    return train, [prompts[index] for index in sorted(drawn)]


NO_ANSWERS = SplitCounts(prompts=0, answers=0, answer_tokens=0), 0  # as count_answers counts


def generate_answers(
    target: Path,
    config: DataConfig,
    out: Path,
    *,
    seed: int,
    dtype: str,
    to_train_on: bool = True,
    answered_by: Kind = Answerer,
    holding: Holding = WHOLE,
    part: Part = EVERY_FILE,
    share: Share = ALONE,
) -> Counts | None:
    """Write the target's answers to out/train-*.jsonl and, for prompts held out of training, to out/eval-*.jsonl.

    An interrupted run continues. Which prompts are held out depends on the prompts and the seed alone.

    Args:
        target: Its Hugging Face folder.
        config: Section `data` of the recipe.
        out: Folder of the answers.
        seed: Of every random draw.
        dtype: Number type of the target while it writes.
        to_train_on: Whether answers are what is trained on. Otherwise held-out prompts alone are answered, and all
            prompts may be held out.
        answered_by: An Answerer, one that keeps hidden states as well, or an engine.
        holding: How the target is held.
        part: Which files are written here; other jobs write the others.
        share: This process's share of them.

    Returns:
        None while files of other parts are missing, else:
        counts for the manifest: prompts, self_written, duplicates, too_long; and of "train" and "eval" each prompts,
        answers and answer_tokens. A prompt of several turns has several answers; too_long counts turns without one.

    Raises:
        UserError: If there are no prompts, too few to hold some out, or out holds answers made otherwise.
    """
    named = load_prompts(config.prompts)  # first, so that a bad row is refused before any work
    held = {"holding": holding, "share": share}
    written = write_own_prompts_if_asked(target, config, out, seed=seed, dtype=dtype, **held)
    prompts = [*named, *written]
    distinct = drop_duplicates(prompts)
    settings = within_context(target, decoding_settings(config, seed=seed, dtype=dtype, holding=holding))
    tokenizer = load_tokenizer(target)
    lengths = [len(render_prompt(tokenizer, prompt.messages)) for prompt in distinct]
    fitting = drop_too_long(distinct, lengths, settings.max_prompt_len)
    train, held_out = hold_out(fitting, config.num_eval_prompts, seed=seed, least_left=1 if to_train_on else 0)
    answered = {"eval": held_out, "train": train} if to_train_on else {"eval": held_out}
    for name, split in answered.items():
        write_traces(target, split, out, settings, name=name, answered_by=answered_by, share=share, part=part)
    if share.lead(lambda: missing_shards(out, list(answered))):
        return None
    counts = {"train": NO_ANSWERS, **{name: count_answers(out, name, split) for name, split in answered.items()}}
    num_left_out = sum(left_out for _, left_out in counts.values())
    return {
        "prompts": len(prompts),
        "self_written": len(written),
        "duplicates": len(prompts) - len(distinct),
        "too_long": len(distinct) - len(fitting) + num_left_out,
        "train": counts["train"][0],
        "eval": counts["eval"][0],
    }


def write_own_prompts_if_asked(
    target: Path,
    config: DataConfig,
    out: Path,
    *,
    seed: int,
    dtype: str,
    holding: Holding = WHOLE,
    share: Share = ALONE,
) -> list[Prompt]:
    """The prompts the recipe asks the target to write itself; none if it asks for none."""
    if config.self_written_prompts == 0:
        return []
    sizes = {"batch_size": config.batch_size, "shard_size": config.shard_size}
    settings = SelfWriting(seed=seed, dtype=dtype, **sizes, holding=holding)
    return write_own_prompts(target, config.self_written_prompts, out, settings, share)


def decoding_settings(config: DataConfig, *, seed: int, dtype: str, holding: Holding = WHOLE) -> DecodingSettings:
    """How the recipe wants the answers decoded."""
    return DecodingSettings(
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        batch_size=config.batch_size,
        shard_size=config.shard_size,
        max_prompt_len=config.max_seq_len - 1,  # space for one token of the answer
        seed=seed,
        dtype=dtype,
        holding=holding,
    )


def count_answers(out: Path, name: str, prompts: Sequence[Prompt]) -> tuple[SplitCounts, int]:
    """What is on disk for some prompts, and how many of their turns have no answer there."""
    traces = read_traces(out, name)
    num_tokens = sum(len(trace.answer_ids) for trace in traces)
    counts = SplitCounts(prompts=len(prompts), answers=len(traces), answer_tokens=num_tokens)
    return counts, sum(1 + len(prompt.later_turns) for prompt in prompts) - len(traces)
