"""What is timed is what decoding does, each time stands under its own step, and the grid has every cell."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import widedraft
from architectures.vocabulary_head import head_ids
from eval import latency as latency_module
from eval.decoding import cuda_graphs as captured
from eval.intervals import Resampling, least_units
from eval.latency import (
    CHAIN_LENGTH,
    WARM_UP_LIMIT,
    Grid,
    Kind,
    Setting,
    Timed,
    decoding_steps,
    has_settled,
    hold_context,
    measure_grid,
    measure_latency,
    prefill_steps,
    require_memory,
    scored_latency,
    shape_of,
    summarise,
    time_chain,
    time_together,
    untrained_models,
    warm_up,
)
from eval.machine import usable_cores
from eval.models import load_model
from eval.scorecard_schema import TARGET, read_grid_file
from tests.eval.decoding.stand_ins import watched_maker
from tests.rejections import rejects

RESAMPLING = Resampling(confidence=0.95, num_resamples=200, seed=17)
CONFIDENCE = 0.95
CONTEXT = list(range(3, 23))


def median_ms(latency, model, tokens):
    if model == TARGET:
        return {1: latency.target, **{step.num_speculative_tokens + 1: step for step in latency.verify}}[
            tokens
        ].median_ms
    steps = latency.of(model)
    return {1: steps.one_token, 2: steps.two_tokens}[tokens].median_ms


@pytest.fixture
def warmed_up_as_for_users(monkeypatch):
    monkeypatch.setattr(latency_module, "WARM_UP_LIMIT", WARM_UP_LIMIT)


def test_a_chain_of_a_small_head_is_fed_tokens_and_not_rows(target, small_head_folder):
    draft, fed = load_model(small_head_folder, dtype="float32", device="cpu"), []
    draft.register_forward_pre_hook(
        lambda _module, _args, kwargs: fed.append(kwargs["input_ids"].flatten().tolist()), with_kwargs=True
    )
    setting = Setting(CONTEXT)
    with torch.inference_mode():
        time_chain(hold_context(draft, setting, [(1, False), (2, False)]))
    said = set(head_ids(draft).tolist())
    chain = [token for [token] in fed[2:]]
    assert len(chain) == CHAIN_LENGTH - 1
    assert set(chain) <= said
    assert max(chain) >= len(said) or not set(chain) <= set(range(len(said)))


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
        resampling = replace(RESAMPLING, seed=seed)
        latency = measure_latency(
            models,
            Setting(CONTEXT),
            ks=[2, 3],
            repeats=repeats,
            resampling=resampling,
        )
        for hook in hooks:
            hook.remove()
        return latency, fed[3:]  # the context of each model comes first

    return measure


def test_every_time_is_that_of_its_own_step(warmed_up_as_for_users, measure_by_tokens):
    latency, fed = measure_by_tokens()
    assert median_ms(latency, TARGET, 1) == median_ms(latency, "small", 1) == median_ms(latency, "large", 1) == 1000
    assert median_ms(latency, "small", 2) == median_ms(latency, "large", 2) == 2000
    assert {step.num_speculative_tokens: step.median_ms for step in latency.verify} == {2: 3000, 3: 4000}
    assert (latency.warm_up_repeats, latency.settled) == (10, True)
    for step in (("target", 1), ("target", 3), ("target", 4), ("small", 2), ("large", 2)):
        assert fed.count(step) == 10 + 4
    assert fed.count(("small", 1)) == fed.count(("large", 1)) == (10 + 4) * CHAIN_LENGTH


def test_times_of_target_and_drafts_are_not_swapped(measure_by_tokens):
    latency, _ = measure_by_tokens(token_s={"target": 5, "small": 2, "large": 3})
    assert (median_ms(latency, TARGET, 1), median_ms(latency, TARGET, 3)) == (5000, 15000)
    assert {name: median_ms(latency, name, 1) for name in ("small", "large")} == {"small": 2000, "large": 3000}
    assert {name: median_ms(latency, name, 2) for name in ("small", "large")} == {"small": 4000, "large": 6000}
    assert latency.step_times("small").cost_ratio == 2 / 5


def test_medians_of_one_draft_become_step_times():
    kinds = [("target", 1), ("target", 2), ("target", 3), ("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    seconds = {Kind(name, 5, is_prefill=True): [99.0] for name in ("target", "x")}
    seconds |= {Kind(*kind): [float(value)] for value, kind in enumerate(kinds, start=1)}
    latency = scored_latency(Timed(seconds, 10, is_settled=True), Setting(CONTEXT), RESAMPLING)
    of_y = latency.step_times("y")
    assert (of_y.target_s, of_y.draft_s, of_y.draft_two_s, dict(of_y.verify_s)) == (1, 6, 7, {1: 2, 2: 3})
    assert [steps.draft for steps in latency.drafts] == ["x", "y"]
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
    steps = decoding_steps({TARGET: target, "draft": noisy_draft}, Setting(CONTEXT), [2, 8])
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
    steps = decoding_steps({TARGET: target, "draft": noisy_draft}, Setting(CONTEXT), [1])
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
    steps = decoding_steps({TARGET: target, "draft": noisy_draft}, Setting(CONTEXT), [1])
    monkeypatch.setattr(latency_module, "clock_s", lambda _device: next(readings))
    assert steps[Kind("draft", 1)]() == 4.0 / CHAIN_LENGTH


def test_prefill_reads_the_whole_context_anew(target):
    [(kind, step)] = prefill_steps({"target": target}, Setting(CONTEXT, 2)).items()
    assert kind == Kind("target", len(CONTEXT), is_prefill=True)
    recorder = Recorder(target)
    step()
    step()
    recorder.hook.remove()
    assert recorder.calls == [(CONTEXT, 0, 1)] * 2


def test_steps_are_timed_where_the_models_are(target_folder, noisy_folder, device):
    """bfloat16 on a GPU; only that times are positive and finite."""
    dtype = "bfloat16" if device == "cuda" else "float32"
    target, draft = (load_model(folder, dtype=dtype, device=device) for folder in (target_folder, noisy_folder))
    measured = measure_latency(
        {TARGET: target, "draft": draft}, Setting(CONTEXT), ks=[1, 4], repeats=3,
        resampling=RESAMPLING,
    )  # fmt: skip
    assert 0 < median_ms(measured, "draft", 1) < 1000


def test_the_order_of_steps_changes_from_repetition_to_repetition(warmed_up_as_for_users):
    orders = []
    steps = {("step", n): (lambda n=n: orders.append(n) or 1.0) for n in range(6)}
    time_together(steps, np.random.default_rng(0), range(3))
    repetitions = [tuple(orders[i : i + 6]) for i in range(0, len(orders), 6)]
    assert all(sorted(order) == list(range(6)) for order in repetitions)
    assert len(set(repetitions)) > 5
    assert len(repetitions) == 10 + 3


def test_warm_up_ends_when_times_settle(warmed_up_as_for_users):
    times = iter([9.0, 5.0, 3.0, 2.0, 1.5, *[1.0] * 100])
    assert warm_up(lambda: next(times)) == (13, True)


def test_warm_up_gives_up_on_times_that_never_settle(warmed_up_as_for_users):
    times = (2.0**n for n in range(100))
    assert warm_up(lambda: next(times)) == (WARM_UP_LIMIT, False)


def test_ten_repetitions_are_the_least():
    assert not has_settled([1.0] * 9)
    assert has_settled([1.0] * 10)
    assert not has_settled([1.0] * 5 + [1.03] * 5)
    assert not has_settled([1.03] * 5 + [1.0] * 5)


def test_summary_of_times():
    summary = summarise(list(range(1, 12)), CONFIDENCE)
    assert [one.value for one in (summary.p10_ms, summary.p50_ms, summary.p90_ms)] == [2000, 6000, 10_000]
    assert summary.median_ms == 6000
    assert summary.p50_ms.interval == (2000, 10_000)  # of 11 values, 2 to 10 hold it in 98.8 % and 3 to 9 in 93.5 %


@pytest.mark.parametrize("confidence", [0.5, 0.75, 0.9, 0.95, 0.99])
def test_a_median_has_an_interval_from_the_least_units_on(confidence):
    least = least_units(confidence)
    assert summarise(range(1, least), confidence).p50_ms.interval is None
    assert summarise(range(1, least + 1), confidence).p50_ms.interval == (1000, 1000 * least)


def bounds(repeats, name):
    """Of a percentile of as many values from 0 on, in their own unit; None where there is none on either side."""
    found = getattr(summarise([each / 1000 for each in range(repeats)], CONFIDENCE), name)
    return found.interval or (None, None)


def test_the_99th_percentile_is_told_of_200_repetitions_and_bounded_above_by_368():
    assert summarise(range(199), CONFIDENCE).p99_ms is None
    few, many = (bounds(repeats, "p99_ms") for repeats in (200, 368))
    assert few[0] is not None
    assert few[1] is None
    assert many[1] == 367  # 0.99^368 < 2.5 % < 0.99^366
    assert bounds(366, "p99_ms")[1] is None


# The grid


@pytest.fixture(scope="module")
def cells(target, noisy_draft):
    grid = Grid(batches=[1, 2], contexts=[8, 30], ks=[1, 3], repeats=3)
    return measure_grid({TARGET: target, "draft": noisy_draft}, CONTEXT, grid, RESAMPLING)


def test_every_cell_has_every_step(cells):
    assert [(cell.batch, cell.context_tokens) for cell in cells] == [(1, 8), (1, 30), (2, 8), (2, 30)]
    for cell in cells:
        assert (cell.how, cell.repeats, cell.ks) == ("eager", 3, [1, 3])
        assert [draft.draft for draft in cell.drafts] == ["draft"]
        assert list(cell.prefill) == [TARGET, "draft"]
        assert all(step.median_ms > 0 for step in (*cell.steps.values(), *cell.prefill.values()))


def test_captured_cells_follow_the_eager_ones(target, noisy_draft, monkeypatch):
    maker = watched_maker()
    monkeypatch.setattr(captured, "CapturedSteps", maker.opener)
    grid = Grid(batches=[1, 2], contexts=[8], ks=[3], repeats=2, how="captured")
    found = measure_grid({TARGET: target, "draft": noisy_draft}, CONTEXT, grid, RESAMPLING)
    assert [(cell.how, cell.batch) for cell in found] == [("eager", 1), ("eager", 2), ("captured", 1), ("captured", 2)]
    assert {(tokens, whole) for _, tokens, whole in maker.fed} == {(1, False), (2, False), (4, True)}


def test_what_cannot_be_captured_or_batched_is_rejected(target, make_checkpoint):
    with rejects("--capture"):
        measure_grid({TARGET: target}, CONTEXT, Grid([1], [8], [1], 2, how="captured"), RESAMPLING)
    folder = make_checkpoint(seed=1, model_type="opt", ffn_dim=128, word_embed_proj_dim=64)
    models = {TARGET: load_model(folder, dtype="float32", device="cpu")}
    assert len(measure_grid(models, CONTEXT, Grid([1], [8], [1], 2), RESAMPLING)) == 1
    with rejects("--batch-sizes 2"):
        measure_grid(models, CONTEXT, Grid([1, 2], [8], [1], 2), RESAMPLING)


def test_what_does_not_fit_is_rejected_before_it_is_measured(target, monkeypatch):
    require_memory({TARGET: target}, batch=1, context=100)
    with rejects("--contexts 99999"):
        require_memory({TARGET: target}, batch=1, context=99999)
    monkeypatch.setattr(latency_module, "free_bytes", lambda _device: 10**6)
    with rejects("--batch-sizes 4096", "--contexts 100"):
        require_memory({TARGET: target}, batch=4096, context=100)
    with rejects("GiB"):
        untrained_models(target, [replace(shape_of(target), layers=99)])
    monkeypatch.setattr(latency_module, "bytes_to_pack", lambda _model: 3 * 2**29)
    with rejects("1.5 GiB"):
        require_memory({TARGET: target}, batch=1, context=1)


def test_untrained_models_have_the_shape_asked_for(target):
    shape = replace(shape_of(target), layers=2)
    small = replace(shape, head_vocab=100, tied=False)
    for model, due in zip(untrained_models(target, [shape, small]), (shape, small), strict=True):
        assert model.num_parameters() == due.parameters()
        assert model.dtype == target.dtype
        assert len(model.get_output_embeddings().weight) == (due.head_vocab or due.vocab)


FEW = ("--grid", "--batch-sizes", 1, "--contexts", 8, "--num-speculative-tokens", 2, "--repeats", 6)


def run_grid(*words):
    return widedraft.main(["benchmark", *map(str, (*FEW, *words))])


def test_the_command_prints_and_writes(target_folder, noisy_folder, tmp_path, capsys):
    out = tmp_path / "latency.json"
    assert run_grid("--target", target_folder, "--draft", noisy_folder, "--dtype", "float32", "--out", out) == 0
    record, printed = read_grid_file(out), capsys.readouterr().out
    assert record.models["draft"].path == str(noisy_folder)
    assert record.models["draft"].fingerprint != record.models[TARGET].fingerprint
    assert (record.threads, record.drafts, record.ks) == (1, ["draft"], [2])
    assert f"{record.cells[0].drafts[0].cost_ratio:.3f}" in printed
    assert str(out) in printed


def test_a_grid_of_other_drafts_than_its_models_is_no_grid(target_folder, noisy_folder, tmp_path):
    out = tmp_path / "latency.json"
    assert run_grid("--target", target_folder, "--draft", noisy_folder, "--out", out) == 0
    values = json.loads(out.read_text())
    del values["models"]["draft"]
    out.write_text(json.dumps(values))
    with rejects(out):
        read_grid_file(out)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--repeats", 5), "--repeats"),
        (("--target-bits", 8, "--capture"), "--target-bits"),
        (("--num-prompts", 5), "--num-prompts"),
        (("--temperature", 0), "--temperature"),
    ],
)
def test_flags_that_mean_nothing_for_a_grid_are_rejected(target_folder, capsys, words, flag):
    assert run_grid("--target", target_folder, *words) == 2
    assert flag in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "most"), [("max 100000", None), ("150000 100000", 1)])
def test_the_quota_of_a_container_limits_cores(tmp_path, limit, most):
    path = tmp_path / "cpu.max"
    path.write_text(limit)
    assert usable_cores(path) <= (most or usable_cores(tmp_path / "absent"))
