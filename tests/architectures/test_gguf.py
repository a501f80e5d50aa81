"""GGUF import: the folder is the de-quantised model, bit for bit, and nothing unknown is dropped.

The files are written here with the gguf package from random Hugging Face models, as llama.cpp's converter would.
"""

import json
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from architectures import gguf_import as gguf_import_module
from architectures.config import ArchitectureConfig
from architectures.errors import UserError
from architectures.gguf_header import gguf_config, read_gguf_header, shortest_decimal
from architectures.gguf_import import gguf_names, import_gguf
from architectures.plan import plan_pruning
from architectures.prune import prune_checkpoint
from architectures.shapes import Shape
from architectures.target import read_config

EMPTY: Mapping[str, Any] = MappingProxyType({})
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
IDS = torch.arange(3, 35)[None]
VARIANTS = {
    "llama": {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 128},  # the only width transformers' own GGUF import takes
}
BIASED = {  # transformers drops these biases from a GGUF file, so the original is the only judge
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "qwen3": {"head_dim": 32, "attention_bias": True},
}
Q8, Q4_1, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_1", "F32"))


def write_gguf(
    source: Path,
    file: Path,
    *,
    matrices=Q8,
    architecture: str | None = None,
    metadata: Mapping[str, Any] = EMPTY,
    tensors: Mapping[str, np.ndarray] = EMPTY,
    without: Collection[str] = (),
    alignment: int | None = None,
    splitting: str = "smollm",
) -> Path:
    """A GGUF file of a Hugging Face folder.

    Args:
        source: Written by make_checkpoint.
        file: Where to.
        matrices: Quantisation of all tensors but vectors.
        architecture: general.architecture, if it shall lie.
        metadata: Further entries, by their full names.
        tensors: Further tensors.
        without: Tensors left out.
        alignment: Of the tensors, if not the usual one.
        splitting: tokenizer.ggml.pre.
    """
    config = AutoConfig.from_pretrained(source)
    name = architecture or config.model_type
    writer = gguf.GGUFWriter(file, name)
    writer.add_name("Tiny Model")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if config.model_type != "qwen2" else 16)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(key, value)
    add_tokenizer(writer, source, splitting)
    for tensor, weight in stored_tensors(source, config).items():
        if tensor not in without:
            add_tensor(writer, tensor, weight, matrices)
    for tensor, weight in tensors.items():
        add_tensor(writer, tensor, weight, matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_tokenizer(writer: gguf.GGUFWriter, source: Path, splitting: str) -> None:
    vocabulary = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get) + [merge.replace(" ", "") for merge in MERGES]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template((source / "chat_template.jinja").read_text())


def stored_tensors(source: Path, config) -> dict[str, np.ndarray]:
    """Every tensor under its GGUF name; a llama's query and key rows go into llama.cpp's order, pairs not halves."""
    shape = Shape.from_config(config.to_dict())
    tensors = load_file(source / "model.safetensors")
    stored = {}
    for name, stored_name in gguf_names(shape).items():
        weight = tensors[name].numpy()
        heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(name.split(".")[-2])
        if heads and config.model_type == "llama":
            halves = weight.reshape(heads, 2, shape.head_dim // 2, *weight.shape[1:])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        stored[stored_name] = weight
    return stored


def add_tensor(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, matrices) -> None:
    kind = F32 if weight.ndim == 1 else matrices
    writer.add_tensor(name, quantize(np.ascontiguousarray(weight), kind), raw_dtype=kind)


def logits(folder: Path, **options) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, **{"dtype": "auto"} | options).eval()
    with torch.inference_mode():
        return model(IDS).logits


def perturb_vectors(folder: Path) -> Path:
    """Fresh biases are 0 and norms 1, the same in every layer: give each its own values."""
    generator = torch.Generator().manual_seed(5)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            tensors[name] = tensor + 0.3 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=VARIANTS)
def source(request, make_checkpoint):
    return perturb_vectors(make_checkpoint(model_type=request.param, **VARIANTS[request.param]))


@pytest.fixture(scope="module", params=BIASED)
def biased_source(request, make_checkpoint):
    return perturb_vectors(make_checkpoint(model_type=request.param, **BIASED[request.param]))


