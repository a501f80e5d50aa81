"""Forms of a draft: whole proposes what the small head proposes, own-tokenizer has one token for all others."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import widedraft
from architectures.compatibility import without_vllm
from architectures.convert import convert_draft, cut_frame, cut_tokenizer, grown_head, kept_merges, losing_row
from architectures.families import FAMILIES
from architectures.manifest import fingerprint_checkpoint, read_manifest, write_manifest
from architectures.target_files import CARRIED_FILES
from architectures.vocabulary import read_draft_vocabulary, write_draft_vocabulary
from architectures.vocabulary_head import head_ids
from eval.models import load_model, load_tokenizer, require_same_tokenizer
from tests.architectures.cuts import edit_weights
from tests.architectures.draft_vocabulary.test_tokens import unigram
from tests.families import DECODER_ONLY
from tests.rejections import rejects

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


@pytest.mark.parametrize("form", ["whole", "own-tokenizer"])
def test_a_draft_folder_is_written_in_a_form(small_draft, tmp_path, form):
    draft, out = small_draft("llama"), tmp_path / "out"
    write_manifest(draft, stage="export", inputs={}, chat_template_kwargs=[{"enable_thinking": False}])
    assert widedraft.main(["export", str(draft), "--to", str(out), "--form", form]) == 0
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["inputs"] == {"draft": fingerprint_checkpoint(draft)}
    assert manifest["chat_template_kwargs"] == [{"enable_thinking": False}]


SERVED = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3", "granite", "exaone4", "glm4", "ministral3")
SERVED += ("opt", "bloom", "gpt2", "qwen3_moe")
UNKNOWN_ID = 263


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("family", SERVED)
def test_logits_are_the_small_heads_with_one_row_for_all_unknown_inputs(small_draft, tmp_path, family, trained):
    draft, out, given = small_draft(family), tmp_path / "own", tmp_path / "given"
    shutil.copytree(draft, given)
    if trained:  # a draft that says which row was trained for unknown inputs
        write_draft_vocabulary(replace(read_draft_vocabulary(draft), unknown_id=UNKNOWN_ID), given)
    convert_draft(given, out, "own-tokenizer")
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


VOCAB = {"a": 0, "b": 1, "ab": 2, "abb": 3}


def tokenizer(**model):
    return {
        "model": {"type": "BPE", "vocab": dict(VOCAB), "merges": [["a", "b"], ["ab", "b"]], **model},
        "added_tokens": [{"id": 4, "content": "<s>"}, {"id": 5, "content": "</s>"}],
        "post_processor": None,
    }


def test_the_unknown_token_has_a_text_of_its_own():
    cut = cut_tokenizer(tokenizer(), (0, 2, 4), where="t")
    assert cut["model"]["unk_token"] == "<|unknown|>"
    assert cut["model"]["vocab"] == {"a": 0, "ab": 1, "<s>": 2, "<|unknown|>": 3}
    assert [(token["id"], token["content"]) for token in cut["added_tokens"]] == [(2, "<s>"), (3, "<|unknown|>")]
    taken = tokenizer(vocab={**VOCAB, "<|unknown|>": 6, "<<|unknown|>>": 7})
    assert cut_tokenizer(taken, (0, 1), where="t")["model"]["unk_token"] == "<<<|unknown|>>>"


@pytest.mark.parametrize(
    ("merges", "prefix", "kept"),
    [
        ([["a", "b"], ["ab", "b"]], None, [["a", "b"]]),
        (["a b", "ab b"], "", ["a b"]),
        ([["a", "##b"]], "##", [["a", "##b"]]),
    ],
)
def test_merges_are_kept_as_they_are_written(merges, prefix, kept):
    model = {"merges": merges, "continuing_subword_prefix": prefix}
    assert kept_merges(model, {"a": 0, "b": 1, "##b": 2, "ab": 3}) == kept


def test_a_frame_names_the_new_ids_and_the_unknown_token_for_what_is_gone():
    template = {
        "type": "TemplateProcessing",
        "special_tokens": {
            "<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]},
            "</s>": {"id": "</s>", "ids": [5], "tokens": ["</s>"]},
        },
    }
    whole = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    cut = cut_frame(whole, {"<s>": 1, "?": 2}, "?")
    assert cut is not None
    assert cut["processors"][0] == {"type": "ByteLevel"}
    tokens = cut["processors"][1]["special_tokens"]
    assert (tokens["<s>"]["ids"], tokens["</s>"]["ids"], tokens["</s>"]["tokens"]) == ([1], [2], ["?"])
    assert cut_frame(None, {}, "?") is None


# What is refused, and that nothing is written then


def edit(name, change):
    """A mistake: a JSON file of the folder, changed."""

    def make(folder):
        values = json.loads((folder / name).read_text())
        change(values)
        (folder / name).write_text(json.dumps(values))

    return make


def remove(name):
    return lambda folder: (folder / name).unlink()


def without_numbers(folder):
    edit_weights(folder, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"][3, 4].fill_(float("nan")))


RECORD = "draft_vocabulary.json"
ENDS = {"sep": ["<|im_end|>", 2], "cls": ["<|im_start|>", 1]}
ROBERTA = {"type": "RobertaProcessing", **ENDS, "trim_offsets": True, "add_prefix_space": False}
MISTAKES = {  # form, what is spoilt, and what the message names
    "no small head": ("whole", edit("config.json", lambda v: v.pop("head_vocab_size")), RECORD),
    "no record": ("whole", remove(RECORD), RECORD),
    "damaged record": ("whole", edit(RECORD, lambda v: v["ids"].__setitem__(1, 0)), RECORD),
    "another's record": ("whole", edit(RECORD, lambda v: v["ids"].pop()), RECORD),
    "a record of another vocabulary": ("whole", edit(RECORD, lambda v: v.update(vocab_size=265)), RECORD),
    "no numbers": ("whole", without_numbers, "mlp.up_proj.weight"),
    "unknown is said": ("own-tokenizer", edit(RECORD, lambda v: v.update(unknown_id=1)), "unknown_id"),
    "unknown is none": ("whole", edit(RECORD, lambda v: v.update(unknown_id=264)), "unknown_id"),
    "strange origin": ("whole", edit(RECORD, lambda v: v.update(origin={"never_said": [3]})), "origin.never_said"),
    "no tokenizer": ("whole", remove("tokenizer.json"), "tokenizer.json"),
    "unigram": ("own-tokenizer", lambda folder: unigram().save_pretrained(folder), "Unigram"),
    "frame": ("own-tokenizer", edit("tokenizer.json", lambda v: v.update(post_processor=ROBERTA)), "RobertaProcessing"),
    "only a vocab.json": (
        "own-tokenizer",
        lambda folder: (folder / "tokenizer.json").rename(folder / "vocab.json"),
        "tokenizer.json",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_damaged_draft_is_refused(small_draft, tmp_path, mistake):
    form, spoil, named = MISTAKES[mistake]
    draft = shutil.copytree(small_draft("llama"), tmp_path / "draft")
    spoil(draft)
    with rejects(draft, named):
        convert_draft(draft, tmp_path / "out", form)
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]


@pytest.mark.parametrize("family", ["gemma2", "gpt_neox"])
def test_a_family_that_vllm_cannot_serve_so_is_told_the_other_form(small_draft, tmp_path, family):
    with rejects("--form whole"):
        convert_draft(small_draft(family), tmp_path / "out", "own-tokenizer")


def test_only_an_earlier_conversion_is_replaced(small_draft, tmp_path):
    draft, out = shutil.copytree(small_draft("llama"), tmp_path / "draft"), tmp_path / "out"
    convert_draft(draft, out, "whole")
    convert_draft(draft, out, "own-tokenizer")
    assert "unknown" in (out / "README.md").read_text()
    with rejects(draft):
        convert_draft(draft, draft, "whole")
    with rejects(tmp_path):
        convert_draft(draft, tmp_path, "whole")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with rejects(tmp_path / "mine", "manifest.json"):
        convert_draft(draft, tmp_path / "mine", "whole")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_a_path_by_which_vllm_would_take_another_method_is_refused(small_draft, tmp_path):
    with rejects("eagle-whole"):
        convert_draft(small_draft("llama"), tmp_path / "eagle-whole" / "out", "whole")
    assert not list(tmp_path.iterdir())
