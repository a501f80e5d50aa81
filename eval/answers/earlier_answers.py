"""Answers that earlier runs wrote, taken where a prompt is asked again: more prompts cost what is new of them alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from eval.answers.shards import Claim, changed_settings, read_claims, shard_paths
from eval.answers.traces import Trace, traces_of_shard

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
