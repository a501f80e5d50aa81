"""What is timed is what decoding does, the figures are what they say, and threads are what was asked for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eval import latency as latency_module
from eval.acceptance import Resampling
from eval.latency import (
    CHAIN_LENGTH,
    WARM_UP_LIMIT,
    Latency,
    StepTime,
    build_steps,
    has_settled,
    measure_latency,
    summarise,
    torch_threads,
    usable_cores,
    warm_up,
)
from eval.models import load_model

RESAMPLING = Resampling(confidence=0.95, num_resamples=200, seed=17)
CONTEXT = list(range(3, 23))


@pytest.fixture
def measured(target, noisy_draft, random_draft):
    return measure_latency(
        target,
        {"small": random_draft, "large": noisy_draft},
        CONTEXT,
        lookaheads=[2, 3],
        repeats=4,
        resampling=RESAMPLING,
    )


def test_every_kind_of_step_has_a_time(measured):
    assert (measured.context, measured.repeats) == (20, 4)
    assert 10 <= measured.warm_up_repeats <= WARM_UP_LIMIT
    assert list(measured.verify) == [2, 3]
    assert list(measured.draft) == list(measured.draft_two) == ["small", "large"]
    steps = [measured.target, *measured.verify.values(), *measured.draft.values(), *measured.draft_two.values()]
    for step in steps:
        assert 0 < step.p10_s <= step.median_s <= step.p90_s
        low, high = step.interval_s
        assert low <= step.median_s <= high


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
        monkeypatch.setattr(
            latency_module, "clock_s", lambda _device: sum(count * by_model[name] for name, count in fed)
        )
        drafts = {name: models[name] for name in ("small", "large")}
        resampling = replace(RESAMPLING, seed=seed)
        latency = measure_latency(target, drafts, CONTEXT, lookaheads=[2, 3], repeats=repeats, resampling=resampling)
        for hook in hooks:
            hook.remove()
        return latency, fed[3:]  # the context of each model comes first

    return measure


def test_every_time_is_that_of_its_own_step(measure_by_tokens):
    latency, fed = measure_by_tokens()
    assert latency.target.median_s == latency.draft["small"].median_s == latency.draft["large"].median_s == 1
    assert latency.draft_two["small"].median_s == latency.draft_two["large"].median_s == 2
    assert {lookahead: time.median_s for lookahead, time in latency.verify.items()} == {2: 3, 3: 4}
    assert (latency.warm_up_repeats, latency.is_settled) == (10, True)
    for step in (("target", 1), ("target", 3), ("target", 4), ("small", 2), ("large", 2)):
        assert fed.count(step) == 10 + 4
    assert fed.count(("small", 1)) == fed.count(("large", 1)) == (10 + 4) * CHAIN_LENGTH


@pytest.mark.parametrize("repeats", [1, 2, 9])
def test_a_time_is_not_divided_by_the_repetitions(measure_by_tokens, repeats):
    latency, _ = measure_by_tokens(repeats=repeats)
    assert latency.repeats == repeats
    assert (latency.target.median_s, latency.draft["small"].median_s, latency.verify[3].median_s) == (1, 1, 4)


def test_times_of_target_and_drafts_are_not_swapped(measure_by_tokens):
    latency, _ = measure_by_tokens(token_s={"target": 5, "small": 2, "large": 3})
    assert (latency.target.median_s, latency.verify[2].median_s) == (5, 15)
    assert {name: time.median_s for name, time in latency.draft.items()} == {"small": 2, "large": 3}
    assert {name: time.median_s for name, time in latency.draft_two.items()} == {"small": 4, "large": 6}
    assert latency.step_times("small").cost_ratio == 2 / 5


def test_the_seed_draws_the_order_of_the_steps(measure_by_tokens):
    _, fed = measure_by_tokens()
    assert measure_by_tokens()[1] == fed
    assert measure_by_tokens(seed=18)[1] != fed


def test_medians_of_one_draft_become_step_times():
    steps = {name: StepTime(value, None, value, value) for name, value in zip("abcdefg", range(1, 8), strict=True)}
    latency = Latency(
        context=5,
        repeats=1,
        warm_up_repeats=10,
        is_settled=True,
        target=steps["a"],
        verify={1: steps["b"], 2: steps["c"]},
        draft={"x": steps["d"], "y": steps["e"]},
        draft_two={"x": steps["f"], "y": steps["g"]},
    )
    times = latency.step_times("y")
    assert (times.target_s, times.draft_s, times.draft_two_s, dict(times.verify_s)) == (1, 5, 7, {1: 2, 2: 3})
    assert replace(times, draft_s=0.5).cost_ratio == 0.5


class Recorder:
    """Notes what a model is fed, at which position it begins, and after how many of the tokens it is asked."""

    def __init__(self, model):
        self.calls = []
        self.hook = model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, _module, _args, kwargs):
        ids = kwargs["input_ids"][0].tolist()
        self.calls.append((ids, kwargs["position_ids"][0, 0].item(), kwargs["logits_to_keep"] or len(ids)))


def test_steps_feed_what_decoding_feeds_on_top_of_the_same_context(target, noisy_draft):
    steps = build_steps(target, {"draft": noisy_draft}, CONTEXT, [2, 8])
    assert list(steps) == [("target", 1), ("target", 3), ("target", 9), ("draft draft", 1), ("draft draft", 2)]
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
    steps = build_steps(target, {"draft": noisy_draft}, CONTEXT, [1])
    recorder = Recorder(noisy_draft)
    steps["draft draft", 1]()
    recorder.hook.remove()
    text = [*CONTEXT, CONTEXT[0]]
    for ids, _, _ in recorder.calls[1:]:
        with torch.inference_mode():
            assert ids == [noisy_draft(torch.tensor([text])).logits[0, -1].argmax().item()]
        text += ids


def test_time_of_the_chain_is_per_step(monkeypatch, target, noisy_draft):
    readings = iter([0.0, 4.0])
    steps = build_steps(target, {"draft": noisy_draft}, CONTEXT, [1])
    monkeypatch.setattr(latency_module, "clock_s", lambda _device: next(readings))
    assert steps["draft draft", 1]() == 4.0 / CHAIN_LENGTH


def test_a_context_shorter_than_a_step_is_repeated(target, noisy_draft):
    steps = build_steps(target, {"draft": noisy_draft}, [7, 8], [4])
    recorder = Recorder(target)
    steps["target", 5]()
    recorder.hook.remove()
    assert recorder.calls[0][0] == [7, 8, 7, 8, 7]


def test_the_order_of_steps_changes_from_repetition_to_repetition():
    orders = []
    steps = {("step", n): (lambda n=n: orders.append(n) or 1.0) for n in range(6)}
    warm_up(steps, np.random.default_rng(0))
    repetitions = [tuple(orders[i : i + 6]) for i in range(0, len(orders), 6)]
    assert all(sorted(order) == list(range(6)) for order in repetitions)
    assert len(set(repetitions)) > 5


def test_warm_up_ends_when_times_settle():
    times = iter([9.0, 5.0, 3.0, 2.0, 1.5, *[1.0] * 100])
    assert warm_up({("step", 1): lambda: next(times)}, np.random.default_rng(0)) == (13, True)


def test_warm_up_gives_up_on_times_that_never_settle():
    times = (2.0**n for n in range(100))
    assert warm_up({("step", 1): lambda: next(times)}, np.random.default_rng(0)) == (WARM_UP_LIMIT, False)


def test_ten_repetitions_are_the_least():
    assert not has_settled([1.0] * 9)
    assert has_settled([1.0] * 10)
    assert not has_settled([1.0] * 5 + [1.03] * 5)
    assert not has_settled([1.03] * 5 + [1.0] * 5)


def test_times_have_settled_when_medians_differ_by_less_than_two_percent():
    assert has_settled([1.0] * 5 + [1.019] * 5)
    assert not has_settled([1.0] * 5 + [1.021] * 5)
    assert has_settled([1.0] * 9 + [50.0])  # one step that was interrupted


def test_summary_of_times():
    summary = summarise(list(range(1, 12)), RESAMPLING)
    assert (summary.p10_s, summary.median_s, summary.p90_s) == (2, 6, 10)
    low, high = summary.interval_s
    assert 2 < low < 6 < high < 10
    assert summary == summarise(list(range(1, 12)), RESAMPLING)


def test_the_interval_is_the_medians_at_the_confidence_asked_for():
    assert summarise([1.0] * 20 + [1000.0], RESAMPLING).interval_s == (1, 1)
    (wide_low, wide_high), (low, high) = (
        summarise(range(50), replace(RESAMPLING, confidence=confidence)).interval_s for confidence in (0.99, 0.5)
    )
    assert wide_low < low < high < wide_high


def test_one_repetition_has_no_interval():
    assert summarise([3.0], RESAMPLING) == StepTime(median_s=3, interval_s=None, p10_s=3, p90_s=3)


def test_threads_are_set_and_given_back():
    before = torch.get_num_threads()
    with torch_threads(before + 1) as num_threads:
        assert num_threads == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(KeyboardInterrupt), torch_threads(before + 1):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == before
    with torch_threads(None) as num_threads:
        assert num_threads == usable_cores()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max 100000\n", None),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        ("190000 100000\n", 1),
        ("999900000 100000\n", None),
    ],
)
def test_the_quota_of_a_container_limits_the_cores(tmp_path, text, limit):
    path = tmp_path / "cpu.max"
    path.write_text(text)
    assert usable_cores(path) == (limit or usable_cores(tmp_path / "absent"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_steps_are_timed_on_a_gpu(target_folder, noisy_folder):
    """bfloat16; only that times are positive and finite."""
    target, draft = (load_model(folder, dtype="bfloat16", device="cuda") for folder in (target_folder, noisy_folder))
    measured = measure_latency(target, {"draft": draft}, CONTEXT, lookaheads=[1, 4], repeats=3, resampling=RESAMPLING)
    assert 0 < measured.draft["draft"].median_s < 1
