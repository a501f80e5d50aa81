"""Every way writes the target's text, takes its turns, and is counted by the clock that ran while it did."""

import json
import re
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

import widedraft
from architectures.pages.markdown import markdown
from eval.acceptance.estimates import Resampling
from eval.acceptance.intervals import least_units
from eval.checks.built_in import PROMPTS
from eval.commands.speed import default_prompts
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits
from eval.latency.measure import measure_latency
from eval.latency.steps import Setting
from eval.records.speed import SpeedFile
from eval.speed.measure import groups_of, take_turns, warm_up
from eval.speed.page import speed_page
from eval.speed.ways import DRAFT, LOOKUP, PLAIN, TRANSFORMERS, Setup, Way, ways_to_decode

NAME = "draft"
RESAMPLING = Resampling(confidence=0.9, num_resamples=300, seed=17)
LIMITS = Limits(24)
PNG = b"\x89PNG"


@pytest.fixture
def setup(target, noisy_draft):
    return Setup(target, {NAME: noisy_draft}, LIMITS)


def test_there_is_a_way_for_every_lookahead(setup):
    assert list(ways_to_decode(setup, [1, 4])) == [
        Way(PLAIN),
        Way(DRAFT, 1, NAME),
        Way(LOOKUP, 1),
        Way(DRAFT, 4, NAME),
        Way(LOOKUP, 4),
    ]
    assert Way(TRANSFORMERS, 4, NAME) in ways_to_decode(setup, [4], assisted=True)


@pytest.mark.parametrize("batch", [1, 3])
def test_every_way_writes_as_many_tokens_as_the_target(setup, target, prompts, batch):
    setup = Setup(target, setup.drafts, Limits(24, frozenset({2, 7, 40, 99})))
    ways = ways_to_decode(setup, [3], assisted=batch == 1)
    for group in groups_of(prompts, batch):
        written = sum(len(text.token_ids) for text in plain_decode(target, group, limits=setup.limits))
        for way, run in ways.items():
            assert run(group, range(len(group))).tokens == written, way


def test_the_seconds_are_those_of_the_whole_batch(setup, prompts):
    for way, run in ways_to_decode(setup, [3]).items():
        taken = run(prompts[:3], range(3))
        assert taken.whole_s == taken.prefill_s + taken.decode_s
        assert (
            0 < sum(one.draft_s + one.verify_s for one in max(taken.texts, key=len)) < taken.decode_s
            or way.kind == PLAIN
        )
        assert [sum(one.accepted + 1 for one in text) for text in taken.texts] == (
            [24] * 3 if way.kind != PLAIN else [0] * 3
        )


