"""Policies of a scorecard: tuned on prompts that are not scored, worth what their replay says, and measured."""

import json
from dataclasses import replace
from itertools import product

import pytest

from architectures.engines.pair.facts import Drafting
from architectures.errors import UserError
from eval.answers.traces import read_traces
from eval.config import EvalConfig
from eval.decoding.sampling import Sampling
from eval.policies.policy_file import FILE_NAME, prompt_fingerprint, read_policies, write_policies
from eval.policies.policy_replay import Rounds
from eval.policies.policy_words import engine_words
from eval.policies.tune import Tuned, rounds_of
from eval.policies.tune_stopping import STOP_RULES, TunedStopping, stopped_rounds
from eval.predictions.engine_settings import engine_settings, setting_words
from eval.prompts import Prompt, row_of
from eval.proposing.ngram import NgramLookup
from eval.proposing.policy import ProposalPolicy
from eval.records.scorecard_speeds import LOOKUP, POLICY
from eval.scorecard import score_drafts
from eval.scorecard.answers import Answers
from eval.scorecard.live import DRAFT
from eval.scorecard.live_record import ways_of
from eval.scorecard.loaded_models import Pair, replay_drafts
from eval.scorecard.policies import FOLDER, recorded_along, tuning_prompts

CONFIG = EvalConfig(
    num_prompts=4,
    policy_prompts=2,
    max_new_tokens=24,
    lookaheads=(1, 2, 3),
    batch_size=4,
    num_resamples=100,
    confidence=0.75,
    num_threads=1,
    latency_repeats=3,
    latency_batch_sizes=(),
    live_prompts=4,
    max_prompt_len=100,
)


def ask(text, source):
    return Prompt(source, ({"role": "user", "content": text},))


PROMPTS = [ask(text, f"p.jsonl:{i}") for i, text in enumerate(("why", "how many", "say hello", "x", "2+2?", "no"), 1)]


@pytest.fixture(scope="module")
def scored(target_folder, noisy_folder, tiny_draft, tmp_path_factory):
    out = tmp_path_factory.mktemp("policies") / "eval"
    drafts = {"undistilled": tiny_draft, "draft": noisy_folder}
    return out, score_drafts(target_folder, drafts, PROMPTS, CONFIG, out, seed=17)


def test_policies_are_tuned_on_other_prompts_than_are_scored(scored):
    out, scorecard = scored
    found = json.loads((out / FILE_NAME).read_text())
    scored_ids = {prompt_fingerprint(trace.prompt_ids) for trace in read_traces(out / "answers" / "T0", "eval")}
    assert len(found["prompts"]) == 2
    assert len(scored_ids) == scorecard.prompts.scored == 4
    assert not scored_ids & set(found["prompts"])
    tuned_on = read_traces(out / FOLDER / "answers" / "T0", "eval")
    assert [trace.source for trace in tuned_on] == ["p.jsonl:5", "p.jsonl:6"]


def test_the_file_is_one_that_speed_and_verify_read(scored, target_folder, noisy_folder):
    out, _ = scored
    write_policies(read_file(out), noisy_folder)
    try:
        found = read_policies(target_folder, noisy_folder)
        assert [one.temperature for one in found.policies] == [0.0, 1.0]
    finally:
        (noisy_folder / FILE_NAME).unlink()


def read_file(out):
    from eval.policies.policy_file import FORM

    return FORM.validate_json((out / FILE_NAME).read_bytes())


def steps_of(scorecard):
    return scorecard.latency.step_times("draft")


def test_what_a_policy_promises_is_its_replay_on_the_scored_answers(scored, target, noisy_draft):
    out, scorecard = scored
    for row, tuned in zip(scorecard.policies, read_file(out).policies, strict=True):
        assert row.policy == tuned.policy
        assert (row.temperature, row.lookahead, row.tuned_on) == (tuned.temperature, tuned.lookahead, 2)
        traces = read_traces(out / "answers" / f"T{row.temperature:g}", "eval")
        answers = Answers(traces, range(len(traces)))
        [replayed] = replay_drafts(Pair(target, {"draft": noisy_draft}), answers, sampling=Sampling(row.temperature))
        along = recorded_along(replayed, answers, max_new_tokens=CONFIG.max_new_tokens)
        rounds = rounds_of(along, tuned.policy, tuned.lookahead)
        assert isinstance(rounds, Rounds)
        assert row.tau == pytest.approx(rounds.tau)
        assert row.predicted == pytest.approx(rounds.speedup(tuned.lookahead, steps_of(scorecard)))


def test_live_decoding_takes_every_way_and_all_texts_are_plain_decodings(scored):
    _, scorecard = scored
    live = scorecard.live
    assert [row.way for row in live.ways] == ["n-gram lookup", "draft with its policy"]
    assert [row.way for row in live.over_lookup] == ["draft", "draft with its policy"]
    for row in live.ways:
        assert row.same_text == live.prompts == 4
        assert row.tau == pytest.approx(row.spent.tokens / row.rounds)
        assert 0 <= row.looked_up_rounds + row.plain_rounds <= row.rounds
    lookup, policy = live.ways
    assert lookup.looked_up_rounds + lookup.plain_rounds == lookup.rounds
    ratio = policy.spent.tokens / (policy.spent.prefill_s + policy.spent.decode_s)
    ratio /= lookup.spent.tokens / (lookup.spent.prefill_s + lookup.spent.decode_s)
    assert live.over_lookup[1].speedup.value == pytest.approx(ratio)
    assert scorecard.policies[0].lookup.lookahead == lookup.lookahead


