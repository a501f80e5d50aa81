"""Form whole: an ordinary folder that proposes greedily what the small head proposes."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from architectures.convert import convert_draft, grown_head, losing_row
from architectures.families import FAMILIES
from architectures.manifest import read_manifest
from architectures.target_files import CARRIED_FILES
from architectures.vocabulary import read_draft_vocabulary, write_draft_vocabulary
from architectures.vocabulary_head import head_ids
from eval.models import load_model, require_same_tokenizer
from tests.families import DECODER_ONLY

INPUTS = torch.randint(0, 264, (3, 40), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", DECODER_ONLY)
def test_transformers_proposes_what_the_small_head_proposes(small_draft, tmp_path, family):
    draft, out = small_draft(family), tmp_path / "whole"
    convert_draft(draft, out, "whole")
    small, whole = load_model(draft, dtype="float32", device="cpu"), AutoModelForCausalLM.from_pretrained(out)
    ids_K = head_ids(small)
    with torch.no_grad():
        small_BTK, whole_BTV = small(INPUTS).logits, whole(INPUTS).logits
    assert torch.equal(whole_BTV.argmax(dim=-1), ids_K[small_BTK.argmax(dim=-1)])
    torch.testing.assert_close(whole_BTV[..., ids_K], small_BTK)
    others_V = torch.ones(264, dtype=torch.bool).index_fill(0, ids_K, False)
    assert (whole_BTV[..., others_V] < small_BTK.max(dim=-1, keepdim=True).values).all()
    assert len(set(whole_BTV.argmax(dim=-1).flatten().tolist())) > 5

    before, after = load_file(draft / "model.safetensors"), load_file(out / "model.safetensors")
    head = FAMILIES[family].weight("head")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before if name != head)
    assert torch.equal(after[head][ids_K], before[head])
    # The card warns of engines that would take the embedding for the head.
    assert ("**Not for" in (out / "README.md").read_text()) == (FAMILIES[family].head_is_embedding != ())


def test_the_folder_is_an_ordinary_draft_of_the_target(small_draft, family_checkpoint, tmp_path):
    draft, out = small_draft("llama"), tmp_path / "whole"
    convert_draft(draft, out, "whole")
    load_model(out, dtype="float32", device="cpu")
    require_same_tokenizer(family_checkpoint("llama"), out)
    config = json.loads((out / "config.json").read_text())
    assert {**config, "head_vocab_size": len(read_draft_vocabulary(draft).ids)} == json.loads(
        (draft / "config.json").read_text()
    )
    for name in CARRIED_FILES:
        assert (out / name).exists() == (draft / name).exists()
        if (out / name).is_file():
            assert (out / name).read_bytes() == (draft / name).read_bytes()
    assert not (out / "draft_vocabulary.json").exists()
    manifest = read_manifest(out)
    assert manifest is not None
    assert (manifest["stage"], manifest["form"]) == ("convert", "whole")
    assert "is no faster" in (out / "README.md").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_pushed", [0, 1, 20])  # of one row that is often the first choice, 1/16 must do
@pytest.mark.parametrize("offset", [-40.0, 0.0, 40.0])  # heads whose logits are all below or above zero
def test_an_id_that_is_not_said_is_never_proposed(dtype, offset, num_pushed):
    generator = torch.Generator().manual_seed(3)
    hidden_AH = torch.cat([torch.randn(500, 16, generator=generator), torch.ones(500, 1)], dim=1).to(dtype)
    head_KH = torch.cat([torch.randn(50, 16, generator=generator), torch.full((50, 1), offset)], dim=1).to(dtype)
    ids_K = torch.arange(3, 103, 2)
    pushed_K = torch.arange(50) < num_pushed
    proposed_A = (hidden_AH @ grown_head(head_KH, ids_K, 120, pushed_K).T).argmax(dim=-1)
    assert torch.equal(proposed_A, ids_K[(hidden_AH @ head_KH.T).argmax(dim=-1)])


@pytest.mark.parametrize("pushed", [[], [1], [0, 3]])
def test_the_losing_logit_is_a_mean_of_the_logits(pushed):
    generator = torch.Generator().manual_seed(4)
    head_KH, hidden_AH = (torch.randn(rows, 8, generator=generator, dtype=torch.float64) for rows in (5, 30))
    pushed_K = torch.tensor([place in pushed for place in range(5)])
    logits_AK = hidden_AH @ head_KH.T
    expected_A = logits_AK.mean(dim=-1)
    if pushed:
        expected_A = 15 / 16 * logits_AK[:, pushed].mean(dim=-1) + 1 / 16 * expected_A
    torch.testing.assert_close(hidden_AH @ losing_row(head_KH, pushed_K), expected_A)


def test_the_ids_never_said_are_read_from_the_record(small_draft, tmp_path):
    draft = shutil.copytree(small_draft("llama"), tmp_path / "draft")
    before = read_draft_vocabulary(draft)
    write_draft_vocabulary(replace(before, origin={"never_said": [4, 7]}), draft)
    convert_draft(draft, tmp_path / "whole", "whole")
    head_KH = load_file(draft / "model.safetensors")["lm_head.weight"]
    head_VH = load_file(tmp_path / "whole" / "model.safetensors")["lm_head.weight"]
    pushed_K = torch.tensor([id_ in (4, 7) for id_ in before.ids])
    assert torch.equal(head_VH[3], losing_row(head_KH, pushed_K))
    assert not torch.allclose(head_VH[3], head_KH.mean(dim=0))


NONE_PUSHED = torch.zeros(3, dtype=torch.bool)


@pytest.mark.parametrize("ids", [(0, 4, 7), (4, 7, 9)])
def test_where_all_logits_are_equal_the_lowest_id_of_all_is_taken(ids):
    """The one tie there can be: a draft that prefers nothing. It says its lowest id if that is the lowest of all."""
    head_VH = grown_head(torch.ones(3, 4), torch.tensor(ids), 12, NONE_PUSHED)
    assert int((head_VH @ torch.ones(4)).argmax()) == 0
    assert int((head_VH @ torch.zeros(4)).argmax()) == 0


@pytest.mark.parametrize("pushed", [[], [1], [1, 2]])
def test_a_tie_between_some_ids_is_the_small_heads(pushed):
    head_KH = torch.tensor([[0.0, 1.0], [2.0, 0.0], [2.0, -1.0]])
    pushed_K = torch.tensor([place in pushed for place in range(3)])
    head_VH = grown_head(head_KH, torch.tensor([3, 5, 7]), 9, pushed_K)
    assert int((head_VH @ torch.tensor([1.0, 0.0])).argmax()) == 5
