"""Heads of fewer rows are timed beside whole ones in which nothing else differs."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from architectures.shapes.shape import Shape


@pytest.fixture(scope="module")
def bench():
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "head_rows.py"))


def test_every_draft_is_timed_with_every_head(bench, tmp_path, capsys):
    out = tmp_path / "head_rows.json"
    few = ["--tiny", "--rows", "100", "300", "--context", "8", "--repeats", "6", "--threads", "1"]
    bench["main"]([*few, "--dtype", "float32", "--out", str(out)])
    record, printed = json.loads(out.read_text()), capsys.readouterr().out
    drafts = [(name, layers) for name, family in bench["FAMILIES"].items() for layers in family.layers]
    expected = [(*draft, rows, tokens) for draft in drafts for rows in (600, 100, 300) for tokens in (1, 5)]
    assert [(row["target"], row["layers"], row["rows"], row["tokens"]) for row in record["rows"]] == expected
    for row in record["rows"]:
        assert row["whole"] == (row["rows"] == 600)
        assert row["median_ms"] > 0
        assert row["over_whole"] == 1 if row["whole"] else row["over_whole"] > 0
        assert row["over_whole_interval"][0] <= row["over_whole_interval"][1]
        assert f"| {row['rows']} | {row['tokens']} | {row['median_ms']:.2f} |" in printed
    assert (record["settings"]["threads"], record["settings"]["dtype"]) == (1, "float32")
    assert record["provenance"]["hardware"]["processor"]
    by_rows = {row["rows"]: row["read_bytes"] for row in record["rows"][:6]}
    assert by_rows[600] - by_rows[100] == 500 * 64 * 4


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen2.5-7B"])
def test_the_shapes_are_those_of_our_recipes(bench, name):
    config, wanted, layers = bench["FAMILIES"][name]
    shape = bench["draft_shape"](Shape.from_config(config), wanted)
    assert {"Llama-3.1-8B": 566_777_856, "Qwen2.5-7B": 1_746_072_576}[name] == shape.parameters()
    assert max(layers) <= shape.layers


def test_nothing_but_the_head_differs(bench):
    family = bench["FAMILIES"]["Qwen2.5-7B"]
    config = {**family.config, **bench["TINY"], "num_key_value_heads": 2, "head_dim": 16}
    whole = bench["random_model"](config, bench["draft_shape"](Shape.from_config(config), family.wanted), torch.float32)
    twin = bench["with_rows"](whole, 50)
    ids_BT = torch.arange(6)[None]
    with torch.inference_mode():
        logits_BTV = whole(ids_BT).logits
        torch.testing.assert_close(twin(ids_BT).logits, logits_BTV[..., :50])
    assert logits_BTV.isfinite().all()
    assert logits_BTV.std() > 0
    layers = zip(whole.model.parameters(), twin.model.parameters(), strict=True)
    assert all(one.data_ptr() == other.data_ptr() for one, other in layers)
    assert whole.get_output_embeddings().weight.shape == (600, 64)
