"""Drafts with a small head, of every family, cut out of random checkpoints; and one whose tokenizer has merges."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from architectures.pruning.prune import prune_checkpoint
from tests.architectures.cuts import plan_for
from tests.conftest import edit_json

IDS = (0, 1, 2, *range(4, 200, 3), 259)  # some of the tiny tokenizer's, and one that pads the vocabulary
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "a n"]


@pytest.fixture(scope="session")
def cut_draft(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """cut_draft(target, ids) -> folder of its first and last layer with a head of these ids."""

    def cut(target: Path, ids: Sequence[int] = IDS) -> Path:
        plan = plan_for(target, layers=2).with_vocabulary(tuple(ids))
        out = tmp_path_factory.mktemp("small") / "draft"
        prune_checkpoint(target, plan, out)
        return out

    return cut


@pytest.fixture(scope="session")
def small_draft(cut_draft, family_checkpoint) -> Callable[[str], Path]:
    """small_draft(family) -> folder of a draft, made once; not to be changed."""
    return cache(lambda family: cut_draft(family_checkpoint(family)))


@pytest.fixture(scope="session")
def merging_target(make_checkpoint, with_merges) -> Path:
    """A target whose tokenizer builds "the", "in" and "an" of bytes, and frames texts with its first special token."""
    folder = with_merges(make_checkpoint(seed=9, pad_token_id=2), MERGES)
    start = {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
    frame = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": start},
    }
    edit_json(folder / "tokenizer.json", post_processor=frame)
    return folder
