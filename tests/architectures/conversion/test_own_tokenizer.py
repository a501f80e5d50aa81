"""Form own-tokenizer: a model and a tokenizer of the kept tokens, and one token for all others."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from architectures.compatibility import without_vllm
from architectures.convert import convert_draft
from architectures.families import FAMILIES
from architectures.vocabulary import read_draft_vocabulary, write_draft_vocabulary
from eval.models import load_model, load_tokenizer

SERVED = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3", "granite", "exaone4", "glm4", "ministral3")
SERVED += ("opt", "bloom", "gpt2")
INPUTS = torch.randint(0, 264, (3, 40), generator=torch.Generator().manual_seed(1))
UNKNOWN_ID = 263


def with_unknown_id(draft, folder):
    """A copy of a draft that says which row was trained for unknown inputs."""
    shutil.copytree(draft, folder)
    write_draft_vocabulary(replace(read_draft_vocabulary(draft), unknown_id=UNKNOWN_ID), folder)
    return folder


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("family", SERVED)
def test_logits_are_the_small_heads_with_one_row_for_all_unknown_inputs(small_draft, tmp_path, family, trained):
    draft, out = small_draft(family), tmp_path / "own"
    convert_draft(with_unknown_id(draft, tmp_path / "trained") if trained else draft, out, "own-tokenizer")
    small, own = load_model(draft, dtype="float32", device="cpu"), AutoModelForCausalLM.from_pretrained(out)
    ids = read_draft_vocabulary(draft).ids
    dropped = [id_ for id_ in range(264) if id_ not in ids]
    new_V = torch.full((264,), len(ids)).index_copy(0, torch.tensor(ids), torch.arange(len(ids)))
    rows_VH = small.get_input_embeddings().weight
    with torch.no_grad():
        kept_inputs = torch.tensor(ids)[INPUTS % len(ids)]
        torch.testing.assert_close(own(new_V[kept_inputs]).logits[..., :-1], small(kept_inputs).logits)
        rows_VH[dropped] = rows_VH[UNKNOWN_ID].clone() if trained else rows_VH[dropped].mean(dim=0)
        small_BTK, own_BTU = small(INPUTS).logits, own(new_V[INPUTS]).logits
    torch.testing.assert_close(own_BTU[..., :-1], small_BTK)
    assert torch.equal(own_BTU.argmax(dim=-1), small_BTK.argmax(dim=-1))  # the unknown token is never proposed


def test_every_token_keeps_its_text(cut_draft, merging_target, tmp_path):
    ids = (0, 1, 2, *range(3, 259, 2), 259, 260, 261, 263)
    draft, out = cut_draft(merging_target, ids), tmp_path / "own"
    convert_draft(draft, out, "own-tokenizer")
    target, own = load_tokenizer(merging_target), AutoTokenizer.from_pretrained(out)
    assert own.convert_ids_to_tokens(list(range(len(ids)))) == target.convert_ids_to_tokens(list(ids))
    assert own.get_vocab() == {
        **{target.convert_ids_to_tokens(old): new for new, old in enumerate(ids)},
        own.unk_token: own.unk_token_id,
    }
    assert (own.unk_token_id, len(own)) == (len(ids), len(ids) + 1)
    assert own.unk_token not in target.get_vocab()
    assert own.is_fast
    assert [own.bos_token, own.eos_token, own.pad_token] == [target.bos_token, target.eos_token, target.pad_token]
    config = json.loads((out / "config.json").read_text())
    assert config["vocab_size"] == len(ids) + 1
    assert "head_vocab_size" not in config


def test_texts_of_kept_tokens_are_cut_alike_and_conversations_framed_alike(cut_draft, merging_target, tmp_path):
    target = load_tokenizer(merging_target)
    said = target(" the an in user assistant ! is thin\n")["input_ids"]
    ids = tuple(range(190)) + tuple(range(200, 264))  # some bytes less, which these texts have none of
    out = tmp_path / "own"
    convert_draft(cut_draft(merging_target, ids), out, "own-tokenizer")
    own, new_ids = AutoTokenizer.from_pretrained(out), {old: new for new, old in enumerate(ids)}
    assert 261 in said
    assert own(" the an in user assistant ! is thin\n")["input_ids"] == [new_ids[id_] for id_ in said]
    chat = [{"role": "user", "content": "is the an in"}]
    framed = target.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert own.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] == [new_ids[id_] for id_ in framed]


def test_a_merge_goes_with_what_it_needs_or_makes(cut_draft, merging_target, tmp_path):
    bytes_, without_the_way = range(3, 259), tmp_path / "own"
    ids = (0, 1, 2, *bytes_, 261, 262)  # "Ġthe" without "Ġt" and "he", and "in"
    convert_draft(cut_draft(merging_target, ids), without_the_way, "own-tokenizer")
    model = json.loads((without_the_way / "tokenizer.json").read_text())["model"]
    assert model["merges"] == [["i", "n"]]
    tokens = AutoTokenizer.from_pretrained(without_the_way).tokenize(" the in")
    assert tokens == ["Ġ", "t", "h", "e", "Ġ", "in"]


def test_special_ids_move_with_their_tokens(cut_draft, make_checkpoint, tmp_path):
    target = make_checkpoint(seed=3, bos_token_id=1, eos_token_id=[2, 7], pad_token_id=0)
    file = target / "generation_config.json"
    settings = {"eos_token_id": [2, 7, 8], "bos_token_id": 1, "pad_token_id": 0, "suppress_tokens": [5, 9, 10]}
    file.write_text(json.dumps(settings))
    out = tmp_path / "own"
    convert_draft(cut_draft(target, (1, 2, 9, 10, 50)), out, "own-tokenizer")
    found = json.loads((out / "generation_config.json").read_text())
    assert found == {"eos_token_id": [1, 5], "bos_token_id": 0, "pad_token_id": 5, "suppress_tokens": [2, 3]}
    config = json.loads((out / "config.json").read_text())
    assert [config[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [0, [1, 5], 5]
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.pad_token == tokenizer.unk_token  # which the target's pad token is to this draft


def test_every_family_is_served_or_refused():
    assert {name for name in FAMILIES if without_vllm(name) is None} == set(SERVED)
    assert without_vllm("unknown") is None


def test_the_unknown_token_is_special_and_every_chat_template_goes_along(small_draft, tmp_path):
    draft = shutil.copytree(small_draft("llama"), tmp_path / "draft")
    (draft / "additional_chat_templates").mkdir()
    (draft / "additional_chat_templates" / "tool.jinja").write_text("{{ 1 }}")
    convert_draft(draft, tmp_path / "own", "own-tokenizer")
    own = AutoTokenizer.from_pretrained(tmp_path / "own")
    assert own.added_tokens_decoder[own.unk_token_id].special
    assert (tmp_path / "own" / "additional_chat_templates" / "tool.jinja").read_text() == "{{ 1 }}"