@pytest.fixture(scope="module")
def llama(make_checkpoint):
    return make_checkpoint(**VARIANTS["llama"])


def require_same_model(imported: Path, original: Path) -> None:
    weights, expected = (load_file(folder / "model.safetensors") for folder in (imported, original))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert torch.equal(logits(imported), logits(original))


def test_an_unquantised_file_gives_the_original_back(source, tmp_path):
    import_gguf(write_gguf(source, tmp_path / "model.gguf", matrices=F32), tmp_path / "out")
    require_same_model(tmp_path / "out", source)


def test_biases_come_back_in_the_order_of_transformers(biased_source, tmp_path):
    import_gguf(write_gguf(biased_source, tmp_path / "model.gguf", matrices=F32), tmp_path / "out")
    require_same_model(tmp_path / "out", biased_source)


@pytest.mark.parametrize("kind", [Q8, Q4_1])
def test_logits_are_those_of_the_dequantised_model(source, tmp_path, kind):
    file = write_gguf(source, tmp_path / "model.gguf", matrices=kind)
    import_gguf(file, tmp_path / "out")

    expected = logits(tmp_path, gguf_file=file.name, dtype=torch.float32)
    assert torch.equal(logits(tmp_path / "out"), expected)
    assert not torch.equal(expected, logits(source))


def test_the_folder_keeps_no_trace_of_its_past(llama, tmp_path):
    import_gguf(write_gguf(llama, tmp_path / "model.gguf"), tmp_path / "out")

    texts = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.json") if path.name != "manifest.json"}
    for name, text in texts.items():
        for word in ("quantization", "gguf", "Tiny Model", "_name_or_path", "is_local", str(tmp_path)):
            assert word not in text, name
    config = read_config(tmp_path / "out")
    assert (config["rms_norm_eps"], config["dtype"]) == (1e-05, "float32")
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    model.save_pretrained(tmp_path / "again")
    require_same_model(tmp_path / "again", tmp_path / "out")


def test_config_has_the_entries_an_ordinary_one_has(source, tmp_path):
    import_gguf(write_gguf(source, tmp_path / "model.gguf"), tmp_path / "out")

    ordinary, imported = read_config(source), read_config(tmp_path / "out")
    assert ordinary.keys() == imported.keys()
    differing = {key for key in ordinary if ordinary[key] != imported[key]}
    assert differing <= {"initializer_range"}


