"""Ids that a model has no row for are named with their place before a model reads them."""

from dataclasses import asdict

import pytest

from eval.chat import user_turn
from eval.decoding.generate import write_traces
from eval.prompts import Prompt
from eval.responses import Trace, claim_shards, read_traces, require_known_ids, row_location, write_shard
from tests.eval.responses.test_traces import GREEDY
from tests.rejections import rejects

ASKED = ({"role": "user", "content": "why"},)


def test_a_row_is_found_in_its_shard(tmp_path):
    paths = claim_shards(tmp_path, "train", {}, num_shards=3)
    for path, count in zip(paths, (2, 1, 2), strict=True):
        write_shard(path, [{}] * count)
    assert [row_location(tmp_path, "train", row) for row in range(5)] == [
        f"{tmp_path}/train-0000{shard}.jsonl:{line}" for shard, line in ((0, 1), (0, 2), (1, 1), (2, 1), (2, 2))
    ]


@pytest.mark.parametrize(("prompt", "response"), [((1, 12), (2,)), ((1, 2), (3, 12))])
def test_prompts_and_responses_count_and_the_smallest_model_is_named(tmp_path, prompt, response):
    paths = claim_shards(tmp_path, "eval", {}, num_shards=2)
    rows = [Trace(0, "p:1", ASKED, (1,), (2,), "", "stop"), Trace(1, "p:2", ASKED, prompt, response, "", "stop")]
    for path, trace in zip(paths, rows, strict=True):
        write_shard(path, [asdict(trace)])
    ids = [trace.token_ids for trace in read_traces(tmp_path, "eval")]
    models = {tmp_path / "large": 20, tmp_path / "small": 12, tmp_path / "larger": 30}
    require_known_ids(ids, tmp_path, "eval", {**models, tmp_path / "small": 13})
    with rejects("eval-00001.jsonl:1:", 12, tmp_path / "small", "vocab_size"):
        require_known_ids(ids, tmp_path, "eval", models)


def test_a_prompt_whose_tokens_the_target_has_no_rows_for_is_refused_by_row(make_checkpoint, tmp_path):
    target = make_checkpoint(num_hidden_layers=1, vocab_size=258)  # its tokenizer has 259 tokens
    prompts = [Prompt(f"p.jsonl:{n}", (user_turn(text),)) for n, text in ((1, "plain"), (2, "\u00ed"))]
    write_traces(target, prompts[:1], tmp_path / "known", GREEDY)
    with rejects("p.jsonl:2:", target, "vocab_size", 258):
        write_traces(target, prompts, tmp_path / "unknown", GREEDY)