def test_transformers_proposes_as_many_tokens_each_round(target, prompts, monkeypatch):
    """Draft = target: each round of lookahead 4 emits five tokens, so 20 tokens take four passes of the verifier."""
    run = ways_to_decode(Setup(target, {NAME: target}, Limits(20)), [4], assisted=True)[Way(TRANSFORMERS, 4, NAME)]
    fed = []
    hook = target.register_forward_pre_hook(
        lambda _module, _args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    run([prompts[2]], [0])
    hook.remove()
    assert sum(count >= 5 for count in fed) >= 3


def test_prompts_are_grouped_in_their_order():
    assert groups_of([[1], [2], [3], [4], [5]], 2) == [[[1], [2]], [[3], [4]], [[5]]]


def test_every_way_takes_every_turn_in_another_order():
    log = []
    ways = {Way(name): lambda group, _seeds, name=name: log.append((name, group)) or (name, group) for name in "abc"}
    found, turns = {}, product(range(40), range(2))
    taken_after = [len(log) for _ in take_turns(ways, ["x", "y"], turns, np.random.default_rng(1), times=found)]
    assert taken_after == list(range(3, 3 * 2 * 40 + 1, 3))
    assert all({name for name, _ in log[start : start + 3]} == set("abc") for start in range(0, len(log), 3))
    assert len({tuple(log[start : start + 3]) for start in range(0, len(log), 3)}) == 12  # all orders, of both groups
    assert found[Way("b")] == [{0: ("b", "x"), 1: ("b", "y")}] * 40
    assert list(found) == list(ways)  # whatever came first in the first turn


def test_warm_up_decodes_every_group_by_every_way():
    log = []
    ways = {Way(name): lambda group, _seeds, name=name: log.append(name + group) for name in "ab"}
    warm_up(ways, ["x", "y"])
    assert log == ["ax", "bx", "ay", "by"]


def test_passes_of_the_target_are_those_of_the_longest_row(setup, target, prompts):
    first, *_ = plain_decode(target, prompts[:3], limits=setup.limits)
    setup = Setup(target, setup.drafts, Limits(24, frozenset({first.token_ids[4]})))
    lengths = [len(text.token_ids) for text in plain_decode(target, prompts[:3], limits=setup.limits)]
    assert len(set(lengths)) > 1
    ways = ways_to_decode(setup, [3])
    assert ways[Way(PLAIN)](prompts[:3], range(3)).passes == max(lengths)
    drafted = ways[Way(DRAFT, 3, NAME)](prompts[:3], range(3))
    assert drafted.passes == max(len(rounds) for rounds in drafted.texts)


def test_steps_are_measured_at_the_batch(target, noisy_draft):
    latency = measure_latency(
        target, {NAME: noisy_draft}, Setting([5, 6, 7], 3), lookaheads=[2], repetitions=range(2), resampling=RESAMPLING
    )
    assert latency.step_times(NAME).verify_s[2] > 0


def read_speed(path):
    return TypeAdapter(SpeedFile).validate_json(path.read_bytes(), strict=True)


def run_speed(*words):
    return widedraft.main(["speed", *map(str, words)])


@pytest.mark.parametrize("more", [("--assisted",), ("--batch-size", 2), ("--temperature", 0.8)])
def test_the_command_prints_and_writes(target_folder, noisy_folder, tmp_path, capsys, more):
    out = tmp_path / "speed.json"
    few = ("--num-prompts", 3, "--max-new-tokens", 8, "--lookaheads", 1, 3, "--repeats", 2, "--num-threads", 1)
    files = ("--out", out, "--plot", tmp_path / "speed.png")
    assert run_speed("--target", target_folder, "--drafts", noisy_folder, *few, *more, *files) == 0
    assert (tmp_path / "speed.png").read_bytes().startswith(PNG)
    record, printed = read_speed(out), capsys.readouterr().out
    assert markdown(speed_page(record), level=2) in printed
    assert f"{out}: the figures" in printed
    kinds = {row.way for row in record.ways}
    assert kinds == {PLAIN, DRAFT, LOOKUP, *([TRANSFORMERS] if more == ("--assisted",) else [])}
    assert record.settings.prompts == 3
    assert record.target.fingerprint != record.drafts[NAME].fingerprint
    if more != ("--temperature", 0.8):
        assert len({row.tokens for row in record.ways}) == 1


def test_too_few_groups_are_told_before_anything_is_measured(target_folder, noisy_folder, capsys):
    few = ("--num-prompts", 3, "--max-new-tokens", 2, "--lookaheads", 1, "--batch-size", 2)
    assert run_speed("--target", target_folder, "--drafts", noisy_folder, *few) == 0
    told = capsys.readouterr()
    assert "Nothing will be decided: 3 prompts at --batch-size 2 are 2 groups, and 6 are the least" in told.err
    assert "Take at least 12 prompts: --num-prompts, and --prompts where there are not so many." in told.err
    assert told.out.count("Not decided, because 2 groups of prompts give no interval: 6 are the least") == 2


@pytest.mark.parametrize("batch", range(1, 22))
def test_the_defaults_make_enough_groups_at_every_batch(batch):
    groups = groups_of([[1]] * min(default_prompts(batch), len(PROMPTS)), batch)
    assert len(groups) >= max(least_units(0.95), 12 if batch <= 10 else 0)


def test_a_second_draft_of_another_tokenizer_is_refused(target_folder, noisy_folder, tmp_path, capsys):
    other = Path(shutil.copytree(noisy_folder, tmp_path / "other"))
    config = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": config["eos_token"]}))
    few = ("--num-prompts", 1, "--max-new-tokens", 2, "--lookaheads", 1, "--repeats", 1)
    assert run_speed("--target", target_folder, "--drafts", noisy_folder, other, *few) == 2
    assert f"{other}: bos_token_id is" in capsys.readouterr().err


def test_several_drafts_take_their_turns(target_folder, noisy_folder, tmp_path, capsys):
    out = tmp_path / "speed.json"
    drafts = [str(noisy_folder), str(target_folder)]
    few = ("--num-prompts", 2, "--max-new-tokens", 8, "--lookaheads", 1, 2, "--repeats", 1, "--num-threads", 1)
    assert run_speed("--target", target_folder, "--drafts", *drafts, *few, "--out", out) == 0
    record, printed = read_speed(out), capsys.readouterr().out
    assert markdown(speed_page(record), level=2) in printed
    assert list(record.drafts) == list(record.steps_ms.drafts) == [f"draft {draft}" for draft in drafts]
    assert record.drafts[f"draft {target_folder}"].fingerprint == record.target.fingerprint
    taus = {(row.draft, row.lookahead): row.tau for row in record.ways if row.way == DRAFT}
    assert len(taus) == 4
    assert taus[f"draft {target_folder}", 1] == 2.0  # the target as its own draft: 8 tokens in 4 rounds
    assert taus[f"draft {noisy_folder}", 1] < 2.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lookaheads", 0), "--lookaheads must be a whole number >= 1 and <= 1000000, got 0"),
        (("--lookaheads", 2, 2), r"--lookaheads must name each value once, got \[2, 2\]"),
        (("--drafts", "x", "y", "x"), "--drafts must name each value once, got "),
        (("--batch-size", 0), "--batch-size must be a whole number >= 1 and <= 1000000, got 0"),
        (("--repeats", 0), "--repeats must be a whole number >= 1 and <= 1000000, got 0"),
        (("--num-prompts", -1), "--num-prompts must be a whole number >= 1 and <= 1000000, got -1"),
        (("--temperature", -1), "--temperature must be a number >= 0 and <= 1000000, got -1"),
        (("--confidence", 1), "--confidence must be a number > 0 and < 1, got 1"),
        (("--num-threads", 0), "--num-threads must be a whole number >= 1 and <= 1024 or auto, got 0"),
        (("--assisted", "--batch-size", 2), "--assisted: .* one prompt at a time. Use --batch-size 1"),
        (("--out", "."), "--out .: is a folder"),
        (("--plot", "speed.svg"), "--plot speed.svg: must name a file that ends in .png"),
        (("--max-new-tokens", 99999), "max_position_embeddings is"),
    ],
)
def test_what_nothing_can_be_measured_with(target_folder, noisy_folder, capsys, words, message):
    assert run_speed("--target", target_folder, "--drafts", noisy_folder, *words) == 2
    assert re.search(message, capsys.readouterr().err)