def test_each_way_proposes_as_it_says(noisy_draft):
    policy = ProposalPolicy(5, 0.3, (0.2, 0.5), 2.0, confidence=0.1)
    ways = ways_of(noisy_draft, 2, 4, Tuned(policy, 3, 1.5, 1.2, 16))
    assert {name: (way.lookahead, way.policy) for name, way in ways.items()} == {
        DRAFT: (2, None),
        LOOKUP: (4, None),
        POLICY: (3, policy),
    }
    assert (ways[DRAFT].proposer, ways[POLICY].proposer) == (noisy_draft, noisy_draft)
    assert ways[LOOKUP].proposer == NgramLookup()
    assert list(ways_of(noisy_draft, 2, 4, None)) == [DRAFT, LOOKUP]


def test_engines_get_lookup_only_where_the_policy_looks_up():
    policy = ProposalPolicy(5, 0.25, (0.2,), 2.0, confidence=0.2)
    assert engine_words(3, policy) == (
        "llama.cpp --draft-max 3 --draft-p-min 0.2 --spec-type ngram-mod,draft-simple; transformers "
        "assistant_confidence_threshold 0.2"
    )
    assert "spec-type" not in engine_words(3, replace(policy, least=2.0))


def test_without_prompts_for_it_nothing_is_tuned(target_folder, noisy_folder, tmp_path):
    config = CONFIG.model_copy(update={"policy_prompts": 0})
    scorecard = score_drafts(target_folder, {"draft": noisy_folder}, PROMPTS, config, tmp_path / "eval", seed=17)
    assert scorecard.policies == ()
    assert [row.way for row in scorecard.live.ways] == ["n-gram lookup"]
    assert not (tmp_path / "eval" / FILE_NAME).exists()


def test_prompts_to_tune_on_are_those_behind_that_ask_something_else():
    same, other_turn, new = ask("why", "p.jsonl:9"), ask("more", "p.jsonl:2#2"), ask("new", "p.jsonl:10")
    given = [*PROMPTS[:4], same, other_turn, PROMPTS[4], new]
    assert tuning_prompts(given, CONFIG) == [PROMPTS[4], new]
    assert tuning_prompts(given, CONFIG.model_copy(update={"policy_prompts": 0})) == []
    assert row_of(other_turn) == "p.jsonl:2"


def test_too_few_prompts_are_refused():
    with pytest.raises(UserError) as refused:
        tuning_prompts(PROMPTS[:5], CONFIG)
    assert str(refused.value) == (
        "eval.policy_prompts=2: policies are tuned on prompts behind the eval.num_prompts=4 scored ones that ask "
        "something else, and of 5 in all 1 are left. Give more prompts (data.num_eval_prompts, eval.tasks, --prompts), "
        "or lower either number."
    )


def test_what_doubt_promises_is_its_replay_on_the_scored_answers_and_engines_are_told(scored, target, noisy_draft):
    out, scorecard = scored
    assert [(row.temperature, row.rule) for row in scorecard.stopping] == list(product((0.0, 1.0), STOP_RULES))
    for row in scorecard.stopping:
        traces = read_traces(out / "answers" / f"T{row.temperature:g}", "eval")
        answers = Answers(traces, range(len(traces)))
        [replayed] = replay_drafts(Pair(target, {"draft": noisy_draft}), answers, sampling=Sampling(row.temperature))
        along = recorded_along(replayed, answers, max_new_tokens=CONFIG.max_new_tokens)
        rounds = stopped_rounds(along, TunedStopping(row.rule, row.least, row.lookahead, 1.0))
        assert (row.tuned_on, row.tau) == (2, pytest.approx(rounds.tau))
        assert row.predicted == pytest.approx(rounds.speedup(row.lookahead, steps_of(scorecard)))
    page = (out / "scorecard.md").read_text()
    assert "## The draft alone, ending rounds where it doubts; thresholds tuned on 2 other answers" in page
    assert "llama.cpp is to draft with --spec-draft-n-max " in page


def test_an_engine_gets_its_own_threshold_where_that_promises_more_than_whole_rounds(scored):
    _, scorecard = scored
    whole = scorecard.main_forecast
    better, worse = whole.predicted * 1.1, whole.predicted * 0.9
    rows = tuple(
        replace(row, least=0.3, lookahead=3, predicted=better if row.rule == "before doubt" else worse)
        for row in scorecard.stopping
    )
    found = engine_settings(replace(scorecard, stopping=rows))
    assert found == {"llama.cpp": Drafting(3, 0.3), "transformers": Drafting(whole.best_lookahead)}
    assert setting_words("llama.cpp", found["llama.cpp"]) == "--spec-draft-n-max 3 --spec-draft-p-min 0.3"
    assert engine_settings(replace(scorecard, stopping=())) == {}
