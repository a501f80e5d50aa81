"""Answers that earlier runs wrote, taken where a prompt is asked again: more prompts cost what is new of them alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.errors import UserError
from eval.answers.asked_turns import first_turns
from eval.answers.shards import Claim, changed_settings, read_claims, shard_paths
from eval.answers.token_ids import unknown_id
from eval.answers.traces import Trace, traces_of_shard
from eval.prompts import Prompt

NAMES = ("train", "eval")
CHOOSING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "draws")
DECIDING = ("answers", "target", "template", "dtype", "max_new_tokens", *CHOOSING)
OPTION = "data.answers_from"


def earlier_answers(folders: Sequence[Path], settings: Mapping[str, Any]) -> dict[tuple[int, ...], Trace]:
    """The answers in some folders by the tokens of their prompts; of two to one prompt the first.

    Those of an interrupted run count as far as it came.

    Args:
        folders: Of answers that a target wrote.
        settings: All that the answers now wanted are made from. Of these, earlier ones must agree in what decides an
            answer: target, chat template, number type, length and temperature, not in prompts, seed or batches.

    Raises:
        UserError: If a folder holds no answers, others than those, or a shard is damaged.
    """
    answers: dict[tuple[int, ...], Trace] = {}
    for folder in folders:
        for name, claim in answered(folder).items():
            refuse_other_answers(folder, name, claim, settings)
            for shard in filter(Path.is_file, shard_paths(folder, name, claim["num_shards"])):
                for trace in traces_of_shard(shard):
                    answers.setdefault(trace.prompt_ids, trace)
    return answers


def num_answered(prompts: Sequence[Prompt], folders: Sequence[Path]) -> int:
    """How many answers to prompts, later turns included, the folders hold, by what was asked; reads no target.

    Raises:
        UserError: If a folder holds no answers, or a shard is damaged.
    """
    answers = {
        fingerprint_value(trace.messages): trace.answer
        for folder in folders
        for name, claim in answered(folder).items()
        for shard in filter(Path.is_file, shard_paths(folder, name, claim["num_shards"]))
        for trace in traces_of_shard(shard)
    }
    count, turns = 0, first_turns(prompts) if answers else []
    while turns:
        asked = [(turn, answers.get(fingerprint_value(turn.messages))) for turn in turns]
        count += sum(answer is not None for _, answer in asked)
        turns = [turn.following(answer) for turn, answer in asked if answer is not None and turn.later_turns]
    return count


def refuse_ids_beyond(folders: Sequence[Path], model: str, vocab_size: int) -> None:
    """Raise UserError for earlier answers with a token id that a model has no row for.

    Raises:
        UserError: Naming the shard, the answer and the id; or if a folder holds no answers, or a shard is damaged.
    """
    for folder in folders:
        for name, claim in answered(folder).items():
            for shard in filter(Path.is_file, shard_paths(folder, name, claim["num_shards"])):
                for trace in traces_of_shard(shard):
                    if (unknown := unknown_id(trace.token_ids, vocab_size)) is not None:
                        raise UserError(
                            f"{OPTION}: {shard}: token id {unknown} of answer {trace.id} is beyond the vocabulary of "
                            f"{model}, vocab_size {vocab_size}. Leave the folder out, or answer its prompts again."
                        )


def answered(folder: Path) -> dict[str, Claim]:
    """What a folder says of its answers, by the name of their shards.

    Raises:
        UserError: If it holds none.
    """
    claims = {name: claim for name, claim in read_claims(folder).items() if name in NAMES}
    if not claims:
        raise UserError(
            f"{OPTION}: {folder}: holds no answers. Name the data folder of an earlier run, as runs/NAME/data."
        )
    return claims


def refuse_other_answers(folder: Path, name: str, claim: Claim, settings: Mapping[str, Any]) -> None:
    """Raise UserError if answers were made otherwise than those that are wanted now."""
    changes = changed_settings(
        {key: claim["settings"].get(key) for key in DECIDING}, {key: settings.get(key) for key in DECIDING}
    )
    if changes:
        raise UserError(
            f"{OPTION}: {folder}: its {name} answers were made with other settings: {'; '.join(changes)}. "
            "Set them alike, or leave the folder out: all prompts are then answered anew."
        )
