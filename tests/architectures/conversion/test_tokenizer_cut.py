"""tokenizer.json and the settings beside it, in every way they are written."""

import pytest

from architectures.convert import cut_frame, cut_tokenizer, kept_merges

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
