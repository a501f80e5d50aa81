"""Heads cut to some ids, in every family: logits at these ids; the unknown row; rows for a target's vocabulary."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from architectures.families import FAMILIES
from architectures.pruning.plan import wrong_field
from architectures.pruning.prune import prune_checkpoint
from architectures.vocabulary import (
    DraftVocabulary,
    read_draft_vocabulary,
)
from architectures.vocabulary_head import (
    ROWS_AT_ONCE,
    begin_unknown,
    fit_rows,
    head_ids,
    mean_of_dropped,
    unknown_id_of,
    with_unknown,
)
from eval.models import load_model
from tests.architectures.conftest import FAMILY_SETTINGS, perturb
from tests.architectures.cuts import IDS, plan_for, shape_of
from tests.families import DECODER_ONLY, WITH_EXPERTS
from tests.rejections import rejects

SAID = (0, 2, 3, 64, 65, 200, 258)
CLOSE = {"rtol": 1e-4, "atol": 2e-5}  # float32: one product over other rows, and Gemma's scale in another factor
WIDE_CUT = {"layers": 2, "hidden": "0.75x", "intermediate": 64, "heads": 2, "kv_heads": 1}
EXPERTS_CUT = {"layers": 2, "hidden": "0.75x", "experts": 3, "heads": 2, "kv_heads": 1}
LAYERS_ALONE = {"layers": 2}


def cuts_of(family: str) -> list[dict]:
    wide = EXPERTS_CUT if family in WITH_EXPERTS else WIDE_CUT
    return [LAYERS_ALONE, wide] if FAMILIES[family].width else [LAYERS_ALONE]


TABLE = [(family, tied, cut) for family, tied in product(DECODER_ONLY, (True, False)) for cut in cuts_of(family)]


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint) -> Callable[[str, bool], Path]:
    """The random checkpoint of a family whose head is the embedding, or is not; made once."""

    @cache
    def of(family: str, tied: bool) -> Path:
        return perturb(make_checkpoint(model_type=family, **{**FAMILY_SETTINGS[family], "tie_word_embeddings": tied}))

    return of


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
    assert wrong_field(plan) is None
    assert wrong_field(BROKEN[change](plan)) is not None


KEPT = (0, 1, 2, *range(100, 200), 263)


@pytest.fixture(scope="module")
def draft(tiny_target, tmp_path_factory):
    plan = plan_for(tiny_target, layers=2).with_vocabulary(KEPT)
    prune_checkpoint(tiny_target, plan, out := tmp_path_factory.mktemp("small") / "draft")
    return out


@pytest.mark.parametrize(
    ("ids", "unknown"), [((0, 1), 9), ((0, 9), 8), ((7, 8, 9), 6), (tuple(range(1, 10)), 0), ((0, 2, 9), 8)]
)
def test_the_last_id_that_is_not_said_is_the_unknown_one(ids, unknown):
    assert unknown_id_of(DraftVocabulary(ids=ids, vocab_size=10)) == unknown
    assert unknown_id_of(DraftVocabulary(ids=(1, 2), vocab_size=10, unknown_id=5)) == 5


def test_the_mean_is_of_the_rows_that_are_not_said():
    rows_VH = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mean_of_dropped(rows_VH, (0, 3, 5)), rows_VH[[1, 2, 4]].mean(dim=0))


def test_an_untrained_row_becomes_the_mean_and_no_other_changes(draft):
    before, after = (load_model(draft, dtype="float32", device="cpu") for _ in range(2))
    begin_unknown(after, draft)
    rows_VH, changed_VH = (lm.get_input_embeddings().weight.detach() for lm in (before, after))
    torch.testing.assert_close(changed_VH[262], mean_of_dropped(rows_VH, KEPT))
    same_V = (rows_VH == changed_VH).all(dim=1)
    assert (~same_V).nonzero().flatten().tolist() == [262]
    assert with_unknown(draft).unknown_id == 262


def test_a_trained_row_stays(draft, tmp_path):
    trained = shutil.copytree(draft, tmp_path / "trained")
    record = trained / "draft_vocabulary.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "unknown_id": 50}))
    before, after = (load_model(trained, dtype="float32", device="cpu") for _ in range(2))
    begin_unknown(after, trained)
    assert torch.equal(after.get_input_embeddings().weight, before.get_input_embeddings().weight)
    assert with_unknown(trained) == read_draft_vocabulary(trained)
    assert with_unknown(trained).unknown_id == 50


def test_a_draft_that_says_everything_has_no_unknown_input(tiny_draft):
    with rejects("architecture.vocabulary"):
        with_unknown(tiny_draft)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [5, 8, 11])
def test_rows_that_were_there_stay_bit_for_bit(generator, dtype, vocab_size):
    rows_VH = torch.randn(8, 3, generator=generator).to(dtype)
    fitted_VH = fit_rows(rows_VH, vocab_size)
    assert (fitted_VH.shape, fitted_VH.dtype) == ((vocab_size, 3), dtype)
    kept = min(8, vocab_size)
    assert torch.equal(fitted_VH[:kept], rows_VH[:kept])


def test_new_rows_are_the_mean_of_the_old_ones(generator):
    for size in ((8, 3), (8,), (2 * ROWS_AT_ONCE + 7, 2)):
        rows_VX = torch.randn(size, generator=generator)
        torch.testing.assert_close(fit_rows(rows_VX, size[0] + 2)[size[0] :], rows_VX.mean(dim=0).expand(2, *size[1:]))


@pytest.mark.parametrize("offset", [-40.0, 0.0, 40.0])  # models whose logits are all below or above zero
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_added_id_is_never_the_likeliest_and_less_likely_than_the_average_one(generator, dtype, offset):
    hidden_AH = torch.cat([torch.randn(200, 16, generator=generator), torch.ones(200, 1)], dim=1).to(dtype)
    head_VH = torch.cat([torch.randn(50, 16, generator=generator), torch.full((50, 1), offset)], dim=1).to(dtype)
    logits_AV = (hidden_AH @ fit_rows(head_VH, 60).T).float()
    assert int(logits_AV.argmax(dim=-1).max()) < 50
    assert float(logits_AV.softmax(dim=-1)[:, 50:].max()) < 1 / 50
