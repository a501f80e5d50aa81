"""A draft on recorded responses: what the scorecard with the target has, without it."""

import json
import shutil

import pytest
import torch

from architectures.manifest import fingerprint_checkpoint
from eval.config import EvalConfig
from eval.recorded import (
    read_recorded_text,
    read_recorded_traces,
    read_text_responses,
    score_recording,
)
from eval.responses import read_traces
from eval.scorecard import score_drafts
from eval.scorecard_schema import RecordedScorecard
from tests.rejections import rejects

CHOSEN = {"top_p": 0.9, "top_k": 40, "min_p": 0.02, "repetition_penalty": 1.2}


def config(**changes):
    return EvalConfig(**{"num_speculative_tokens": (1, 2, 3, 4, 5), **changes})


def score(traces, draft, out, **changes):
    return score_recording(read_recorded_traces(traces, draft), draft, config(**changes), out, seed=17)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_recorded_responses_are_scored_as_with_their_target_by_every_method(
    asked, target_folder, noisy_folder, tmp_path, temperature
):
    how = {"max_new_tokens": 24, "temperatures": (temperature,), "sampling": CHOSEN, "batch_size": 3}
    quick = {"latency_repeats": 1, "latency_batch_sizes": (), "wall_clock_prompts": 1}
    whole = score_drafts(target_folder, {"draft": noisy_folder}, asked, config(**how, **quick), tmp_path, seed=17)
    [folder] = (tmp_path / "responses").iterdir()
    card = score(folder, noisy_folder, tmp_path / "recorded")
    assert RecordedScorecard.model_validate_json((tmp_path / "recorded/scorecard.json").read_bytes()) == card
    assert card.recording.target_fingerprint == fingerprint_checkpoint(target_folder)
    assert card.recording.sources == whole.prompts.sources
    [expected] = whole.acceptance
    rules = {row.rule: row for row in (expected, *expected.other_rules)}
    assert [row.rule for row in card.acceptance] == list(rules)
    for row in card.acceptance:
        assert (row.prompts, row.responses) == (expected.prompts, expected.responses)
        assert row.accept_rate.value == pytest.approx(rules[row.rule].alpha_of_text.value, abs=1e-5)
        for own, other in zip(row.by_k, rules[row.rule].by_k, strict=True):
            assert own.tau.value == pytest.approx(other.tau.value, abs=1e-5)
            assert own == other or temperature
    assert 0.1 < card.acceptance[0].accept_rate.value < 0.95


def test_without_probabilities_rejection_sampling_is_left_out(sampled_traces, noisy_folder, tmp_path):
    bare = shutil.copytree(sampled_traces, tmp_path / "bare")
    for shard in bare.glob("eval-*.jsonl"):
        rows = [json.loads(line) for line in shard.read_text().splitlines()]
        shard.write_text("".join(json.dumps({**row, "response_logp": None}) + "\n" for row in rows))
    card = score(bare, noisy_folder, tmp_path / "card")
    assert [row.rule for row in card.acceptance] == ["exact_greedy_draft", "exact_sampled_draft"]


def test_text_scores_as_the_traces_do(greedy_traces, noisy_folder, tmp_path):
    """Greedy responses as torch prints them, next to prompts that the tokenizer makes the recorded tokens of."""
    from eval.models import load_tokenizer

    tokenizer, traces = load_tokenizer(noisy_folder), read_traces(greedy_traces, "eval")
    rows = [json.dumps({"prompt": tokenizer.decode(list(trace.prompt_ids))}) + "\n" for trace in traces]
    (tmp_path / "prompts.jsonl").write_text("".join(rows) + rows[0])
    (tmp_path / "text.txt").write_text("\n".join(str(torch.tensor([trace.response_ids])) for trace in traces))
    recording = read_recorded_text(tmp_path / "text.txt", str(tmp_path / "prompts.jsonl"), noisy_folder)
    assert [(a.prompt_ids, a.response_ids) for _, a in recording.responses] == [
        (t.prompt_ids, t.response_ids) for t in traces
    ]
    assert (recording.unanswered, recording.target) == (1, None)
    found = score_recording(recording, noisy_folder, config(), tmp_path / "card", seed=17)
    expected = score(greedy_traces, noisy_folder, tmp_path / "of-traces")
    for ours, theirs in zip(found.acceptance[0].by_k, expected.acceptance[0].by_k, strict=True):
        assert (ours.steps, ours.accepted, ours.histogram) == (theirs.steps, theirs.accepted, theirs.histogram)
    (tmp_path / "prompts.jsonl").write_text(rows[0])
    with rejects("prompts.jsonl", 1):
        read_recorded_text(tmp_path / "text.txt", str(tmp_path / "prompts.jsonl"), noisy_folder)


def test_blocks_are_read_as_torch_prints_them(tmp_path):
    path = tmp_path / "truth.txt"
    path.write_text(
        "\ntensor([[  518, 799, 596, 18873,  1265,\n          7875, 29991, 2]]) tensor([[3]], device='cuda:0',\n"
        "       dtype=torch.int32)\n\ntensor([[0]])"
    )
    assert read_text_responses(path, vocab_size=32000) == [(518, 799, 596, 18873, 1265, 7875, 29991, 2), (3,), (0,)]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("tensor([[1, 2]]\ntensor([[3]])\n", "truth.txt:1: block 1"),
        ("tensor([[3]])\n\ntensor([[1, 2])\n", "truth.txt:3: block 2"),
        ("tensor([[1, ..., 2]])", "truth.txt:1: block 1"),
        ("tensor([[1, 32000]])", "truth.txt:1: 32000"),
        (" \n", "truth.txt: "),
    ],
)
def test_another_text_is_rejected_by_its_line(tmp_path, text, where):
    (tmp_path / "truth.txt").write_text(text)
    with rejects(*where.split()):
        read_text_responses(tmp_path / "truth.txt", vocab_size=32000)


def test_a_draft_too_short_or_too_small_for_the_responses_is_rejected(
    greedy_traces, make_checkpoint, noisy_folder, tmp_path
):
    with rejects("max_position_embeddings", 64):
        score(greedy_traces, make_checkpoint(seed=2, max_position_embeddings=64), tmp_path)
    draft = shutil.copytree(noisy_folder, tmp_path / "draft")
    settings = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**settings, "vocab_size": 258}))
    with rejects("vocab_size", 258):
        read_recorded_traces(greedy_traces, draft)
