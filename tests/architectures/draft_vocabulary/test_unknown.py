"""The row that stands for every id that a draft does not say."""

import json
import shutil

import pytest
import torch

from architectures.pruning.prune import prune_checkpoint
from architectures.vocabulary import DraftVocabulary, read_draft_vocabulary
from architectures.vocabulary_head import begin_unknown, mean_of_dropped, unknown_id_of, with_unknown
from eval.models import load_model
from tests.architectures.cuts import plan_for
from tests.rejections import rejects

IDS = (0, 1, 2, *range(100, 200), 263)


@pytest.fixture(scope="module")
def draft(tiny_target, tmp_path_factory):
    plan = plan_for(tiny_target, layers=2).with_vocabulary(IDS)
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
    torch.testing.assert_close(changed_VH[262], mean_of_dropped(rows_VH, IDS))
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
