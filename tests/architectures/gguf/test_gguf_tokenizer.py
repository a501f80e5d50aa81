"""The tokenizer and the stop tokens a GGUF file carries come along, special tokens added where llama.cpp adds them."""

import json

import pytest
from transformers import AutoTokenizer

from architectures.gguf_import import import_gguf


def test_tokenizer_template_and_generation_settings_come_along(write_gguf, llama, tmp_path):
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


def test_the_beginning_token_is_added_if_the_file_says_so(write_gguf, llama, tmp_path):
    plain = write_gguf(llama, tmp_path / "plain.gguf")
    marked = write_gguf(llama, tmp_path / "marked.gguf", metadata={"tokenizer.ggml.add_bos_token": True})
    for file in (plain, marked):
        import_gguf(file, tmp_path / file.stem)

    ids = {stem: AutoTokenizer.from_pretrained(tmp_path / stem)("hello").input_ids for stem in ("plain", "marked")}

    assert ids == {"plain": [262], "marked": [1, 262]}


@pytest.mark.parametrize(
    ("added", "ids"),
    [({}, [1, 263]), ({"bos": False}, [263]), ({"bos": True, "eos": True}, [1, 263, 2]), ({"eos": True}, [1, 263, 2])],
)
def test_sentencepiece_text_begins_with_its_token_unless_the_file_says_not(write_gguf, llama, tmp_path, added, ids):
    metadata = {f"tokenizer.ggml.add_{name}_token": value for name, value in added.items()}
    file = write_gguf(llama, tmp_path / "model.gguf", sentencepiece=True, metadata=metadata)
    import_gguf(file, tmp_path / "out")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("hi").input_ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hi"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)


@pytest.mark.parametrize(
    ("splitting", "words"),
    [("smollm", ["1", "0", "ĊĊ", "2", ",", "Ġ", "5"]), ("gpt-2", ["10", "Ċ", "Ċ", "2", ",", "Ġ5"])],
)
def test_where_digits_stand_apart_the_spaces_before_them_stay_together(write_gguf, llama, tmp_path, splitting, words):
    import_gguf(write_gguf(llama, tmp_path / "model.gguf", splitting=splitting), tmp_path / "out")
    backend = AutoTokenizer.from_pretrained(tmp_path / "out").backend_tokenizer
    assert [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("10\n\n2, 5")] == words
