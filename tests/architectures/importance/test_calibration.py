"""Calibration text: how it is cut, what is read of it, what is refused; and the files that hold scores."""

import numpy as np
import pytest
import torch

from architectures.pruning import importance
from architectures.pruning.importance import calibration_sequences, read_calibration_text
from architectures.pruning.plan import load_scores, save_scores
from tests.rejections import rejects

EOS = 2


def test_texts_follow_each_other_with_the_end_of_sequence_between(tokenizer):
    ids = calibration_sequences(["abc", "", "de", "fgh"], tokenizer, tokens=9)

    assert ids.shape == (4, 2)
    assert ids.dtype == torch.int64
    assert tokenizer.decode(ids.flatten()) == "abc<|im_end|>de<|im_end|>f"
    assert (ids == EOS).sum() == 2


def test_no_special_tokens_are_added(tokenizer):
    class Eager:
        eos_token_id = None

        def encode(self, text, *, add_special_tokens=True):
            return [1] * add_special_tokens + tokenizer.encode(text)

    ids = calibration_sequences(["abcd"], Eager(), tokens=4)

    assert tokenizer.decode(ids.flatten()) == "abcd"


@pytest.mark.parametrize(
    ("tokens", "context_tokens", "shape"),
    [
        (1024, None, (4, 256)),
        (1000, None, (4, 250)),
        (1300, 4096, (5, 256)),
        (67, None, (4, 16)),
        (1024, 100, (10, 100)),
    ],
)
def test_tokens_are_rounded_down_to_whole_sequences(tokenizer, tokens, context_tokens, shape):
    text = ["x" * (shape[0] * shape[1])]
    assert calibration_sequences(text, tokenizer, tokens=tokens, context_tokens=context_tokens).shape == shape


def test_no_text_is_read_that_is_not_needed(tokenizer):
    texts = iter(["abcd", "efgh", "never read"])

    calibration_sequences(texts, tokenizer, tokens=8)

    assert list(texts) == ["never read"]


@pytest.mark.parametrize("texts", [["abc", "defg"], []])
def test_too_little_text_names_both_counts_and_the_remedy(tokenizer, texts):
    with rejects(8 if texts else 0, 12, "architecture.calibration.tokens"):
        calibration_sequences(texts, tokenizer, tokens=13)


def test_paragraphs_are_parted_by_blank_lines(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n\none\ntwo\n \n\nthree é\n", encoding="utf-8")

    assert list(read_calibration_text(file)) == ["one\ntwo\n", "three é\n"]


def test_a_file_without_blank_lines_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(importance, "MAX_PARAGRAPH_CHARS", 5)
    (tmp_path / "text.txt").write_text("one\ntwo\nsix\nten\nend\n")

    pieces = list(read_calibration_text(tmp_path / "text.txt"))

    assert pieces == ["one\ntwo\n", "six\nten\n", "end\n"]


@pytest.mark.parametrize("content", [None, b"fine\n\n\xff\n", b" \n\n"])
def test_a_file_that_is_no_text(tmp_path, content):
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)

    with rejects("text.txt"):
        list(read_calibration_text(tmp_path / "text.txt"))


def test_scores_come_back_equal(tmp_path):
    rows = np.random.default_rng(0).random((3, 5))
    arrays = {"flap.heads_LN": rows, "flap.neurons_LF": rows.T, "removal_order": [2, 0, 1], "merge_order": []}

    save_scores(tmp_path / "new" / "scores.safetensors", arrays)
    found = load_scores(tmp_path / "new" / "scores.safetensors")

    assert found.arrays.keys() == arrays.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], np.asarray(values))
        assert found.arrays[name].dtype == np.float64
    assert found.need("removal_order").tolist() == [2, 0, 1]