def test_tokenizer_template_and_generation_settings_come_along(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", metadata={"tokenizer.ggml.eot_token_id": 0})
    import_gguf(file, tmp_path / "out")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("hello w").input_ids == [262, 263]
    assert tokenizer.decode([262, 263]) == "hello w"
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    assert special == (1, 2, 0, None)
    assert tokenizer.decode(tokenizer("hello <|im_end|> .").input_ids, skip_special_tokens=True) == "hello  ."
    messages = [{"role": "user", "content": "hi"}]
    expected = AutoTokenizer.from_pretrained(llama).apply_chat_template(messages, tokenize=False)
    assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"], generation["pad_token_id"]) == (1, [2, 0], 0)


def test_the_beginning_token_is_added_if_the_file_says_so(llama, tmp_path):
    plain = write_gguf(llama, tmp_path / "plain.gguf")
    marked = write_gguf(llama, tmp_path / "marked.gguf", metadata={"tokenizer.ggml.add_bos_token": True})
    for file in (plain, marked):
        import_gguf(file, tmp_path / file.stem)

    ids = {stem: AutoTokenizer.from_pretrained(tmp_path / stem)("hello").input_ids for stem in ("plain", "marked")}

    assert ids == {"plain": [262], "marked": [1, 262]}


def test_a_word_splitting_that_is_not_rebuilt_is_refused(llama, tmp_path, monkeypatch):
    refused(write_gguf(llama, tmp_path / "model.gguf", splitting="klingon"), tmp_path / "out", "pre=klingon, a way")
    monkeypatch.setattr(gguf_import_module, "known_splittings", lambda: {"klingon": ""})
    import_gguf(tmp_path / "model.gguf", tmp_path / "out")


def test_the_weights_can_be_written_narrower(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf")
    import_gguf(file, tmp_path / "wide")
    import_gguf(file, tmp_path / "narrow", dtype="bfloat16")

    wide, narrow = (load_file(tmp_path / out / "model.safetensors") for out in ("wide", "narrow"))
    assert all(torch.equal(narrow[name], wide[name].bfloat16()) for name in wide)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "narrow", dtype="auto").dtype == torch.bfloat16


def test_an_imported_model_can_be_pruned(llama, tmp_path):
    import_gguf(write_gguf(llama, tmp_path / "model.gguf"), tmp_path / "out")
    plan = plan_pruning(Shape.from_config(read_config(tmp_path / "out")), ArchitectureConfig(layers=4))
    prune_checkpoint(tmp_path / "out", plan, tmp_path / "draft")
    assert torch.equal(logits(tmp_path / "draft"), logits(tmp_path / "out"))


def test_the_header_alone_gives_the_shape(source, tmp_path):
    file = write_gguf(source, tmp_path / "model.gguf")
    assert Shape.from_config(gguf_config(file, read_gguf_header(file))) == Shape.from_config(read_config(source))


def test_our_header_agrees_with_the_gguf_package(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", alignment=256)
    ours, theirs = read_gguf_header(file), gguf.GGUFReader(file)

    assert ours.metadata.keys() == {key for key in theirs.fields if not key.startswith("GGUF.")}
    for key, value in ours.metadata.items():
        found = theirs.fields[key].contents()
        assert (value.length == len(found)) if isinstance(found, list) else (value == found)
    assert {
        name: (tensor.size, tensor.type_id, ours.data_start + tensor.offset) for name, tensor in ours.tensors.items()
    } == {
        tensor.name: (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type, tensor.data_offset)
        for tensor in theirs.tensors
    }


def llama_3_factors(head_dim: int, rope: dict) -> np.ndarray:
    """As llama.cpp's converter computes them: 1 for short waves, `factor` for long ones, a blend between."""
    context = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for exponent in np.arange(0, head_dim, 2, dtype=np.float64) / head_dim:
        wavelength = 2 * np.pi * rope["rope_theta"] ** exponent
        blend = np.clip((context / wavelength - low) / (high - low), 0, 1)
        factors.append(1 / ((1 - blend) / rope["factor"] + blend))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_rotary_factors_become_llama_3_settings(make_checkpoint, tmp_path, factor):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    source = make_checkpoint(head_dim=64, rope_parameters=rope, max_position_embeddings=131072)
    factors = llama_3_factors(64, rope)
    file = write_gguf(source, tmp_path / "model.gguf", matrices=F32, tensors={"rope_freqs.weight": factors})

    import_gguf(file, tmp_path / "out")

    assert read_config(tmp_path / "out")["rope_parameters"] == rope
    require_same_model(tmp_path / "out", source)

    file = write_gguf(source, tmp_path / "odd.gguf", tensors={"rope_freqs.weight": factors * np.float32(1.5)})
    with pytest.raises(UserError, match=r"rope_freqs\.weight holds rotary factors other than Llama 3's"):
        import_gguf(file, tmp_path / "odd")


# What is refused, before anything is written


def refused(file: Path, out: Path, message: str) -> None:
    with pytest.raises(UserError, match=message):
        import_gguf(file, out)
    assert not list(out.parent.glob(f"{out.name}*"))


def test_another_family_is_refused_from_its_header_alone(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", architecture="gemma3")
    header = read_gguf_header(file)
    file.write_bytes(file.read_bytes()[: header.data_start])  # no tensor to be read

    refused(
        file, tmp_path / "out", r"general\.architecture is 'gemma3', not of the LLaMA family\. .*llama, qwen2, qwen3"
    )
    with pytest.raises(UserError, match="gemma3"):
        read_config(file)


@pytest.mark.parametrize("fraction", [0.99, 0.5, 0.1, 0.02])
def test_a_truncated_file_is_refused(llama, tmp_path, fraction):
    file = write_gguf(llama, tmp_path / "model.gguf")
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * fraction)])
    refused(file, tmp_path / "out", r"model\.gguf: (damaged or cut short inside the header|cut short inside )")


