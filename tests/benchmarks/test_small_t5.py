"""The target that is trained where none can be had: it opens, and its prompts are text that it was not trained on."""

import json
import sys

from benchmarks import small_t5
from eval.models.loading import load_model, load_tokenizer

TEXT = "The river ran past the mill, and the miller counted sacks of grain until the evening came.\n"


def test_it_leaves_a_target_and_prompts_of_the_last_tenth(tmp_path, monkeypatch):
    text, out, prompts = (tmp_path / name for name in ("text.txt", "target", "prompts.jsonl"))
    text.write_text(TEXT * 80 + TEXT.upper() * 20, encoding="utf-8")
    sizes = ["--vocab", "280", "--width", "32", "--layers", "1", "2", "--window", "8", "4", "--num-prompts", "5"]
    words = ["--text", str(text), "--out", str(out), "--prompts", str(prompts), "--steps", "2", *sizes]
    monkeypatch.setattr(sys, "argv", ["small_t5", *words])
    small_t5.main()

    model = load_model(out, dtype="float32", device="cpu")
    assert (len(model.encoder.block), len(model.decoder.block)) == (1, 2)
    rows = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    assert len(rows) == 5
    assert all(row.upper() == row for row in rows)
    lengths = [len(load_tokenizer(out)(row)["input_ids"]) for row in rows]
    assert all(3 <= length <= 9 for length in lengths)
    assert len(set(lengths)) > 1
