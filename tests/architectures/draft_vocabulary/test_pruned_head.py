"""Every family with its head cut to some ids: logits are the uncut draft's at these ids, whatever else is cut."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.pruning.plan import PruningPlan, broken_laws, load_plan
from architectures.pruning.prune import prune_checkpoint
from architectures.pruning.selection import plan_pruning
from architectures.shapes.section import ArchitectureConfig
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from architectures.vocabulary import (
    DRAFT_VOCABULARY_NAME,
    DraftVocabulary,
    read_draft_vocabulary,
    write_draft_vocabulary,
)
from architectures.vocabulary_head import head_ids
from eval.models.loading import load_model
from tests.families import DECODER_ONLY

IDS = torch.arange(3, 35)[None]
SAID = (0, 2, 3, 64, 65, 200, 258)
CLOSE = {"rtol": 1e-4, "atol": 2e-5}  # float32: one product over other rows, and Gemma's scale in another factor
WIDE_CUT = {"layers": 2, "hidden": "0.75x", "intermediate": 64, "heads": 2, "kv_heads": 1}
LAYERS_ALONE = {"layers": 2}


def cuts_of(family: str) -> list[dict]:
    return [LAYERS_ALONE, WIDE_CUT] if FAMILIES[family].width else [LAYERS_ALONE]


TABLE = [(family, tied, cut) for family, tied in product(DECODER_ONLY, (True, False)) for cut in cuts_of(family)]


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint, perturb, family_settings) -> Callable[[str, bool], Path]:
    """The random checkpoint of a family whose head is the embedding, or is not; made once."""
    made: dict[tuple[str, bool], Path] = {}

    def of(family: str, tied: bool) -> Path:
        if (family, tied) not in made:
            settings = {**family_settings[family], "tie_word_embeddings": tied}
            made[family, tied] = perturb(make_checkpoint(model_type=family, **settings))
        return made[family, tied]

    return of


def shape_of(folder: Path) -> Shape:
    return Shape.from_config(read_config(folder))


def plan_for(folder: Path, **architecture) -> PruningPlan:
    wanted = {"method": "first_last", "width_method": "random", **architecture}
    return plan_pruning(shape_of(folder), ArchitectureConfig.model_validate(wanted), seed=3)


def logits(folder: Path) -> Tensor:
    with torch.inference_mode():
        return load_model(folder, dtype="float32", device="cpu")(IDS, use_cache=False).logits


@pytest.mark.parametrize(("family", "tied", "cut"), TABLE)
def test_logits_are_the_uncut_drafts_at_the_ids_said(checkpoint, tmp_path, family, tied, cut):
    source = checkpoint(family, tied)
    plan = plan_for(source, **cut)
    prune_checkpoint(source, plan, tmp_path / "whole")
    prune_checkpoint(source, plan.with_vocabulary(SAID), tmp_path / "small", origin={"from": "a test"})

    torch.testing.assert_close(logits(tmp_path / "small"), logits(tmp_path / "whole")[..., list(SAID)], **CLOSE)
    model = load_model(tmp_path / "small", dtype="float32", device="cpu")
    assert head_ids(model).tolist() == list(SAID)
    assert model.get_input_embeddings().weight.shape[0] == 264  # a draft reads every id
    assert model.num_parameters() == shape_of(tmp_path / "small").parameters()
    assert read_draft_vocabulary(tmp_path / "small") == DraftVocabulary(
        ids=SAID, vocab_size=264, origin={"from": "a test"}
    )


@pytest.mark.parametrize("family", DECODER_ONLY)
def test_rows_of_the_head_are_the_sources_bit_for_bit(checkpoint, tmp_path, family):
    for tied in (True, False):
        source, out = checkpoint(family, tied), tmp_path / str(tied)
        prune_checkpoint(source, plan_for(source, layers=4).with_vocabulary(SAID), out)
        rows, names = load_file(source / "model.safetensors"), FAMILIES[family]
        before = rows[names.weight("embedding" if tied else "head")]
        after = load_file(out / "model.safetensors")
        assert torch.equal(after[names.weight("head")], before[list(SAID)])
        assert torch.equal(after[names.weight("embedding")], rows[names.weight("embedding")])


@pytest.mark.parametrize("family", ["gemma2", "llama", "gpt2"])
@pytest.mark.parametrize("vocab_size", [260, 280])
def test_a_target_with_more_or_fewer_rows_than_the_source_keeps_the_ids(checkpoint, tmp_path, family, vocab_size):
    source = checkpoint(family, True)
    plan = plan_for(source, layers=2).with_vocab(vocab_size)
    prune_checkpoint(source, plan, tmp_path / "whole")
    prune_checkpoint(source, plan.with_vocabulary(SAID), tmp_path / "small")

    torch.testing.assert_close(logits(tmp_path / "small"), logits(tmp_path / "whole")[..., list(SAID)], **CLOSE)
    assert read_draft_vocabulary(tmp_path / "small").vocab_size == vocab_size
    assert shape_of(tmp_path / "small") == plan.with_vocabulary(SAID).draft


@pytest.mark.parametrize("vocab_size", [264, 260, 280])
def test_a_draft_of_a_small_head_keeps_its_ids_when_it_is_cut_again(checkpoint, tmp_path, vocab_size):
    target = checkpoint("llama", True)
    first = plan_for(target, layers=3).with_vocabulary(SAID)
    prune_checkpoint(target, first, tmp_path / "first", origin={"from": "a test"})
    again = plan_for(tmp_path / "first", layers=2).with_vocab(vocab_size)
    assert again.vocabulary is None
    prune_checkpoint(tmp_path / "first", again, tmp_path / "again")

    layers = tuple(first.source_layers[layer] for layer in again.source_layers)
    whole = replace(plan_for(target, layers=2), source_layers=layers)
    prune_checkpoint(target, whole.with_vocab(vocab_size), tmp_path / "whole")
    torch.testing.assert_close(logits(tmp_path / "again"), logits(tmp_path / "whole")[..., list(SAID)], **CLOSE)
    expected = DraftVocabulary(ids=SAID, vocab_size=vocab_size, origin={"from": "a test"})
    assert read_draft_vocabulary(tmp_path / "again") == expected


def test_a_plan_with_a_vocabulary_is_read_back_as_it_was_written(checkpoint, tmp_path):
    source = checkpoint("llama", False)
    plan = plan_for(source, layers=2, hidden="0.5x").with_vocabulary(SAID)
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert list(broken_laws(plan)) == []
    assert load_plan(tmp_path / "plan.json", shape_of(source), target=None) == plan


BROKEN = {
    "not ascending": lambda plan: replace(plan, vocabulary=(2, 0, *SAID[2:])),
    "twice": lambda plan: replace(plan, vocabulary=(0, 0, *SAID[2:])),
    "beyond the vocabulary": lambda plan: replace(plan, vocabulary=(*SAID[:-1], 264)),
    "negative": lambda plan: replace(plan, vocabulary=(-1, *SAID[1:])),
    "more ids than rows": lambda plan: replace(plan, vocabulary=(*SAID, 259)),
    "none": lambda plan: plan.with_vocabulary(()),
    "tied": lambda plan: replace(plan, draft=replace(plan.draft, tied=True)),
    "a head that is small already": lambda plan: replace(plan, source=replace(plan.source, head_vocab=9, tied=False)),
    "rows without ids": lambda plan: replace(plan, vocabulary=None),
}


@pytest.mark.parametrize("change", BROKEN)
def test_a_plan_that_breaks_a_law_is_refused(checkpoint, change):
    plan = plan_for(checkpoint("llama", True), layers=2).with_vocabulary(SAID)
    assert list(broken_laws(plan)) == []
    assert len(list(broken_laws(BROKEN[change](plan)))) == 1


@pytest.mark.parametrize("damage", ["missing", "other ids", "other rows"])
def test_a_folder_whose_ids_are_not_those_of_its_head_is_not_opened(checkpoint, tmp_path, damage):
    source = checkpoint("llama", True)
    prune_checkpoint(source, plan_for(source, layers=1).with_vocabulary(SAID), tmp_path / "draft")
    if damage == "missing":
        (tmp_path / "draft" / DRAFT_VOCABULARY_NAME).unlink()
    elif damage == "other ids":
        write_draft_vocabulary(DraftVocabulary(ids=SAID[:-1], vocab_size=264), tmp_path / "draft")
    else:
        write_draft_vocabulary(DraftVocabulary(ids=SAID, vocab_size=300), tmp_path / "draft")
    with pytest.raises(UserError, match=r"draft_vocabulary\.json"):
        load_model(tmp_path / "draft", dtype="float32", device="cpu")
