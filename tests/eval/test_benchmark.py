"""Every method writes the target's text, takes its turns, and is worth what its seconds and steps say."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from pydantic import TypeAdapter

import widedraft
from architectures.console import terminal
from eval.benchmark import (
    ASSISTED,
    DRAFT,
    LOOKUP,
    LOOKUP_FIRST,
    PLAIN,
    BenchmarkFile,
    Method,
    Setup,
    TimedRun,
    best_of_each,
    groups_of,
    interleave,
    method_row,
    methods,
    over_others,
    reached_precision,
    row_seeds_of,
)
from eval.cli import benchmark_page, default_prompts
from eval.decoding.sampling import Limits, Sampling, Seeds
from eval.decoding.speculative import LookupFirst, plain_decode
from eval.intervals import Estimate, Resampling, least_units
from eval.pair import PROMPTS

NAME = "draft"
RESAMPLING = Resampling(confidence=0.9, num_resamples=300, seed=17)
LIMITS = Limits(24)
WARM = Sampling(1.0)
PLAIN_METHOD = Method(PLAIN)


@pytest.fixture
def setup(target, noisy_draft):
    return Setup(target, {NAME: noisy_draft}, LIMITS)


@pytest.mark.parametrize("batch", [1, 3])
def test_every_method_writes_as_many_tokens_as_the_target(setup, target, prompts, batch):
    setup = replace(setup, limits=Limits(16, frozenset({2, 7, 40, 99})), lookup_first=LookupFirst(2, 3))
    for group in groups_of(prompts[::2] if batch == 1 else prompts, batch):
        written = sum(len(text.token_ids) for text in plain_decode(target, group, limits=setup.limits))
        for method, decode in methods(setup, [3], assisted=batch == 1).items():
            assert decode(group, range(len(group))).tokens == written, method


def test_the_seconds_are_those_of_the_whole_batch(setup, prompts):
    for method, decode in methods(setup, [3]).items():
        run = decode(prompts[:3], range(3))
        assert run.whole_s == run.prefill_s + run.decode_s
        spent_s = sum(one.draft_s + one.verify_s for one in max(run.steps, key=len))
        assert method.kind == PLAIN or 0 < spent_s < run.decode_s


def test_every_method_takes_every_turn_in_another_order():
    log = []
    named = {
        Method(name): lambda group, _seeds, name=name: log.append((name, group)) or (name, group) for name in "abc"
    }
    found = interleave(named, ["x", "y"], product(range(40), range(2)), np.random.default_rng(1))
    assert len(log) == 3 * 2 * 40
    assert all({name for name, _ in log[start : start + 3]} == set("abc") for start in range(0, len(log), 3))
    assert len({tuple(log[start : start + 3]) for start in range(0, len(log), 3)}) == 12  # all orders, of both groups
    assert found[Method("b")] == [{0: ("b", "x"), 1: ("b", "y")}] * 40
    assert list(found) == list(named)  # whatever came first in the first turn
    enough = interleave(named, "xyz", product((0,), range(3)), np.random.default_rng(1), is_enough=lambda r: len(r) > 1)
    assert [len(runs[0]) for runs in enough.values()] == [1, 1, 1]


def test_seeds_of_rows_depend_on_prompt_and_repetition_only():
    same = [[5, 6, 7], [9], [5, 6, 7]]
    seeds = {
        batch: [
            seed
            for repeat in range(2)
            for index in range(len(groups_of(same, batch)))
            for seed in row_seeds_of(groups_of(same, batch), index, repeat)
        ]
        for batch in (1, 3)
    }
    assert seeds[1] == seeds[3]
    assert len(set(seeds[1])) == 6


def test_another_seed_draws_other_texts(setup, prompts):
    kept = []
    for seed in (17, 17, 18):
        ways = methods(replace(setup, sampling=WARM, seeds=Seeds.of(seed)), [2])
        run = ways[Method(DRAFT, 2, NAME)](prompts, range(len(prompts)))
        kept.append([[one.accepted for one in row] for row in run.steps])
    assert kept[0] == kept[1] != kept[2]


def taken(tokens, decode_s, prefill_s=0.0):
    return TimedRun(tokens, prefill_s + decode_s, prefill_s, decode_s)


def test_the_ratio_is_seconds_per_token_over_seconds_per_token():
    times = {
        PLAIN_METHOD: [{0: taken(10, 1.0, 1.0), 1: taken(10, 1.0, 1.0)}],
        Method(LOOKUP, 1): [{0: taken(20, 1.0, 1.0), 1: taken(10, 0.5, 1.0)}],
    }
    row = method_row(Method(LOOKUP, 1), times, RESAMPLING)
    assert row.tokens_per_s == pytest.approx(30 / 3.5)
    assert (row.decode_speedup.value, row.decode_speedup.interval) == (pytest.approx(2.0), None)
    assert row.speedup.value == pytest.approx((4 / 20) / (3.5 / 30))
    own = method_row(PLAIN_METHOD, times, RESAMPLING)
    assert own.speedup == Estimate(1.0, None)


def times_of(*decode_s, repeats=1):
    """Looking up took so long for ten tokens of each group, again and again; the target alone one second."""
    return {
        PLAIN_METHOD: [dict.fromkeys(range(len(decode_s)), taken(10, 1.0))] * repeats,
        Method(LOOKUP, 1): [{place: taken(10, each_s) for place, each_s in enumerate(decode_s)}] * repeats,
    }


def test_groups_are_the_units_and_repetitions_are_not():
    """All repetitions of a group together: what comes and goes within a group leaves no doubt."""
    several = times_of(0.5, 0.6, 0.4, 0.5, 0.5, 0.6)
    once, often = (
        method_row(Method(LOOKUP, 1), times, RESAMPLING).decode_speedup.interval
        for times in (several, {way: rows * 9 for way, rows in several.items()})
    )
    assert often == pytest.approx(once)
    assert once[0] < 1.9 < once[1]
    alone, fast, slow = taken(10, 1.0), taken(10, 0.5), taken(10, 2.0)
    swapped = {
        PLAIN_METHOD: [dict.fromkeys(range(6), alone)] * 2,
        Method(LOOKUP, 1): [dict.fromkeys(range(6), fast), dict.fromkeys(range(6), slow)],
    }
    interval = method_row(Method(LOOKUP, 1), swapped, RESAMPLING).decode_speedup.interval
    assert interval == pytest.approx((0.8, 0.8))


@pytest.mark.parametrize(("groups", "has_interval"), [(1, False), (4, False), (5, True)])
def test_few_groups_have_no_interval_however_often_they_are_repeated(groups, has_interval):
    """At a confidence of 0.9 five are the least: fewer lie on one side of the truth too often by chance alone."""
    runs = times_of(*[0.5] * groups, repeats=20)
    row = method_row(Method(LOOKUP, 1), runs, RESAMPLING)
    for speedup in (row.speedup, row.decode_speedup):
        assert (speedup.interval is not None) == has_interval


def runs_of_drafts(**decode_s):
    """Several drafts at one k: seconds of each group of ten tokens, which plain decoding and lookup write in 0.4."""
    runs = {Method(DRAFT, 4, name): [dict(enumerate(taken(10, s) for s in each))] for name, each in decode_s.items()}
    slow = [{place: taken(10, 0.4) for place in range(6)}]
    return {PLAIN_METHOD: slow, **runs, Method(LOOKUP, 4): slow}


def test_the_best_of_each_is_compared_in_the_same_runs():
    """All groups are of one mind on a and b, though the intervals of their speedups overlap; of c they are not."""
    runs = runs_of_drafts(
        a=(0.11, 0.22, 0.44, 0.11, 0.22, 0.44),
        b=(0.10, 0.20, 0.40, 0.10, 0.20, 0.40),
        c=(0.48, 0.24, 0.12, 0.48, 0.24, 0.12),
    )
    best = best_of_each(runs, RESAMPLING)
    assert [(row.method, row.draft) for row in best] == [(DRAFT, "a"), (DRAFT, "b"), (DRAFT, "c"), (LOOKUP, None)]
    over_a, over_c, *over_lookup = over_others(best, runs, RESAMPLING)
    assert [(row.draft, row.over) for row in (over_a, over_c)] == [("b", "a, k = 4"), ("b", "c, k = 4")]
    assert [over_a.speedup.value, *over_a.speedup.interval] == pytest.approx([1.1] * 3)
    assert over_c.speedup.value == pytest.approx(1.2)
    assert over_c.speedup.interval[0] < 1
    assert [(row.draft, row.over) for row in over_lookup] == [(name, "prompt lookup, k = 4") for name in "abc"]


def test_the_best_k_is_picked_with_an_interval_for_all_that_were_compared():
    rng = np.random.default_rng(0)
    runs = {PLAIN_METHOD: [{place: taken(10, 1.0) for place in range(12)}]}
    for num_speculative_tokens in range(1, 7):
        runs[Method(LOOKUP, num_speculative_tokens)] = [
            {place: taken(10, rng.uniform(0.5, 1.5)) for place in range(12)}
        ]
    [best] = best_of_each(runs, RESAMPLING)
    rows = [method_row(method, runs, RESAMPLING) for method in runs if method.kind == LOOKUP]
    picked = max(rows, key=lambda row: row.speedup.value)
    assert (best.num_speculative_tokens, best.speedup.value) == (
        picked.num_speculative_tokens,
        pytest.approx(picked.speedup.value),
    )
    assert np.ptp(np.log(best.speedup.interval)) > np.ptp(np.log(picked.speedup.interval))


def test_precision_is_that_of_the_drafts_at_their_best_k():
    runs = {PLAIN_METHOD: [dict.fromkeys(range(12), taken(10, 1.0))]}
    for method, seconds in ((Method(DRAFT, 2, NAME), (0.4, 0.6)), (Method(LOOKUP, 2), (0.1, 0.9))):
        runs[method] = [{place: taken(10, seconds[place % 2]) for place in range(12)}]
    low, high = best_of_each(runs, RESAMPLING)[0].speedup.interval
    assert reached_precision(runs, RESAMPLING) == pytest.approx(high / 2 - 1) == pytest.approx(2 / low - 1)
    assert reached_precision({method: [{0: own[0][0]}] for method, own in runs.items()}, RESAMPLING) is None


@pytest.mark.parametrize("batch", range(1, 22))
def test_the_defaults_make_enough_groups_at_every_batch(batch):
    groups = groups_of([[1]] * min(default_prompts(batch), len(PROMPTS)), batch)
    assert len(groups) >= max(least_units(0.95), 12 if batch <= 10 else 0)


FEW = ("--num-prompts", 3, "--max-new-tokens", 6, "--num-speculative-tokens", 1, "--repeats", 1)


def run_benchmark(*words):
    return widedraft.main(["benchmark", *map(str, words)])


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        (("--assisted",), {ASSISTED}),
        (("--concurrency", 1, 2, "--ngram-size-n", 2), {LOOKUP_FIRST}),
        (("--temperature", 0.8, "--draft-p-min", 0.1), set()),
    ],
)
def test_the_command_prints_and_writes(target_folder, noisy_folder, tmp_path, capsys, more, kinds):
    out = tmp_path / "benchmark.json"
    assert run_benchmark("--target", target_folder, "--draft", noisy_folder, *FEW, *more, "--out", out) == 0
    record = TypeAdapter(BenchmarkFile).validate_json(out.read_bytes())
    assert terminal(benchmark_page(record)) in capsys.readouterr().out
    assert {row.method for row in record.rows} == {PLAIN, DRAFT, LOOKUP} | kinds
    assert record.prompts == dict.fromkeys((1, 2) if LOOKUP_FIRST in kinds else (1,), 3)
    assert {row.concurrency for row in record.rows} == set(record.prompts)
    assert record.target.fingerprint != record.drafts[NAME].fingerprint
    if "--temperature" not in more:
        assert len({row.tokens for row in record.rows}) == 1


def test_decoding_stops_at_the_precision(target_folder, tmp_path):
    out, words = tmp_path / "benchmark.json", (*FEW[2:], "--num-prompts", 14, "--precision", 0.99)
    assert run_benchmark("--target", target_folder, "--draft", target_folder, *words, "--out", out) == 0
    record = TypeAdapter(BenchmarkFile).validate_json(out.read_bytes())
    assert record.prompts == {1: 12}


def test_several_drafts_take_their_turns(target_folder, noisy_folder, tmp_path):
    out, drafts = tmp_path / "benchmark.json", [str(noisy_folder), str(target_folder)]
    assert run_benchmark("--target", target_folder, "--draft", *drafts, *FEW, "--out", out) == 0
    record = TypeAdapter(BenchmarkFile).validate_json(out.read_bytes())
    assert list(record.drafts) == [f"draft {draft}" for draft in drafts]
    lengths = {
        (row.draft, row.num_speculative_tokens): row.acceptance_length for row in record.rows if row.method == DRAFT
    }
    assert lengths[f"draft {target_folder}", 1] == 2.0  # the target as its own draft: 6 tokens in 3 steps
    assert lengths[f"draft {noisy_folder}", 1] < 2.0


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--num-speculative-tokens", 2, 2), "--num-speculative-tokens"),
        (("--assisted", "--concurrency", 2), "--assisted"),
        (("--precision", 0.1, "--repeats", 2), "--precision"),
        (("--contexts", 8), "--contexts"),
        (("--out", "."), "--out"),
        (("--max-new-tokens", 99999), "max_position_embeddings"),
    ],
)
def test_flags_that_mean_nothing_are_rejected(target_folder, noisy_folder, capsys, words, flag):
    assert run_benchmark("--target", target_folder, "--draft", noisy_folder, *words) == 2
    assert flag in capsys.readouterr().err
