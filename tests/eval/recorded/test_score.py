"""A draft on recorded answers: what the scorecard with the target says, without it, and what it must not say."""

import json
import shutil

import pytest
import torch

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.errors import UserError
from eval.acceptance.replay import answer_logits, replay_counts
from eval.answers.traces import read_traces
from eval.config import EvalConfig
from eval.decoding.sampling import Sampling
from eval.recorded.answers import RecordedAnswer, answer_lengths, read_recorded_text, read_recorded_traces
from eval.recorded.export import export_recorded
from eval.recorded.matched_tokens import match_with_answers, read_rounds
from eval.recorded.score import accept_chances, score_recording
from eval.records.files import form_of
from eval.records.scorecard import RecordedScorecard
from eval.scorecard import score_drafts

WARM = Sampling(0.7)
COUNTED = ("position", "possible", "reached", "accepted")


def config(**changes):
    return EvalConfig(**{"lookaheads": (1, 2, 3, 4, 5), "num_resamples": 100, "num_threads": 1, **changes})


@pytest.fixture(scope="module")
def greedy_score(greedy_traces, noisy_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("score") / "card"
    return out, score(greedy_traces, noisy_folder, out)


def first_recorded(folder):
    trace = read_traces(folder, "eval")[0]
    return RecordedAnswer(trace.source, 0, trace.prompt_ids, trace.answer_ids, trace.answer_logp)


def score(traces, draft, out, **changes):
    return score_recording(read_recorded_traces(traces, draft), draft, config(**changes), out, seed=17)


def keys_in(value):
    if isinstance(value, dict):
        return set(value) | {key for child in value.values() for key in keys_in(child)}
    return {key for child in value for key in keys_in(child)} if isinstance(value, list) else set()


def test_greedy_acceptance_is_that_of_the_scorecard_with_the_target(
    asked, greedy_score, target_folder, noisy_folder, tmp_path
):
    whole_config = EvalConfig(
        lookaheads=(1, 2, 3, 4, 5),
        num_resamples=100,
        num_threads=1,
        max_new_tokens=24,
        temperatures=(0.0,),
        batch_size=3,
        latency_repeats=3,
        latency_batch_sizes=(),
        live_prompts=1,
    )
    whole = score_drafts(target_folder, {"draft": noisy_folder}, asked, whole_config, tmp_path, seed=17)
    [expected], [found] = whole.acceptance, greedy_score[1].acceptance
    assert found.lookahead == expected.lookahead
    assert found.accept_rate == expected.alpha
    assert (found.prompts, found.answers, found.rule) == (6, 8, "exact_greedy_draft")
    assert 0.1 < found.accept_rate.value < 0.9


def test_the_target_as_its_own_draft_is_always_right(greedy_traces, target_folder, tmp_path):
    [row] = score(greedy_traces, target_folder, tmp_path).acceptance
    assert row.accept_rate.value == 1
    for entry in row.lookahead:
        assert entry.accepted == entry.proposed


def test_what_needs_the_target_is_left_out_and_named(greedy_score):
    _, scorecard = greedy_score
    assert not keys_in(scorecard) & {
        "alpha",
        "greedy_match",
        "latency",
        "live",
        "speedup",
        "target",
        "differences",
        "target_changed_tokens",
        "predicted",
    }


def test_the_file_is_what_was_returned_and_says_where_it_came_from(asked, greedy_score, greedy_traces, target_folder):
    out, scorecard = greedy_score
    assert form_of(RecordedScorecard).validate_json((out / "scorecard.json").read_bytes()) == scorecard
    recording = scorecard.recording
    assert recording.target_fingerprint == fingerprint_checkpoint(target_folder)
    assert recording.tokens == sum(len(trace.answer_ids) for trace in read_traces(greedy_traces, "eval"))
    assert recording.sources == tuple(prompt.source for prompt in asked)
    assert set(scorecard.settings.model_dump()) == {
        "num_prompts",
        "lookaheads",
        "dtype",
        "confidence",
        "num_resamples",
        "num_threads",
        "seed",
        "threads",
        "device",
        "intervals",
        "sampling",
    }


def test_the_first_prompts_alone_are_scored(greedy_traces, noisy_folder, tmp_path):
    scorecard = score(greedy_traces, noisy_folder, tmp_path, num_prompts=2)
    assert (scorecard.recording.given, scorecard.recording.scored) == (6, 2)
    assert scorecard.acceptance[0].prompts == 2


def test_one_prompt_has_no_interval_and_the_page_says_so(greedy_traces, noisy_folder, tmp_path):
    scorecard = score(greedy_traces, noisy_folder, tmp_path, num_prompts=1)
    assert scorecard.acceptance[0].accept_rate.interval is None
    assert "nothing here has an interval" in (tmp_path / "scorecard.md").read_text()


def test_sampled_answers_without_chances_decide_the_rules_of_exact_match_alone(sampled_traces, noisy_folder, tmp_path):
    """As an earlier widedraft wrote them."""
    older = shutil.copytree(sampled_traces, tmp_path / "older")
    for shard in older.glob("eval-*.jsonl"):
        rows = [json.loads(line) for line in shard.read_text().splitlines()]
        shard.write_text("".join(json.dumps({**row, "answer_logp": None}) + "\n" for row in rows))
    scorecard = score(older, noisy_folder, tmp_path / "card")
    assert [row.rule for row in scorecard.acceptance] == ["exact_greedy_draft", "exact_sampled_draft"]
    assert {row.temperature for row in scorecard.acceptance} == {0.7}
    assert any("rejection" in entry.figure for entry in scorecard.left_out)
    assert not (tmp_path / "card/rounds").exists()  # no rounds happened that could be written down


def test_accept_chances_are_those_of_each_rule(sampled_traces, target, noisy_draft):
    trace = first_recorded(sampled_traces)
    logits_TV, own_TV = (answer_logits(model, trace.prompt_ids, trace.answer_ids) for model in (noisy_draft, target))
    q_T, p_T = (
        torch.softmax(each_TV.double() / 0.7, dim=-1)[range(len(trace.answer_ids)), list(trace.answer_ids)]
        for each_TV in (logits_TV, own_TV)
    )
    for rule, expected_T in {
        "rejection": (q_T / p_T).clamp(max=1),
        "exact_sampled_draft": q_T,
        "exact_greedy_draft": logits_TV.argmax(-1) == torch.tensor(trace.answer_ids),
    }.items():
        found = accept_chances(logits_TV, trace, rule=rule, sampling=WARM, context=trace.prompt_ids)
        assert found.tolist() == pytest.approx(expected_T.double().tolist(), rel=1e-4)


def test_a_sampled_draft_is_as_good_as_its_simulation(sampled_traces, noisy_draft, noisy_folder, tmp_path):
    """Expected rounds against rounds played: the draft draws from q, and keeps what equals the recorded token."""
    trace = first_recorded(sampled_traces)
    logits_TV = answer_logits(noisy_draft, trace.prompt_ids, trace.answer_ids)
    q_TV = torch.softmax(logits_TV / 0.7, dim=-1)
    drawn_NT = torch.multinomial(q_TV, 4000, replacement=True, generator=torch.Generator().manual_seed(1)).T
    how = {"rule": "exact_sampled_draft", "sampling": WARM, "context": trace.prompt_ids}
    accept_T = accept_chances(logits_TV, trace, **how)
    expected = replay_counts(accept_T, lookahead=3).rounds
    played = torch.tensor([rounds_played(row.tolist(), trace.answer_ids, lookahead=3) for row in drawn_NT]).double()
    assert abs(played.mean() - expected) < 4 * played.std() / len(played) ** 0.5
    assert played.std() > 0


def rounds_played(proposed, answer, *, lookahead):
    """Rounds of one play; a position is proposed at most once, so one draw a position is enough."""
    start = rounds = 0
    while start < len(answer):
        room = min(lookahead, len(answer) - start - 1)
        accepted = next((k for k in range(room) if proposed[start + k] != answer[start + k]), room)
        start, rounds = start + accepted + 1, rounds + 1
    return rounds


def drafted(model, ids, count):
    """The argmax, one token after another, without a cache."""
    with torch.inference_mode():
        for _ in range(count):
            ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[-count:]


@pytest.mark.parametrize("lookahead", [1, 3, 5])
def test_written_rounds_are_those_of_redrafting(greedy_score, greedy_traces, noisy_draft, lookahead):
    """The loop the format comes from: draft again each round, compare with the recorded answer, stop before its end."""
    expected = []
    for trace in read_traces(greedy_traces, "eval"):
        total, answer = 0, list(trace.answer_ids)
        while total < len(answer) - lookahead - 2:
            prefix = [*trace.prompt_ids, *answer[:total]]
            proposed = drafted(noisy_draft, prefix, lookahead)
            accepted = next((k for k in range(lookahead) if proposed[k] != answer[total + k]), lookahead)
            total += accepted + 1
            expected.append(f"[{total}]\n")
    assert (greedy_score[0] / "rounds" / f"lookahead-{lookahead}.txt").read_text() == "".join(expected)
    assert expected


def test_written_rounds_are_read_with_their_answers(greedy_score, greedy_traces):
    rounds = read_rounds(greedy_score[0] / "rounds" / "lookahead-2.txt")
    matched = match_with_answers(rounds, answer_lengths(greedy_traces), lookahead=2)
    assert len(matched.prompts) == len(read_traces(greedy_traces, "eval"))
    assert matched.num_rounds == len(rounds)


def test_exported_text_scores_as_the_traces_do(greedy_score, greedy_traces, target_folder, noisy_folder, tmp_path):
    assert export_recorded(greedy_traces, target_folder, tmp_path / "text") == 8
    recording = read_recorded_text(
        tmp_path / "text" / "ground_truth.txt", str(tmp_path / "text" / "prompts.jsonl"), noisy_folder
    )
    traces = read_traces(greedy_traces, "eval")
    assert [(a.prompt_ids, a.answer_ids) for a in recording.answers] == [(t.prompt_ids, t.answer_ids) for t in traces]
    scorecard = score_recording(recording, noisy_folder, config(), tmp_path / "card", seed=17)
    [found], [expected] = scorecard.acceptance, greedy_score[1].acceptance
    for ours, theirs in zip(found.lookahead, expected.lookahead, strict=True):
        assert (ours.rounds, ours.accepted) == (theirs.rounds, theirs.accepted)
        for own, other in zip(ours.positions, theirs.positions, strict=True):  # intervals: turns became prompts
            assert [getattr(own, name) for name in COUNTED] == [getattr(other, name) for name in COUNTED]
    assert found.prompts == 8  # the text does not say which prompts were one conversation
    for lookahead in range(1, 6):
        name = f"rounds/lookahead-{lookahead}.txt"
        assert (tmp_path / "card" / name).read_bytes() == (greedy_score[0] / name).read_bytes()
    assert "does not say which tokenizer" in scorecard.warnings[0]
    assert scorecard.recording.target_fingerprint is None


def test_a_draft_too_short_for_the_answers_is_refused(greedy_traces, make_checkpoint, tmp_path):
    with pytest.raises(UserError, match="max_position_embeddings is 64, but the longest text to score has"):
        score(greedy_traces, make_checkpoint(seed=2, max_position_embeddings=64), tmp_path)


CHOSEN = {"top_p": 0.9, "top_k": 40, "min_p": 0.02, "repetition_penalty": 1.2}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_recorded_answers_are_scored_as_with_their_target_by_every_rule(
    asked, target_folder, noisy_folder, tmp_path, temperature
):
    """With every setting that a server has: alpha of the text and tau, without the target, from what it wrote down."""
    how = {"max_new_tokens": 24, "temperatures": (temperature,), "sampling": CHOSEN, "batch_size": 3}
    quick = {"latency_repeats": 3, "latency_batch_sizes": (), "live_prompts": 1}
    whole = score_drafts(target_folder, {"draft": noisy_folder}, asked, config(**how, **quick), tmp_path, seed=17)
    [folder] = (tmp_path / "answers").iterdir()
    recorded = score(folder, noisy_folder, tmp_path / "recorded")
    [expected] = whole.acceptance
    rules = {row.rule: row for row in (expected, *expected.other_rules)}
    assert [row.rule for row in recorded.acceptance] == list(rules)
    for row in recorded.acceptance:
        assert row.accept_rate.value == pytest.approx(rules[row.rule].alpha_of_text.value, abs=1e-5)
        for own, other in zip(row.lookahead, rules[row.rule].lookahead, strict=True):
            assert own.tau.value == pytest.approx(other.tau.value, abs=1e-5)
    assert recorded.recording.sampling == whole.settings.sampling if temperature else True
    figures = [entry.figure for entry in recorded.left_out]
    assert not any("rejection" in figure for figure in figures)
    assert 0.1 < recorded.acceptance[0].accept_rate.value < 0.95
