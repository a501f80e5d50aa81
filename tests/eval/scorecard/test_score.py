"""The whole of scoring on tiny models: what is written, that it is repeatable, and that a lie would show."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from architectures.manifest import fingerprint_value
from eval.acceptance_rates import Responses, prompt_limit, replay_drafts
from eval.chat import render_prompt
from eval.config import EvalConfig
from eval.decoding.sampling import Decoded, Limits, Sampling, Speculation, VerificationStep
from eval.decoding.speculative import plain_decode, speculative_decode
from eval.intervals import Resampling
from eval.models import load_model, load_tokenizer
from eval.prompts import Prompt
from eval.replay import ResponseScore, count_trace, rule_names
from eval.responses import Trace, read_traces
from eval.scorecard import forecast, measure_batches, score_drafts, speedup_row, typical_context
from eval.scorecard_schema import (
    LOOKUP,
    LOOKUP_THEN_DRAFT,
    Spent,
    SpentByBoth,
    StepCounts,
    read_grid_file,
    read_scorecard,
)
from eval.speedup import StepTimes, break_even_alpha
from eval.wall_clock import DRAFT, LiveResponse, LiveWay, best_lookup, compare_with_replay, live_record
from tests.conftest import stopped_by_many
from tests.eval.scorecard.test_acceptance_record import GOOD
from tests.rejections import rejects


@pytest.fixture(scope="module", autouse=True)
def _intervals_of_three_prompts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eval.scorecard.CONFIDENCE", 0.75)
        yield


def config(**changes):
    settings = {
        "max_new_tokens": 24,
        "num_speculative_tokens": (1, 2, 3, 4),
        "batch_size": 3,
        "latency_repeats": 3,
        "latency_batch_sizes": (),
        "wall_clock_prompts": 4,
        "max_prompt_len": 300,
    }
    return EvalConfig(**{**settings, **changes})


def ask(text, *later_turns, source="p.jsonl:1"):
    return Prompt(source, ({"role": "user", "content": text},), later_turns)


PROMPTS = [ask(text, source=f"p.jsonl:{i}") for i, text in enumerate(("why", "how many", "say hello", "x", "2+2?"), 1)]
PROMPTS[-1] = replace(PROMPTS[-1], category="arithmetic", task="gsm8k/1")


TALK = replace(PROMPTS[1], later_turns=("and then", "so"))


def test_by_default_prompts_are_as_long_as_context_and_memory_allow(make_checkpoint, monkeypatch):
    target, short = make_checkpoint(), make_checkpoint(max_position_embeddings=64)
    once, talk = ask("a" * 50), ask("a" * 50, "b" * 50)

    def limit(*models, prompts=(talk,), **changes):
        return prompt_limit(config(**{"max_prompt_len": None, **changes}), models, prompts)

    length = len(render_prompt(load_tokenizer(target), once))
    assert limit(target, prompts=(*PROMPTS, once)) == length
    assert limit(target) > length + 50 + 24
    assert limit(target, short) == 64 - 24
    assert limit(target, max_prompt_len=300) == 300
    monkeypatch.setattr("eval.acceptance_rates.PROMPT_TOKENS", 20)
    assert limit(target) == 3 * 20


GIVEN = [PROMPTS[0], ask("a" * 400, "and", source="p.jsonl:0"), TALK, *PROMPTS[2:], ask("not taken")]
SHORT: dict[str, Any] = {
    "temperatures": (0.0,),
    "num_speculative_tokens": (2,),
    "latency_repeats": 1,
    "wall_clock_prompts": 1,
}


@pytest.fixture(scope="module")
def scored(target_folder, noisy_folder, tiny_draft, tmp_path_factory):
    """Two drafts on five prompts, of which one is a conversation of three turns; one more is too long."""
    out = tmp_path_factory.mktemp("score") / "eval"
    drafts = {"undistilled": tiny_draft, "draft": noisy_folder}
    return out, score_drafts(target_folder, drafts, GIVEN, config(num_prompts=6), out, seed=17)


@pytest.fixture(scope="module")
def scorecard(scored):
    return scored[1]


def acceptance(scorecard, draft, temperature):
    [row] = [r for r in scorecard.acceptance if (r.draft, r.temperature) == (draft, temperature)]
    return row


def test_the_file_is_what_was_returned(scored):
    out, scorecard = scored
    assert read_scorecard(out / "scorecard.json") == scorecard
    assert scorecard.format == "widedraft.scorecard/6"
    assert sorted(path.name for path in out.iterdir()) == [
        "examples.json",
        "responses",
        "scorecard.json",
        "scorecard.md",
    ]


def test_loop_and_replay_agree_in_float32(scorecard):
    agreement = scorecard.live.agreement
    assert agreement.exact is True
    assert agreement.same_text == agreement.same_as_recorded == agreement.same_counts == 4
    assert agreement.loop == agreement.replay
    assert 0 < agreement.loop.accepted < agreement.loop.proposed
    assert not [text for text in scorecard.warnings if "report it" in text]


def test_a_conversation_is_one_prompt_and_what_is_too_long_is_left_out_and_counted(scorecard):
    counted = {key: getattr(scorecard.prompts, key) for key in ("given", "taken", "too_long", "scored")}
    assert counted == {"given": 7, "taken": 6, "too_long": 1, "scored": 5}
    assert scorecard.prompts.sources == tuple(f"p.jsonl:{number}" for number in range(1, 6))
    assert {(row.prompts, row.responses) for row in scorecard.acceptance} == {(5, 7)}
    assert {live.prompts for live in scorecard.lives} == {4}


def test_at_temperature_one_tau_is_told_under_all_three_rules(scorecard):
    for draft in ("undistilled", "draft"):
        row = acceptance(scorecard, draft, 1.0)
        assert [row.rule, *(other.rule for other in row.other_rules)] == list(rule_names(1.0))
        for other in row.other_rules:
            assert other.alpha.value < row.alpha.value
            assert other.alpha.tokens == row.alpha.tokens
            for theirs, ours in zip(other.by_k, row.by_k, strict=True):
                assert theirs.num_speculative_tokens == ours.num_speculative_tokens
                assert 1 <= theirs.tau.value < ours.tau.value  # less than rejection at every token
        assert acceptance(scorecard, draft, 0.0).other_rules == ()
    for row in scorecard.differences:
        assert [other.rule for other in row.other_rules] == list(rule_names(row.temperature)[1:])


def test_sums_of_every_prompt_add_up(scorecard):
    for row in scorecard.acceptance:
        sums = row.by_prompt
        assert all(
            len(column) == len(scorecard.prompts.sources) for column in (sums.tokens, sums.alpha, sums.greedy_match)
        )
        assert sum(sums.tokens) == row.alpha.tokens
        assert sum(sums.alpha) == pytest.approx(row.alpha.sum)
        assert sum(sums.greedy_match) == row.greedy_match.sum
        for steps, entry in zip(sums.steps, row.by_k, strict=True):
            assert steps.num_speculative_tokens == entry.num_speculative_tokens
            assert sum(steps.counts) == pytest.approx(entry.steps)


def test_bins_are_of_tasks_and_categories(scorecard):
    for row in scorecard.acceptance:
        names = [one.bin for part in row.bins[:2] for one in part.bins]
        assert names == ["gsm8k/1", "without a task", "arithmetic", "without a category"]


def test_every_lookahead_up_to_sixteen_comes_from_the_one_pass(scored, target, noisy_draft):
    traces = read_traces(scored[0] / "responses" / "T0", "eval")[:2]
    [replayed] = replay_drafts(target, {"draft": noisy_draft}, Responses(traces, [0, 1]), sampling=Sampling())
    [score] = replayed.scores(range(1, 17))
    for k in (9, 16):
        prompts = [trace.prompt_ids for trace in traces]
        how = {"limits": Limits(24, {2}), "speculation": Speculation(k)}
        steps = [one for text in speculative_decode(target, noisy_draft, prompts, **how) for one in text.steps]
        counts = score.pooled(k)
        assert (counts.steps, counts.accepted_tokens) == (len(steps), sum(one.accepted for one in steps))


def test_the_better_draft_scores_better_by_the_paired_difference(scorecard):
    for row in scorecard.differences:
        assert (row.draft, row.baseline) == ("draft", "undistilled")
        ours, theirs = (acceptance(scorecard, name, row.temperature) for name in ("draft", "undistilled"))
        assert row.alpha.value == pytest.approx(ours.alpha.value - theirs.alpha.value)
        assert row.alpha.interval[0] > 0.1
        assert [entry.num_speculative_tokens for entry in row.by_k] == [1, 2, 3, 4]
    assert [row.temperature for row in scorecard.differences] == [0.0, 1.0]


def test_at_temperature_zero_alpha_is_argmax_agreement(scorecard):
    row = acceptance(scorecard, "draft", 0.0)
    assert row.alpha.value == row.greedy_match.value
    assert row.target_changed_tokens == 0


def test_the_prediction_follows_from_the_recorded_terms(scorecard):
    latency = scorecard.latency
    for row in scorecard.speedup:
        [draft] = [each for each in latency.drafts if each.draft == row.draft]
        steps = acceptance(scorecard, row.draft, row.temperature).by_k
        assert row.cost_ratio == draft.one_token.median_ms / latency.target.median_ms
        for entry, counts, verify in zip(row.by_k, steps, latency.verify, strict=True):
            one, two = draft.one_token.median_ms, draft.two_tokens.median_ms
            full = counts.fully_accepted / counts.steps
            spent = entry.num_speculative_tokens * one + full * (two - one) + verify.median_ms
            plain = counts.tau.value * latency.target.median_ms
            assert entry.predicted == pytest.approx(plain / spent)
        best = max(row.by_k, key=lambda entry: entry.predicted)
        assert (row.best_k, row.predicted) == (best.num_speculative_tokens, best.predicted)
        assert row.break_even_alpha == best.break_even_alpha


def test_the_live_loop_runs_at_the_best_predicted_k(scorecard):
    [forecast] = [row for row in scorecard.speedup if (row.draft, row.temperature) == ("draft", 0.0)]
    live = scorecard.live
    assert live.num_speculative_tokens == forecast.best_k
    assert live.predicted_decoding_speedup == forecast.predicted
    per_token = [spent.decode_s / spent.tokens for spent in (live.plain, live.speculative)]
    assert live.decoding_speedup.value == pytest.approx(per_token[0] / per_token[1])
    whole = [spent.decode_s + spent.prefill_s for spent in (live.plain, live.speculative)]
    assert live.speedup.value == pytest.approx(whole[0] / whole[1])


def test_lookup_alone_and_before_the_draft_decode_the_same_greedy_texts(scorecard):
    ways = {way.way: way for way in scorecard.live.ways}
    assert set(ways) == {LOOKUP, LOOKUP_THEN_DRAFT}
    for way in ways.values():
        assert way.same_text == scorecard.live.prompts
        assert way.acceptance_length >= 1
        assert way.acceptance_rate is None or 0 <= way.acceptance_rate <= 1


def test_origins_are_recorded(scorecard, target_folder):
    from architectures.manifest import fingerprint_checkpoint

    assert scorecard.target.fingerprint == fingerprint_checkpoint(target_folder)
    assert [(row.draft, row.layers) for row in scorecard.drafts] == [("undistilled", 2), ("draft", 4)]
    stored = load_file(target_folder / "model.safetensors")  # tied embeddings once
    assert scorecard.target.parameters == sum(tensor.numel() for tensor in stored.values())


def test_a_rerun_reads_the_recorded_responses(scored, target_folder, noisy_folder, tmp_path, monkeypatch):
    first_out, scorecard = scored
    out = Path(shutil.copytree(first_out, tmp_path / "eval"))
    shards = {path: path.stat().st_mtime_ns for path in out.rglob("eval-*.jsonl")}
    assert len(shards) == 4  # six prompts in shards of three, at two temperatures
    monkeypatch.setattr("eval.scorecard.CONFIDENCE", 0.5)
    asked = config(**{**SHORT, "temperatures": (1.0,)}, num_prompts=6)
    again = score_drafts(target_folder, {"draft": noisy_folder}, GIVEN, asked, out, seed=17)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("eval-*.jsonl")} == shards
    assert again.prompts == scorecard.prompts.model_copy(update={"responses": scorecard.prompts.responses[1:]})
    assert again.differences == ()
    (low, high), (new_low, new_high) = (acceptance(one, "draft", 1.0).alpha.interval for one in (scorecard, again))
    assert low < new_low < new_high < high  # the same estimate, at less confidence


def test_responses_are_decoded_as_the_replay_assumes(scored):
    """Where nothing is said of top-p and the others, all of the probability is sampled from."""
    for temperature in (0, 1):
        claim = json.loads((scored[0] / "responses" / f"T{temperature}" / "settings.json").read_text())["eval"]
        expected = {"temperature": temperature, "top_p": 1, "seed": 17, "max_new_tokens": 24, "dtype": "float32"}
        assert claim["settings"].items() >= expected.items()


def test_prompts_and_responses_are_told_by_the_hash_of_their_tokens(scored):
    out, scorecard = scored
    for temperature, counted in zip((0, 1), scorecard.prompts.responses, strict=True):
        traces = read_traces(out / "responses" / f"T{temperature}", "eval")
        assert scorecard.prompts.ids_sha256 == fingerprint_value(
            [list(trace.prompt_ids) for trace in traces if "#" not in trace.source]
        )
        assert counted.ids_sha256 == fingerprint_value([list(trace.response_ids) for trace in traces])


def test_steps_are_timed_after_the_prompt_and_half_of_the_response_of_median_length():
    lengths = [(2, 9), (3, 2), (9, 9), (1, 1), (5, 2)]  # with half of the response: 6, 4, 13, 1, 6
    traces = [
        Trace(i, "", (), tuple(range(prompt)), tuple(range(100, 100 + response)), "", "stop")
        for i, (prompt, response) in enumerate(lengths)
    ]
    assert typical_context(traces) == [0, 1, 100, 101, 102, 103]


def test_every_temperature_is_decoded_live_and_the_verdict_is_of_the_first_where_none_is_greedy(
    target_folder, noisy_folder, tmp_path
):
    """With every sampling setting, which the page names wherever it names the temperature, and many stop tokens."""
    folder, out = stopped_by_many(Path(shutil.copytree(target_folder, tmp_path / "chatty"))), tmp_path / "out"
    how = {**SHORT, "temperatures": (0.7, 1.2), "wall_clock_prompts": 4}
    how["sampling"] = {"top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
    scorecard = score_drafts(folder, {"draft": noisy_folder}, PROMPTS, config(**how), out, seed=1)
    assert [live.temperature for live in scorecard.lives] == [0.7, 1.2]
    assert all(live.agreement.exact and live.agreement.p_value > 0.001 for live in scorecard.lives)
    words = "temperature 0.7, top-p 0.9, min-p 0.01, repetition penalty 1.1"
    page = (out / "scorecard.md").read_text()
    assert words in page
    assert words.replace("0.7", "1.2") in page
    assert read_scorecard(out / "scorecard.json") == scorecard
    for counted in scorecard.prompts.responses:
        name = f"T{counted.temperature},top_p=0.9,min_p=0.01,repetition_penalty=1.1"
        traces = read_traces(out / "responses" / name, "eval")
        assert counted.stopped == sum(trace.finish_reason == "stop" for trace in traces) > 2
        assert counted.tokens == sum(len(trace.response_ids) for trace in traces)


def test_a_draft_with_another_tokenizer_is_refused_before_any_work(target_folder, make_checkpoint, tmp_path):
    with rejects("vocab_size", 200):
        score_drafts(target_folder, {"draft": make_checkpoint(vocab_size=200)}, PROMPTS, config(), tmp_path, seed=1)
    assert not list(tmp_path.iterdir())


def test_an_response_that_a_draft_has_no_rows_for_is_refused_by_line(make_checkpoint, tiny_draft, tmp_path):
    target = make_checkpoint(seed=3, vocab_size=4096)  # that random weights seldom say one of the first 264 ids
    with rejects("eval-00000.jsonl:1:"):
        score_drafts(target, {"draft": tiny_draft}, PROMPTS[:1], config(), tmp_path, seed=1)


def test_texts_longer_than_a_draft_holds_are_refused(target_folder, make_checkpoint, tmp_path):
    draft = make_checkpoint(seed=1, max_position_embeddings=40, pad_token_id=2)
    with rejects("max_position_embeddings", 40) as caught:
        score_drafts(target_folder, {"draft": draft}, PROMPTS, config(**SHORT), tmp_path, seed=1)
    traces = read_traces(tmp_path / "responses" / "T0", "eval")
    longest = max(len(trace.prompt_ids) + len(trace.response_ids) for trace in traces)
    assert f" {longest} " in str(caught.value)


def test_prompts_without_room_for_an_response_in_what_the_target_holds_are_refused(make_checkpoint, tmp_path):
    target = make_checkpoint(seed=1, max_position_embeddings=40, pad_token_id=2)
    most = 40 - config().max_new_tokens
    with rejects(most):
        score_drafts(target, {"draft": target}, PROMPTS, config(**SHORT), tmp_path, seed=1)


def test_half_precision_is_scored_and_differences_are_told(target_folder, noisy_folder, tmp_path):
    asked = config(**SHORT, dtype="bfloat16")
    scorecard = score_drafts(target_folder, {"draft": noisy_folder}, PROMPTS[:2], asked, tmp_path, seed=1)
    assert scorecard.target.dtype == scorecard.drafts[0].dtype == "bfloat16"
    assert not [text for text in scorecard.warnings if "report it" in text]


def test_a_lost_step_is_loud_and_one_prompt_has_no_intervals(monkeypatch, target_folder, noisy_folder, tmp_path):
    from eval.wall_clock import LiveResponse

    honest = LiveResponse.counts.fget
    monkeypatch.setattr(LiveResponse, "counts", property(lambda self: replace(honest(self), steps=1.0)))
    scorecard = score_drafts(target_folder, {"draft": noisy_folder}, PROMPTS[:1], config(**SHORT), tmp_path, seed=1)
    assert scorecard.live.agreement.exact is False
    assert any("report it" in warning for warning in scorecard.warnings)
    assert acceptance(scorecard, "draft", 0.0).alpha.interval is None
    assert scorecard.live.speedup.interval is None
    assert any(warning.startswith("1 scored prompts") for warning in scorecard.warnings)


@pytest.mark.parametrize("padded_one", ["target", "draft"])
def test_padding_of_one_vocabulary_changes_nothing(make_checkpoint, padded_one):
    """The rows behind the smaller vocabulary are the likeliest of all, and are never said."""
    untied = {"target": make_checkpoint(seed=1, tie_word_embeddings=False)}
    untied["draft"] = make_checkpoint(seed=2, num_hidden_layers=2, tie_word_embeddings=False)
    models = {name: load_model(folder, dtype="float32", device="cpu") for name, folder in untied.items()}
    prompt = (1, 70, 80, 90)
    response = plain_decode(models["target"], [prompt], limits=Limits(12))[0].token_ids
    found = []
    for padded in (False, True):
        if padded:
            models[padded_one] = with_likely_rows(models[padded_one])
            wide = models[padded_one](torch.tensor([prompt])).logits
            assert wide.shape[-1] == 272
            assert (wide.argmax(-1) >= 264).any()
        responses = Responses([Trace(0, "t", (), prompt, tuple(response), "", "length")], [0])
        [replayed] = replay_drafts(models["target"], {"draft": models["draft"]}, responses, sampling=Sampling(1.0))
        score, *_ = replayed.scores([4])
        live = speculative_decode(*models.values(), [prompt], limits=Limits(12), speculation=Speculation(4))[0]
        found.append((score.responses[0].counts[4], live.token_ids, [each.accepted for each in live.steps]))
    assert found[0][1] == found[1][1] == response
    assert found[0][2] == found[1][2]
    assert found[0][0].emitted_tokens == pytest.approx(found[1][0].emitted_tokens)
    assert found[0][0].steps == pytest.approx(found[1][0].steps, rel=1e-5)


def with_likely_rows(model):
    """The model with eight more ids, whose logits are large and of either sign."""
    model.config.vocab_size = 272
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        rows = torch.randn(8, module.weight.shape[1], generator=torch.Generator().manual_seed(3)) * 50
        module.weight = torch.nn.Parameter(torch.cat([module.weight.detach(), rows]))
    return model


RESAMPLING = Resampling(confidence=0.95, num_resamples=100, seed=17)
TIMES = StepTimes(target_s=20.0, draft_s=4.0, draft_two_s=5.0, verify_s={2: 22.0})


def test_forecasts_by_measured_terms():
    row, tau = forecast(GOOD, 2, TIMES), 10 / 7
    assert row.predicted == pytest.approx(tau * 20 / (2 * 4 + 1 / 7 * (5 - 4) + 22))
    assert row.break_even_alpha == break_even_alpha(2, TIMES)
    assert speedup_row(GOOD, TIMES).by_k == (row,)


def test_the_best_lookahead_is_chosen_by_measured_terms():
    """Rounds keep one token each, however many are proposed; independent accepts at alpha 1 would keep all."""
    counts = {g: count_trace([(0, 1), (2, 1)], num_tokens=4, num_speculative_tokens=g) for g in (1, 2)}
    times = replace(TIMES, verify_s={1: 20.0, 2: 20.0})
    record = speedup_row(replace(GOOD, responses=[ResponseScore(0, np.ones(4), 4.0, 4.0, 0, 0, counts)]), times)
    assert (record.best_k, record.predicted) == (1, 2 * 20 / (4 + 1 * (5 - 4) + 20))
    assert record.break_even_alpha == break_even_alpha(1, times)


def test_time_of_the_live_loop_is_told_by_part_and_per_token():
    steps = (
        VerificationStep(0, 2, 2, 1, 1, draft_s=0.25, verify_s=0.5),
        VerificationStep(2, 2, 1, 1, 1, draft_s=0.25, verify_s=1.0),
    )
    text = Decoded((7, 8, 9, 10), steps, prefill_s=0.125, decode_s=2.0)
    live = [LiveResponse(text.token_ids, replace(text, steps=(), decode_s=3.0), text, 2, {LOOKUP: text})] * 2
    agreement = compare_with_replay(live, [one.counts for one in live], is_greedy=True)
    ways, how = dict.fromkeys((DRAFT, LOOKUP), LiveWay(None, 2)), {"predicted": 1.5, "resampling": RESAMPLING}
    record = live_record("good", live, ways, agreement, temperature=0.0, **how)
    assert record.plain == Spent(tokens=8, prefill_s=0.25, decode_s=6.0, ms_per_token=750)
    spent = {"tokens": 8, "prefill_s": 0.25, "decode_s": 4.0, "ms_per_token": 500}
    assert record.speculative == SpentByBoth(**spent, draft_s=1.0, verify_s=3.0)
    assert record.agreement.loop == StepCounts(steps=4, accepted=4, proposed=6)


def test_prompt_lookup_is_fastest_where_it_is_right_and_costs_a_plain_step_where_it_finds_nothing():
    """The text repeats a, b, c: once it does, every looked-up token is accepted, so the longest step is the fastest."""
    steps = replace(TIMES, verify_s={1: 20.0, 2: 22.0, 4: 26.0})
    assert best_lookup([((1, 2, 3), (1, 2, 3) * 6)], steps, max_new_tokens=18) == 4
    assert best_lookup([((1, 2), tuple(range(10, 28)))], steps, max_new_tokens=18) == 1  # nothing found: all are equal
    wrong = ((5, 6, 5, 7, 5, 8), (5, 9, 5, 1, 5, 2, 5, 3))  # what follows 5 is always new
    assert best_lookup([wrong], steps, max_new_tokens=8) == 1


# Step times at other batches: which, of which models, and what is said of those that do not fit

TWO = [ask(text, source=f"p.jsonl:{i}") for i, text in enumerate(("why", "2+2?"), 1)]


def grid_config(**changes):
    settings = {"max_new_tokens": 6, "num_speculative_tokens": (1, 2, 3), "latency_repeats": 8}
    return EvalConfig(**{**settings, "latency_batch_sizes": (1, 2), **changes})


@pytest.fixture(scope="module")
def scored_with_grid(target_folder, noisy_folder, tiny_draft, tmp_path_factory):
    out = tmp_path_factory.mktemp("grid") / "eval"
    drafts = {"undistilled": tiny_draft, "draft": noisy_folder}
    return out, score_drafts(target_folder, drafts, TWO, grid_config(temperatures=(0.0,)), out, seed=17)


@pytest.fixture
def models(target_folder, noisy_folder):
    return {"target": load_model(target_folder, dtype="float32"), "draft": load_model(noisy_folder, dtype="float32")}


def test_the_file_has_every_batch_at_the_length_of_the_scored_texts(scored_with_grid):
    out, scorecard = scored_with_grid
    grid = read_grid_file(out / "latency.json")
    context = scorecard.latency.context_tokens
    assert [(cell.batch, cell.context_tokens) for cell in grid.cells] == [(1, context), (2, context)]
    assert grid.ks == [1, 2, 3]
    assert {cell.repeats for cell in grid.cells} == {2}  # a quarter of 8
    assert [step.num_speculative_tokens for step in grid.cells[1].verify] == [1, 2, 3]
    assert [steps.draft for steps in grid.cells[1].drafts] == ["draft"]
    named = {"target": scorecard.target, "draft": scorecard.drafts[-1]}
    assert {name: model.fingerprint for name, model in grid.models.items()} == {
        name: model.fingerprint for name, model in named.items()
    }


def test_what_does_not_fit_is_left_out_and_told(models, monkeypatch):
    monkeypatch.setattr("eval.latency.cache_bytes", lambda _model, *, batch, context: batch)
    monkeypatch.setattr("eval.latency.bytes_to_pack", lambda _model: 0)  # of any processor
    monkeypatch.setattr("eval.latency.free_bytes", lambda _device: 3)
    grid, told = measure_batches(models, [1, 70, 80], grid_config(latency_batch_sizes=(1, 4)), RESAMPLING)
    assert grid is not None
    assert [cell.batch for cell in grid] == [1]
    [sentence] = told
    assert "batch 4 " in sentence


def test_models_of_one_text_at_a_time_are_timed_at_batch_1(models, monkeypatch):
    monkeypatch.setattr("eval.scorecard.takes_rows", lambda _model: False)
    grid, told = measure_batches(models, [1, 70, 80], grid_config(latency_batch_sizes=(1, 4)), RESAMPLING)
    assert grid is not None
    assert [cell.batch for cell in grid] == [1]
    [sentence] = told
    assert "batch 4 " in sentence


def test_no_batches_no_file_also_where_an_earlier_scoring_left_one(target_folder, noisy_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("eval.latency.free_bytes", lambda _device: 0)
    (tmp_path / "latency.json").write_text("{}")
    asked = grid_config(temperatures=(0.0,), num_speculative_tokens=(1,), latency_repeats=1, wall_clock_prompts=1)
    scorecard = score_drafts(target_folder, {"draft": noisy_folder}, TWO, asked, tmp_path, seed=17)
    assert not (tmp_path / "latency.json").exists()
    assert [text.split(":")[0] for text in scorecard.warnings[-2:]] == [
        f"Steps at batch {batch} were not timed" for batch in (1, 2)
    ]


def test_lookaheads_are_both_ends_and_the_powers_of_two_between(models):
    settings = grid_config(num_speculative_tokens=(3, 4, 5, 6), latency_batch_sizes=(1,), latency_repeats=1)
    grid, _ = measure_batches(models, [1, 70, 80], settings, RESAMPLING)
    [cell] = grid
    assert [step.num_speculative_tokens for step in cell.verify] == [3, 4, 6]