def test_every_truncation_of_the_header_is_refused(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf")
    header = file.read_bytes()[:900]
    for length in range(0, 900, 7):
        file.write_bytes(header[:length])
        with pytest.raises(UserError, match=r"model\.gguf: "):
            read_gguf_header(file)


def test_what_is_no_gguf_is_refused(tmp_path):
    file = tmp_path / "model.gguf"
    refused(file, tmp_path / "out", "model.gguf: no such file")
    file.write_bytes(b"GGUF")
    refused(file, tmp_path / "out", "4 bytes are no GGUF file")
    file.write_bytes(b"PK" + bytes(100))
    refused(file, tmp_path / "out", r"not a GGUF file \(it starts with b'PK")
    file.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(100))
    refused(file, tmp_path / "out", "GGUF version 50331648 is not supported")
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99) + bytes(8))
    refused(file, tmp_path / "out", "unknown value type 99")
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**64 - 9) + bytes(8))
    refused(file, tmp_path / "out", "damaged or cut short inside the header")


def test_a_missing_or_unknown_tensor_is_named(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", without=["blk.3.ffn_up.weight"])
    refused(file, tmp_path / "out", r"blk\.3\.ffn_up\.weight is missing")
    file = write_gguf(llama, tmp_path / "model.gguf", without=["token_embd.weight"])
    refused(file, tmp_path / "out", r"token_embd\.weight is missing")
    extra = {"blk.1.attn_q.lora_a": np.ones((32, 64), np.float32)}
    file = write_gguf(llama, tmp_path / "model.gguf", tensors=extra)
    refused(file, tmp_path / "out", r"blk\.1\.attn_q\.lora_a is not a tensor of llama, and dropping it")


def test_a_tensor_of_another_size_is_named(llama, tmp_path):
    name = "blk.1.ffn_up.weight"
    wrong = {name: np.ones((64, 64), np.float32)}
    file = write_gguf(llama, tmp_path / "model.gguf", without=[name], tensors=wrong)
    refused(file, tmp_path / "out", r"blk\.1\.ffn_up\.weight has size \[64, 64\], the header makes it \[128, 64\]")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, r"llama\.expert_count=8 is not carried over"),
        ({"llama.rope.scaling.type": "linear"}, r"llama\.rope\.scaling\.type=linear is not carried over"),
        ({"llama.rope.dimension_count": 8}, r"llama\.rope\.dimension_count=8 differs from the head width 16"),
        ({"llama.attention.value_length": 8}, r"llama\.attention\.value_length=8 differs from the head width 16"),
    ],
)
def test_entries_that_would_change_the_model_are_refused(llama, tmp_path, metadata, message):
    refused(write_gguf(llama, tmp_path / "model.gguf", metadata=metadata), tmp_path / "out", message)


def test_harmless_entries_are_accepted(llama, tmp_path):
    metadata = {"llama.rope.scaling.type": "none", "llama.vocab_size": 264, "llama.rope.dimension_count": 16}
    file = write_gguf(llama, tmp_path / "model.gguf", metadata=metadata)
    assert Shape.from_config(read_config(file)) == Shape.from_config(read_config(llama))


def test_an_unknown_quantisation_is_refused(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf", matrices=Q8)
    data = file.read_bytes()
    place = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    assert struct.unpack_from("<I", data, place) == (8,)
    file.write_bytes(data[:place] + struct.pack("<I", 77) + data[place + 4 :])
    refused(file, tmp_path / "out", r"blk\.0\.attn_q\.weight has the unknown quantisation type 77")


def test_only_an_earlier_import_is_replaced(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "model.gguf")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"exists, is not empty and holds no manifest\.json"):
        import_gguf(file, tmp_path / "out")
    (tmp_path / "out" / "thesis.tex").unlink()
    import_gguf(file, tmp_path / "out")
    import_gguf(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out"]


def test_shortest_decimals():
    for value in (1e-5, 1e-6, 5e-6, 10000.0, 500000.0, 1000000.0, 0.1):
        assert shortest_decimal(float(np.float32(value))) == value
    odd = float(np.float32(1.00001e-5))
    assert np.float32(shortest_decimal(odd)) == np.float32(odd) != np.float32(1e-5)
