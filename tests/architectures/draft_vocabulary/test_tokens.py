"""What the ids of a tokenizer are, read from files alone, is what transformers makes of the same files."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from architectures.vocabulary import read_tokens
from tests.rejections import rejects

CONFIG = {"model_type": "llama", "eos_token_id": 2, "bos_token_id": 1}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(**settings) -> PreTrainedTokenizerFast:
    """GPT-2's kind: an end token, the 256 bytes, two merges; the pre-tokenizer in a sequence, as Llama 3 has it."""
    vocab = {token: number for number, token in enumerate(["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    vocab |= {"he": 257, "hel": 258}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e"), ("he", "l")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", **settings)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Llama 2's kind: names for bytes, and letters that are also GPT-2's signs for bytes and here none."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "é", "▁a"]
    model = models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[("▁", "a")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
    )


def unigram() -> PreTrainedTokenizerFast:
    """Sentencepiece's other kind, whose tokens are listed with scores; it has no bytes."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("▁the", -1.0), ("a", -2.0), ("<unk>", 0.0)]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.Unigram(pieces, unk_id=4)),
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )


KINDS = {
    "byte level": (byte_level, 256),
    "byte fallback": (byte_fallback, 256),
    "unigram": (unigram, 0),
}


def save(tokenizer, folder: Path, **config) -> Path:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_files_say_what_transformers_says(tmp_path, kind):
    make, num_bytes = KINDS[kind]
    folder = save(make(), tmp_path, bos_token_id=None, eos_token_id=None)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = read_tokens(folder, 10_000)

    assert found.ids == set(tokenizer.get_vocab().values())
    marked = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    assert found.special == {*tokenizer.all_special_ids, *marked}
    assert len(found.single_bytes) == num_bytes
    assert not found.single_bytes & found.special


@pytest.mark.parametrize(
    "named",
    [
        {"pad_token": "hel"},
        {"pad_token": {"__type": "AddedToken", "content": "hel"}},
        {"additional_special_tokens": ["he", "hel"]},
    ],
)
def test_tokens_that_only_the_settings_call_special_are_special(tmp_path, named):
    """In files as they were before tokenizer.json named all special tokens itself."""
    folder = save(byte_level(), tmp_path, bos_token_id=None, eos_token_id=None)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **named}))
    found = read_tokens(folder, 10_000)
    assert found.special == set(AutoTokenizer.from_pretrained(folder).all_special_ids)
    assert 258 in found.special


def test_where_texts_end_is_what_the_generation_settings_say(tmp_path):
    folder = save(byte_level(), tmp_path, eos_token_id=5, pad_token_id=9, bos_token_id=[])
    assert read_tokens(folder, 10_000).ends == {5}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7], "bos_token_id": 8}))
    found = read_tokens(folder, 10_000)
    assert found.ends == {0, 7}
    assert found.special == {0, 5, 7, 8, 9}  # config.json's too
    assert found.always == found.special | found.single_bytes


def test_ids_without_a_row_are_left_out(tmp_path):
    folder = save(byte_level(), tmp_path)
    assert max(read_tokens(folder, 300).ids) == 258
    assert read_tokens(folder, 100).ids == set(range(100))
    assert max(read_tokens(folder, 100).always) < 100


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"model": {"vocab": 3}, "added_tokens": []}', '{"model": {"vocab": {}}, "added_tokens": [3]}']
)
def test_what_is_no_tokenizer_is_refused(tmp_path, text):
    folder = save(byte_level(), tmp_path)
    (folder / "tokenizer.json").write_text(text)
    with rejects("tokenizer.json"):
        read_tokens(folder, 300)
