"""A draft that says some ids alone is scored as it decodes, with the share of the responses that it can say."""

import json
import math
from collections import Counter
from itertools import chain

import pytest

from architectures.vocabulary import coverage
from eval.acceptance_rates import TRACES_NAME, Responses, replay_drafts, responses_folder
from eval.decoding.sampling import Limits, Sampling, Speculation
from eval.lossless import Verification, check_lossless
from eval.models import load_model
from eval.prompts import Prompt
from eval.recorded import read_recorded_traces, score_recording
from eval.replay import replay_response, response_logits
from eval.responses import read_traces
from eval.scorecard import score_drafts
from tests.eval.conftest import SAID
from tests.eval.decoding.small_heads import spread_out
from tests.eval.scorecard.test_score import config

ASKED = (("why", "code"), ("how many", "talk"), ("say hello", None), ("x", "code"), ("2+2?", "talk"))
PROMPTS = [
    Prompt(f"{'pq'[place % 2]}.jsonl:{place}", ({"role": "user", "content": text},), category=category)
    for place, (text, category) in enumerate(ASKED)
]


@pytest.fixture(scope="module")
def scored(target_folder, small_head_folder, tiny_draft, tmp_path_factory):
    out = tmp_path_factory.mktemp("score") / "eval"
    drafts = {"whole": tiny_draft, "draft": small_head_folder}
    asked = config(num_speculative_tokens=(1, 3), latency_repeats=1, max_new_tokens=16, wall_clock_prompts=2)
    return out, score_drafts(target_folder, drafts, PROMPTS, asked, out, seed=17)


@pytest.fixture(scope="module")
def rows(scored):
    """Acceptance of the small head by temperature."""
    return {row.temperature: row for row in scored[1].acceptance if row.draft == "draft"}


@pytest.fixture(scope="module")
def small_draft(small_head_folder):
    return load_model(small_head_folder, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def responses(scored):
    """The target's responses by temperature."""
    out, _ = scored
    return {t: read_traces(responses_folder(out, t), TRACES_NAME) for t in (0.0, 1.0)}


def test_loop_and_replay_agree(scored):
    agreement = scored[1].live.agreement
    assert agreement.exact is True
    assert agreement.loop == agreement.replay
    assert 0 < agreement.loop.accepted < agreement.loop.proposed


def test_every_figure_is_a_finite_number(scored):
    out, _ = scored

    def finite(value):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return (not isinstance(value, float) or math.isfinite(value)) and all(map(finite, inner))

    assert finite(json.loads((out / "scorecard.json").read_text()))


def test_figures_are_those_of_the_same_draft_with_minus_infinity_elsewhere(target, small_draft, responses):
    """Replayed side by side; only that it has a small head is told of one and not of the other."""
    drafts = {"small": small_draft, "spread": spread_out(small_draft)}
    for temperature, traces in responses.items():
        group = Responses(traces, list(range(len(traces))))
        small, spread = replay_drafts(target, drafts, group, sampling=Sampling(temperature))
        assert (small.has_small_head, spread.has_small_head) == (True, False)
        for one, other in zip(small.responses, spread.responses, strict=True):
            assert one.replay.draft_logp.tolist() == other.replay.draft_logp.tolist()
            assert one.replay.covered.tolist() == other.replay.covered.tolist()
            for rule, accepts in one.replay.rules.items():
                assert accepts.accept.tolist() == other.replay.rules[rule].accept.tolist()
                assert accepts.alpha.tolist() == other.replay.rules[rule].alpha.tolist()


def test_what_it_cannot_say_has_no_chance_and_a_log_probability_of_minus_infinity(target, small_draft):
    prompt, response = [5, 6], [7, 8, 14, 9]  # 7 and 14 are not said
    logits = [response_logits(model, prompt, response) for model in (target, small_draft)]
    for temperature in (0.0, 0.8):
        found = replay_response(*logits, response, sampling=Sampling(temperature))
        assert found.covered.tolist() == [0, 1, 0, 1]
        assert found.draft_logp[[0, 2]].tolist() == [-math.inf, -math.inf]
        for accepts in found.rules.values():
            assert accepts.accept[[0, 2]].tolist() == [0, 0]


def test_coverage_is_the_share_of_the_responses_that_the_draft_can_say(scored, rows, responses):
    for temperature, row in rows.items():
        written = [trace.response_ids for trace in responses[temperature]]
        assert row.coverage.value == coverage(SAID, Counter(chain(*written)))
        assert 0 < row.coverage.value < 1
        assert row.coverage.tokens == sum(map(len, written)) == sum(row.by_prompt.tokens)
        [by_category] = [part.bins for part in row.bins if part.by == "category"]
        for one in by_category:
            label = None if one.bin.startswith("without") else one.bin
            own = [trace.response_ids for trace in responses[temperature] if trace.category == label]
            assert one.coverage.value == coverage(SAID, Counter(chain(*own)))


def test_a_draft_that_says_everything_has_no_coverage(scored):
    _, scorecard = scored
    [whole, small] = scorecard.drafts
    assert whole.head_vocab_size is None
    assert small.head_vocab_size == len(SAID)
    for row in scorecard.acceptance:
        parts = [row, *(one for part in row.bins for one in part.bins)]
        assert {one.coverage is not None for one in parts} == {row.draft == "draft"}


def test_a_draft_without_its_target_has_the_same_coverage(scored, rows, small_head_folder, tmp_path):
    out, _ = scored
    recording = read_recorded_traces(responses_folder(out, 0.0), small_head_folder)
    record = score_recording(recording, small_head_folder, config(), tmp_path, seed=17)
    [row] = record.acceptance
    assert row.coverage.value == rows[0.0].coverage.value
    assert row.accept_rate.sum == rows[0.0].alpha_of_text.sum <= row.coverage.sum


def test_verify_finds_it_lossless(target, small_draft):
    """By every check, with figures that are numbers."""
    wanted = Verification(Limits(24), Speculation(3), samples=2)
    findings = list(check_lossless((target, small_draft), [[5, 6, 7], [100]], wanted))
    assert [one.holds for one in findings] == [True] * 5
    assert not [one.detail for one in findings if "nan" in one.detail or "inf " in one.detail]
