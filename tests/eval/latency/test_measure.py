"""What is timed is what decoding does, and each time stands under its own step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from architectures.draft_vocabulary.head import head_ids
from eval.acceptance.estimates import Resampling
from eval.latency import steps as steps_module
from eval.latency import timing
from eval.latency.measure import Latency, measure_both_ways, measure_latency
from eval.latency.steps import CHAIN_LENGTH, Kind, Setting, decoding_steps, prefill_steps
from eval.latency.timing import WARM_UP_LIMIT
from eval.models.loading import load_model
from eval.records.grid import TARGET
from eval.scorecard_schema import StepTime
from tests.eval.records import percentiles

RESAMPLING = Resampling(confidence=0.95, num_resamples=200, seed=17)
CONTEXT = list(range(3, 23))


def step_time(value):
    return StepTime(**percentiles(1000 * value))


@pytest.fixture
def warmed_up_as_for_users(monkeypatch):
    monkeypatch.setattr(timing, "WARM_UP_LIMIT", WARM_UP_LIMIT)


@pytest.fixture
def measured(target, noisy_draft, random_draft):
    return measure_latency(
        target,
        {"small": random_draft, "large": noisy_draft},
        Setting(CONTEXT),
        lookaheads=[2, 3],
        repetitions=range(6),
        resampling=RESAMPLING,
    )


def test_resampled_repetitions_are_the_same_for_every_kind_of_step():
    """All steps of a repetition share the speed of the machine: ratios of their medians do not move, medians do."""
    speeds = np.array([1.0, 1.1, 1.3, 1.7, 2.5])
    per_step = {Kind(TARGET, 1): 0.040, Kind("small", 1): 0.004, Kind("small", 2): 0.006, Kind(TARGET, 4): 0.050}
    seconds = {kind: (step_s * speeds).tolist() for kind, step_s in per_step.items()}
    latency = Latency(context=5, repeats=5, warm_up_repeats=10, is_settled=True, times={}, seconds=seconds)
    drawn = latency.resampled_step_times("small", [3], RESAMPLING)
    assert len(drawn) == RESAMPLING.num_resamples
    assert {round(one.target_s / 0.040, 6) for one in drawn} == set(speeds.tolist())
    for one in drawn:
        terms = (one.draft_s, one.draft_two_s, one.verify_s[3])
        assert [term / one.target_s for term in terms] == pytest.approx([0.1, 0.15, 1.25])


def test_a_chain_of_a_small_head_is_fed_tokens_and_not_rows(target, small_head_folder):
    draft, fed = load_model(small_head_folder, dtype="float32", device="cpu"), []
    draft.register_forward_pre_hook(
        lambda _module, _args, kwargs: fed.append(kwargs["input_ids"].flatten().tolist()), with_kwargs=True
    )
    setting = Setting(CONTEXT)
    with torch.inference_mode():
        steps_module.time_chain(steps_module.hold_context(draft, setting, [(1, False), (2, False)]))
    said = set(head_ids(draft).tolist())
    chain = [token for [token] in fed[2:]]
    assert len(chain) == CHAIN_LENGTH - 1
    assert set(chain) <= said
    assert max(chain) >= len(said) or not set(chain) <= set(range(len(said)))


def test_every_kind_of_step_has_a_time(warmed_up_as_for_users, measured):
    assert (measured.context, measured.repeats) == (20, 6)
    assert 10 <= measured.warm_up_repeats <= WARM_UP_LIMIT
    assert list(measured.verify) == [2, 3]
    assert measured.drafts == ["small", "large"]
    assert len(measured.times) == 1 + 2 + 2 * 2
    for step in measured.times.values():
        assert 0 < step.p10_ms.value <= step.median_ms <= step.p90_ms.value
        low, high = step.p50_ms.interval
        assert low <= step.median_ms <= high


@pytest.fixture
def measure_by_tokens(monkeypatch, target, random_draft, noisy_draft):
    """Measure with a clock that runs only while a model is fed, by each token; returns what was fed, too."""

    def measure(seed=17, repeats=4, token_s=None):
        fed = []
        models = {"target": target, "small": random_draft, "large": noisy_draft}
        hooks = [
            model.register_forward_pre_hook(
                lambda _module, _args, kwargs, name=name: fed.append((name, kwargs["input_ids"].shape[1])),
                with_kwargs=True,
            )
            for name, model in models.items()
        ]
        by_model = token_s or dict.fromkeys(models, 1)
        monkeypatch.setattr(steps_module, "clock_s", lambda _device: sum(count * by_model[name] for name, count in fed))
        drafts = {name: models[name] for name in ("small", "large")}
        resampling = replace(RESAMPLING, seed=seed)
        latency = measure_latency(
            target, drafts, Setting(CONTEXT), lookaheads=[2, 3], repetitions=range(repeats), resampling=resampling
        )
        for hook in hooks:
            hook.remove()
        return latency, fed[3:]  # the context of each model comes first

    return measure


def test_every_time_is_that_of_its_own_step(warmed_up_as_for_users, measure_by_tokens):
    latency, fed = measure_by_tokens()
    assert latency.target.median_ms == latency.draft("small").median_ms == latency.draft("large").median_ms == 1000
    assert latency.draft_two("small").median_ms == latency.draft_two("large").median_ms == 2000
    assert {lookahead: time.median_ms for lookahead, time in latency.verify.items()} == {2: 3000, 3: 4000}
    assert (latency.warm_up_repeats, latency.is_settled) == (10, True)
    for step in (("target", 1), ("target", 3), ("target", 4), ("small", 2), ("large", 2)):
        assert fed.count(step) == 10 + 4
    assert fed.count(("small", 1)) == fed.count(("large", 1)) == (10 + 4) * CHAIN_LENGTH


@pytest.mark.parametrize("repeats", [1, 2, 9])
def test_a_time_is_not_divided_by_the_repetitions(measure_by_tokens, repeats):
    latency, _ = measure_by_tokens(repeats=repeats)
    assert latency.repeats == repeats
    assert (latency.target.median_ms, latency.draft("small").median_ms, latency.verify[3].median_ms) == (
        1000,
        1000,
        4000,
    )


def test_times_of_target_and_drafts_are_not_swapped(measure_by_tokens):
    latency, _ = measure_by_tokens(token_s={"target": 5, "small": 2, "large": 3})
    assert (latency.target.median_ms, latency.verify[2].median_ms) == (5000, 15000)
    assert {name: latency.draft(name).median_ms for name in latency.drafts} == {"small": 2000, "large": 3000}
    assert {name: latency.draft_two(name).median_ms for name in latency.drafts} == {"small": 4000, "large": 6000}
    assert latency.step_times("small").cost_ratio == 2 / 5


def test_the_seed_draws_the_order_of_the_steps(measure_by_tokens):
    _, fed = measure_by_tokens()
    assert measure_by_tokens()[1] == fed
    assert measure_by_tokens(seed=18)[1] != fed


def test_medians_of_one_draft_become_step_times():
    kinds = [("target", 1), ("target", 2), ("target", 3), ("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    times = {Kind(*kind): step_time(value) for value, kind in enumerate(kinds, start=1)}
    prefill = {Kind(name, 5, is_prefill=True): step_time(99) for name in ("target", "x")}
    latency = Latency(context=5, repeats=1, warm_up_repeats=10, is_settled=True, times=prefill | times, seconds={})
    of_y = latency.step_times("y")
    assert (of_y.target_s, of_y.draft_s, of_y.draft_two_s, dict(of_y.verify_s)) == (1, 6, 7, {1: 2, 2: 3})
    assert latency.drafts == ["x", "y"]
    assert replace(of_y, draft_s=0.5).cost_ratio == 0.5


class Recorder:
    """Notes what a model is fed, at which position it begins, and after how many of the tokens it is asked."""

    def __init__(self, model):
        self.calls = []
        self.hook = model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, _module, _args, kwargs):
        ids = kwargs["input_ids"][0].tolist()
        self.calls.append((ids, kwargs["position_ids"][0, 0].item(), kwargs["logits_to_keep"] or len(ids)))


def test_steps_feed_what_decoding_feeds_on_top_of_the_same_context(target, noisy_draft):
    steps = decoding_steps(target, {"draft": noisy_draft}, Setting(CONTEXT), [2, 8])
    fed = [("target", 1), ("target", 3), ("target", 9), ("draft", 1), ("draft", 2)]
    assert list(steps) == [Kind(*one) for one in fed]
    verifier, drafter = Recorder(target), Recorder(noisy_draft)
    for step in (*steps.values(), *reversed(steps.values())):
        step()
    verifier.hook.remove()
    drafter.hook.remove()
    assert [(len(ids), length, kept) for ids, length, kept in verifier.calls[:3]] == [
        (1, 20, 1),
        (3, 20, 3),
        (9, 20, 9),
    ]
    assert sorted(verifier.calls[:3]) == sorted(verifier.calls[3:])
    chain, [two] = drafter.calls[:CHAIN_LENGTH], drafter.calls[CHAIN_LENGTH : CHAIN_LENGTH + 1]
    assert [length for _, length, _ in chain] == list(range(20, 20 + CHAIN_LENGTH))
    assert (len(two[0]), *two[1:]) == (2, 20, 1)


def test_the_draft_chain_feeds_each_choice_into_the_next_step(noisy_draft, target):
    steps = decoding_steps(target, {"draft": noisy_draft}, Setting(CONTEXT), [1])
    recorder = Recorder(noisy_draft)
    steps[Kind("draft", 1)]()
    recorder.hook.remove()
    text = [*CONTEXT, CONTEXT[0]]
    for ids, _, _ in recorder.calls[1:]:
        with torch.inference_mode():
            assert ids == [noisy_draft(torch.tensor([text])).logits[0, -1].argmax().item()]
        text += ids


def test_time_of_the_chain_is_per_step(monkeypatch, target, noisy_draft):
    readings = iter([0.0, 4.0])
    steps = decoding_steps(target, {"draft": noisy_draft}, Setting(CONTEXT), [1])
    monkeypatch.setattr(steps_module, "clock_s", lambda _device: next(readings))
    assert steps[Kind("draft", 1)]() == 4.0 / CHAIN_LENGTH


def test_a_context_shorter_than_a_step_is_repeated(target, noisy_draft):
    steps = decoding_steps(target, {"draft": noisy_draft}, Setting([7, 8]), [4])
    recorder = Recorder(target)
    steps[Kind("target", 5)]()
    recorder.hook.remove()
    assert recorder.calls[0][0] == [7, 8, 7, 8, 7]


@pytest.mark.parametrize("batch", [1, 3])
def test_every_row_of_a_batch_is_fed_the_same(target, noisy_draft, batch):
    steps = decoding_steps(target, {"draft": noisy_draft}, Setting(CONTEXT, batch), [3])
    shapes = []
    hooks = [
        model.register_forward_pre_hook(
            lambda _module, _args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
        for model in (target, noisy_draft)
    ]
    for step in steps.values():
        step()
    for hook in hooks:
        hook.remove()
    assert shapes == [(batch, 1), (batch, 4), *[(batch, 1)] * CHAIN_LENGTH, (batch, 2)]


def test_prefill_reads_the_whole_context_anew(target):
    [(kind, step)] = prefill_steps({"target": target}, Setting(CONTEXT, 2)).items()
    assert kind == Kind("target", len(CONTEXT), is_prefill=True)
    recorder = Recorder(target)
    step()
    step()
    recorder.hook.remove()
    assert recorder.calls == [(CONTEXT, 0, 1)] * 2


def test_both_ways_time_the_same_steps(target, noisy_draft):
    shares = []
    together, alone = measure_both_ways(
        {"target": target, "draft": noisy_draft},
        Setting(CONTEXT),
        lookaheads=[1],
        with_prefill=True,
        repeats=4,
        advance=shares.append,
        resampling=RESAMPLING,
    )
    assert set(together.times) == set(alone.times)
    assert len(together.times) == 2 + 2 + 2
    assert together.repeats == alone.repeats == 4
    assert sum(shares) == pytest.approx(1)


def test_steps_are_timed_where_the_models_are(target_folder, noisy_folder, device):
    """bfloat16 on a GPU; only that times are positive and finite."""
    dtype = "bfloat16" if device == "cuda" else "float32"
    target, draft = (load_model(folder, dtype=dtype, device=device) for folder in (target_folder, noisy_folder))
    measured = measure_latency(
        target, {"draft": draft}, Setting(CONTEXT), lookaheads=[1, 4], repetitions=range(3), resampling=RESAMPLING
    )
    assert 0 < measured.draft("draft").median_ms < 1000
