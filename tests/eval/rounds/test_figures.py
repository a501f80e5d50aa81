"""Figures of a trace: those of the rounds in memory, whatever was proposed and wherever texts end."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import widedraft
from architectures.pages.counts import number_of
from architectures.pages.markdown import markdown
from eval.acceptance.counts import count_trace, pool, tau
from eval.answers.traces import read_traces
from eval.config import EvalConfig
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import speculative_decode
from eval.decoding.texts import Decoded, Limits, Round, Seeds, Speculation
from eval.prompts.forms import Prompt
from eval.report_inputs.round_figures import counts_by_prompt, rounds_page, run_figures
from eval.rounds.round_trace import ModelIdentity, Run, read_round_trace, traced_rounds, write_round_trace
from eval.scorecard import score_drafts

MODEL = ModelIdentity("folder", "1" * 64, "float32")
STOPS = frozenset(range(0, 264, 9))


def written(run, names, path):
    write_round_trace(path, [run], names, target=MODEL, draft=MODEL, device="cpu")
    return read_round_trace(path)


def decode(target, draft, prompts, speculation, sampling, limits, samples=1):
    """A run as the commands make it."""
    places = [place for place in range(len(prompts)) for _ in range(samples)]
    arguments = {"limits": limits, "speculation": speculation, "sampling": sampling, "row_seeds": range(len(places))}
    decoded = speculative_decode(target, draft, [prompts[place] for place in places], **arguments)
    return Run("run", places, decoded, limits.max_new_tokens, speculation, sampling, Seeds())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("stops", [frozenset(), STOPS], ids=["never", "stops"])
def test_figures_of_the_file_are_those_of_the_rounds_in_memory(target, noisy_draft, prompts, tmp_path, sampling, stops):
    run = decode(target, noisy_draft, prompts, Speculation(4), sampling, Limits(24, stops), samples=2)
    assert any(text.stopped for text in run.decoded) == bool(stops)
    names = [f"p:{place}" for place in range(len(prompts))]
    found = run_figures(written(run, names, tmp_path / "r.jsonl").rounds)
    rounds = [one for text in run.decoded for one in text.rounds]
    counts = [
        count_trace([(one.start, one.accepted) for one in text.rounds], num_tokens=len(text.token_ids), lookahead=4)
        for text in run.decoded
    ]
    by_prompt = [pool(counts[place : place + 2]) for place in range(0, len(counts), 2)]
    whole = pool(counts)
    assert (found.prompts, found.texts, found.rounds) == (len(prompts), 2 * len(prompts), len(rounds))
    assert found.drafted == sum(one.proposed for one in rounds)
    assert found.accepted == sum(one.accepted for one in rounds)
    assert found.emitted == sum(len(text.token_ids) for text in run.decoded)
    [entry] = found.lookahead
    assert (entry.lookahead, entry.proposed) == (4, whole.proposed_tokens)
    assert entry.histogram == whole.histogram
    assert entry.tau.value == tau(whole)
    assert entry.tau_per_prompt.value == pytest.approx(sum(map(tau, by_prompt)) / len(by_prompt))
    assert entry.utilisation.value == pytest.approx(whole.accepted_tokens / whole.proposed_tokens)
    assert entry.alpha_of_rounds.value == pytest.approx(whole.accepted_tokens / whole.decided_tokens)
    for place, position in enumerate(entry.positions):
        told = (position.possible, position.reached, position.accepted)
        assert told == (whole.possible[place], whole.reached[place], whole.accepted[place])
        assert position.joint.value == pytest.approx(whole.accepted[place] / len(rounds))
        assert position.conditional.value == pytest.approx(whole.accepted[place] / whole.reached[place])


def test_seconds_of_a_round_count_once_for_all_its_texts(target, noisy_draft, prompts, tmp_path):
    run = decode(target, noisy_draft, prompts, Speculation(3), Sampling(), Limits(24, STOPS))
    times = run_figures(written(run, [f"p:{i}" for i in range(9)], tmp_path / "r.jsonl").rounds).times
    steps = max((text.rounds for text in run.decoded), key=len)  # the text that went through all of them
    draft_s, verify_s = (sum(getattr(one, name) for one in steps) for name in ("draft_s", "verify_s"))
    assert (times.draft_s, times.verify_s) == pytest.approx((draft_s, verify_s))
    assert times.ms_per_round == pytest.approx(1000 * (draft_s + verify_s) / len(steps))
    assert times.draft_ms_per_round + times.verify_ms_per_round == pytest.approx(times.ms_per_round)
    assert times.draft_share == pytest.approx(draft_s / (draft_s + verify_s))
    assert times.rows_per_round == pytest.approx(sum(len(text.rounds) for text in run.decoded) / len(steps))


def test_an_adaptive_lookahead_counts_what_each_round_proposed(target, noisy_draft, prompts, tmp_path):
    run = decode(target, noisy_draft, prompts, Speculation(2, adaptive=True), Sampling(), Limits(32))
    [entry] = run_figures(written(run, [f"p:{i}" for i in range(9)], tmp_path / "r.jsonl").rounds).lookahead
    rounds = [one for text in run.decoded for one in text.rounds]
    assert len({one.lookahead for one in rounds}) > 3
    assert entry.lookahead == max(one.lookahead for one in rounds)
    assert entry.proposed == sum(one.proposed for one in rounds)  # no text stopped: there was room for all
    for position in entry.positions:
        k = position.position
        assert position.possible == sum(one.proposed >= k for one in rounds)
        assert position.reached == sum(one.proposed >= k and one.accepted >= k - 1 for one in rounds)
        assert position.accepted == sum(one.accepted >= k for one in rounds)
    assert entry.histogram == tuple(sum(one.accepted == k for one in rounds) for k in range(entry.lookahead + 1))


@st.composite
def texts(draw):
    """Rounds as a loop may make them, of a text that a stop token may end anywhere in the last one."""
    rounds, start = [], 0
    for _ in range(draw(st.integers(1, 5))):
        lookahead = draw(st.integers(1, 6))
        proposed = draw(st.integers(0, lookahead))
        accepted = draw(st.integers(0, proposed))
        rounds.append(Round(start, lookahead, proposed, accepted, 1, 0.5, 0.25))
        start += accepted + 1
    return Decoded(tuple(range(start)), tuple(rounds), 0.0, 0.0, "rejection", stopped=draw(st.booleans()))


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(texts(), min_size=1, max_size=4))
def test_counts_are_those_by_definition(decoded):
    run = Run("run", [0] * len(decoded), decoded, 99, Speculation(6), Sampling(1.0), Seeds())
    [counts] = counts_by_prompt(traced_rounds(run, ["p"]), 6)
    told = [
        (min(one.proposed, len(text.token_ids) - one.start - 1), one.accepted)
        for text in decoded
        for one in text.rounds
    ]
    positions = range(1, 7)
    assert counts.rounds == len(told)
    assert counts.possible == tuple(sum(room >= k for room, _ in told) for k in positions)
    assert counts.reached == tuple(sum(room >= k and kept >= k - 1 for room, kept in told) for k in positions)
    assert counts.accepted == tuple(sum(kept >= k for _, kept in told) for k in positions)
    assert counts.emitted_tokens == sum(len(text.token_ids) for text in decoded)


def test_the_page_tells_counts_rates_and_times(tmp_path):
    """Two prompts at lookahead 2: [a a t] [t] stopped behind one of two proposals, and [a t]."""
    first = Decoded(
        (1, 2, 3, 4), (Round(0, 2, 2, 2, 2, 0.25, 0.5), Round(3, 2, 2, 0, 1, 0.125, 0.5)), 0, 0, "rejection", True
    )
    second = replace(first, rounds=(Round(0, 2, 1, 1, 2, 0.25, 0.5),), stopped=False)
    run = Run("warm", [0, 1], [first, second], 4, Speculation(2), Sampling(0.5), Seeds())
    page = markdown(rounds_page(written(run, ["a", "b"], tmp_path / "r.jsonl")))
    assert page.startswith("# Rounds of folder drafting for folder\n\n## warm\n\n")
    for told in (
        "Rule rejection, temperature 0.5, lookahead 2; 2 texts of 2 prompts.",
        "| 3 | 5 | 2 | 3 | 6 |",
        "| 2 | 2.000 | 2.000 | 1.000 (3.0 / 3.0) | 3.0 |",
        "alpha of rounds 1.000, utilisation 1.000",
        "### By position: draft, temperature 0.5, lookahead 2",
        "| 1 | 0.667 (2.0 / 3.0) | 1.000 (2.0 / 2.0) | 1.000 (2.0 / 2.0) |",
        "| rounds | 1.0 | 1.0 | 1.0 |",
        (
            "time: 1.375 s, 27.3% of it the draft's; a round, of 1.5 texts together, takes 687.50 ms, 187.50 of the "
            "draft and 500.00 of the target"
        ),
        f"on cpu with {number_of(torch.get_num_threads(), 'thread')}; commit ",
    ):
        assert told in page, told


def test_an_adaptive_run_and_one_without_texts_say_so(tmp_path):
    text = Decoded((1, 2), (Round(0, 1, 1, 1, 1, 0.0, 0.0),), 0, 0, "rejection")
    run = Run("short", [0], [text], 4, Speculation(1, adaptive=True), Sampling(0.5), Seeds())
    page = markdown(rounds_page(written(run, ["a"], tmp_path / "r.jsonl")))
    assert "lookahead 1 at first, adaptive; 1 text of 1 prompt." in page
    assert "0.000 s, none of it the draft's; a round takes 0.00 ms" in page
    empty = markdown(rounds_page(written(replace(run, prompt_indices=[], decoded=[]), [], tmp_path / "r.jsonl")))
    assert "## short\n\nNo prompt was decoded, so there is no round.\n" in empty


@pytest.fixture(scope="module")
def scored(target_folder, noisy_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored")
    asked = [
        Prompt(f"p.jsonl:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(("why", "x", "2+2?"))
    ]
    keys = {"max_new_tokens": 16, "lookaheads": (2, 3), "num_resamples": 50, "num_threads": 1, "latency_repeats": 2}
    keys["latency_batch_sizes"] = ()
    config = EvalConfig(**keys, live_prompts=2, temperatures=(0.0,))
    return out, asked, config, score_drafts(target_folder, {"draft": noisy_folder}, asked, config, out, seed=3)


def test_a_scorecards_live_figures_are_those_of_its_rounds(scored):
    out, _, _, scorecard = scored
    trace, live = read_round_trace(out / "rounds.jsonl"), scorecard.live
    found = run_figures(trace.rounds)
    loop = live.agreement.loop
    [entry] = found.lookahead
    assert (entry.rounds, entry.accepted, entry.proposed) == (loop.rounds, loop.accepted, loop.proposed)
    assert found.emitted == live.speculative.tokens
    for name in ("draft_s", "verify_s"):
        assert getattr(found.times, name) == pytest.approx(getattr(live.speculative, name))
    [run] = trace.header.runs
    assert (run.label, run.lookahead, run.max_new_tokens, run.texts) == ("live decoding", live.lookahead, 16, 2)
    assert {one.prompt for one in trace.rounds} == set(scorecard.prompts.sources[:2])
    for model, told in ((trace.header.target, scorecard.target), (trace.header.draft, scorecard.drafts[0])):
        assert (model.path, model.fingerprint, model.dtype) == (told.path, told.fingerprint, told.dtype)


def test_live_rounds_stand_under_the_name_of_their_prompt(scored, target, noisy_draft):
    out, _, _, scorecard = scored
    rounds, limits = read_round_trace(out / "rounds.jsonl").rounds, Limits(16, {2})
    answers = {trace.source: trace.prompt_ids for trace in read_traces(out / "answers" / "T0", "eval")}
    found = {}
    for source in scorecard.prompts.sources[:2]:
        speculation = Speculation(scorecard.live.lookahead)
        [text] = speculative_decode(target, noisy_draft, [answers[source]], limits=limits, speculation=speculation)
        found[source] = [one.accepted for one in rounds if one.prompt == source]
        assert found[source] == [one.accepted for one in text.rounds]
    assert len(set(map(tuple, found.values()))) == 2


def test_sampled_rounds_take_the_place_of_older_ones(scored, target_folder, noisy_folder, tmp_path):
    _, asked, config, _ = scored
    (tmp_path / "rounds.jsonl").write_text("of an earlier scoring")
    sampled = config.model_copy(update={"temperatures": (1.0,)})
    score_drafts(target_folder, {"draft": noisy_folder}, asked[:1], sampled, tmp_path, seed=3)
    [run] = read_round_trace(tmp_path / "rounds.jsonl").header.runs
    assert (run.sampling.temperature, run.texts) == (1.0, 1)


def test_rounds_prints_a_trace_and_refuses_what_only_totals_need(scored, capsys):
    path = scored[0] / "rounds.jsonl"
    assert widedraft.main(["rounds", str(path)]) == 0
    assert capsys.readouterr().out == f"{markdown(rounds_page(read_round_trace(path)))}\n"
    for words, named in (
        (["--lookahead", "3"], "--lookahead"),
        (["--recorded", "x", "--lookahead", "3"], "--recorded and --lookahead"),
    ):
        assert widedraft.main(["rounds", str(path), *words]) == 2
        assert capsys.readouterr().err.startswith(f"{named} must be left out: {path} is a trace")


def test_rounds_names_a_damaged_line(scored, tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    path.write_bytes((scored[0] / "rounds.jsonl").read_bytes()[:-20])
    assert widedraft.main(["rounds", str(path)]) == 2
    num_lines = len(path.read_text().splitlines())
    assert capsys.readouterr().err.startswith(f"{path}:{num_lines}: Invalid JSON: EOF")
    assert widedraft.main(["rounds", str(Path(tmp_path / "absent"))]) == 2
    assert "cannot be read" in capsys.readouterr().err
