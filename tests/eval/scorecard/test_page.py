"""The page says what the record says: each table's cells are read back and compared with it."""

from dataclasses import replace

import pytest

from architectures.pages.markdown import markdown
from eval.acceptance.estimates import Estimate
from eval.config import EvalConfig
from eval.pages.scorecard_page import scorecard_page
from eval.pages.tables import rate
from eval.pages.verdict import prediction, with_interval
from eval.prompts.forms import Prompt
from eval.records.acceptance import Bin, BinRounds, Bins, PerPosition
from eval.records.scorecard_speeds import OverLookup
from eval.records.values import Ratio
from eval.scorecard import score_drafts
from tests.eval.records import changed

PROMPTS = [Prompt(f"p.jsonl:{i}", ({"role": "user", "content": text},)) for i, text in enumerate(("why", "2+2?"), 1)]
CONFIG = EvalConfig(
    max_new_tokens=12,
    lookaheads=(1, 2, 3),
    batch_size=2,
    num_resamples=50,
    confidence=0.5,  # two prompts are enough for an interval
    num_threads=1,
    latency_repeats=3,
    latency_batch_sizes=(),
)


@pytest.fixture(scope="module")
def scored(target_folder, noisy_folder, tiny_draft, tmp_path_factory):
    drafts = {"undistilled": tiny_draft, "draft": noisy_folder}
    return score_drafts(target_folder, drafts, PROMPTS, CONFIG, tmp_path_factory.mktemp("page"), seed=17)


@pytest.fixture
def record(scored):
    """A scorecard whose speed-ups, which this machine decides, are round numbers that differ."""
    live = replace(scored.live, speedup=Estimate(1.25, (1.125, 1.5)), decoding_speedup=Estimate(2.5, (2.25, 2.75)))
    for n, key in enumerate(("plain", "speculative")):
        spent = {"prefill_s": n + 1.0, "decode_s": n + 3.0, "ms_per_token": n + 5.0}
        live = replace(live, **{key: replace(getattr(live, key), **spent)})
    return replace(scored, live=live, speedup=tuple(replace(row, best_lookahead=2) for row in scored.speedup))


def sections(record):
    """Heading -> the paragraphs below it."""
    found, paragraphs = {}, []
    for paragraph in markdown(scorecard_page(record)).rstrip("\n").split("\n\n"):
        if paragraph.startswith("#"):
            paragraphs = found[paragraph.lstrip("# ")] = []
        else:
            paragraphs.append(paragraph)
    return found


def rows(paragraph):
    """The rows of a table, its columns and the rule below them left out."""
    return [line.strip("| ").split(" | ") for line in paragraph.splitlines()[2:]]


def test_the_page_is_about_the_last_draft(record):
    page = markdown(scorecard_page(record))
    assert page.startswith(f"# Scorecard of {record.drafts[1].path}\n")
    assert [title for title in sections(record) if title.startswith("By position")] == [
        "By position: draft, temperature 0, lookahead 3",
        "By position: draft, temperature 1, lookahead 3",
    ]


def test_models_stand_in_their_order(record):
    assert [(row[0], row[2], row[4]) for row in rows(sections(record)["Models"][0])] == [
        ("target", "4", f"{record.target.parameters:,}"),
        ("undistilled", "2", f"{record.drafts[0].parameters:,}"),
        ("draft", "4", f"{record.drafts[1].parameters:,}"),
    ]


def test_alpha_and_argmax_agreement_stand_beside_what_they_were_measured_on(record):
    assert rows(sections(record)["Acceptance"][0]) == [
        [
            row.draft,
            f"{row.temperature:g}",
            rule.rule,
            with_interval(rule.alpha),
            with_interval(rule.alpha_of_text),
            with_interval(rule.lookahead[-1].alpha_of_rounds),
            f"{row.greedy_match.value:.3f}",
            f"2 prompts, {row.alpha.tokens} tokens",
        ]
        for row in record.acceptance
        for rule in (row, *row.other_rules)
    ]


def test_tau_of_every_draft_stands_beside_its_counts(record):
    drafts = [row.lookahead for row in record.acceptance if row.temperature == 1]
    expected = [
        [
            str(lookahead),
            *(
                cell
                for entry in entries
                for cell in (
                    with_interval(entry.tau),
                    with_interval(entry.tau_per_prompt),
                    f"{entry.utilisation.value:.3f} ({entry.accepted:.1f} / {entry.proposed:.1f})",
                    f"{entry.rounds:.1f}",
                )
            ),
        ]
        for lookahead, entries in enumerate(zip(*drafts, strict=True), start=1)
    ]
    assert rows(sections(record)["Tokens per round (tau) at temperature 1, rule rejection"][0]) == expected
    assert len(expected) == 3


def test_rates_by_position_stand_beside_their_counts(record):
    [entry] = [row for row in record.acceptance if (row.draft, row.temperature) == ("draft", 1.0)]
    entry = entry.lookahead[-1]
    expected = [
        [
            str(p.position),
            f"{p.joint.value:.3f} ({p.accepted:.1f} / {entry.rounds:.1f})",
            f"{p.unconditional.value:.3f} ({p.accepted:.1f} / {p.possible:.1f})",
            f"{p.conditional.value:.3f} ({p.accepted:.1f} / {p.reached:.1f})",
        ]
        for p in entry.positions
    ]
    positions, histogram = sections(record)["By position: draft, temperature 1, lookahead 3"]
    assert rows(positions) == expected
    assert len(expected) == 3
    assert rows(histogram) == [
        ["rounds", *(f"{rounds:.1f}" for rounds in entry.histogram)],
        ["share", *(f"{share.value:.3f}" for share in entry.histogram_share)],
    ]


def test_tau_under_the_other_rules_is_told_where_there_are_any(record):
    found = sections(record)
    assert "Under other rules at temperature 0" not in found
    [part] = found["Under other rules at temperature 1"]
    assert part.splitlines()[0] == (
        "| lookahead | tau, undistilled, exact_greedy_draft | tau, undistilled, exact_sampled_draft "
        "| tau, draft, exact_greedy_draft | tau, draft, exact_sampled_draft |"
    )
    others = [rule for row in record.acceptance for rule in row.other_rules]
    assert rows(part) == [
        [str(place + 1), *(with_interval(rule.lookahead[place].tau) for rule in others)] for place in range(3)
    ]


@pytest.fixture
def binned(record):
    """The draft's tokens parted by category at temperature 1 alone."""
    *others, last = (replace(row, bins=()) for row in record.acceptance)
    counts = dict.fromkeys(("proposed", "decided", "accepted", "emitted", "fully_accepted"), 0)
    ratios = dict.fromkeys(("tau_per_prompt", "alpha_of_rounds", "utilisation"), Ratio(None, None))
    rest = {**counts, **ratios, "histogram": (), "per_position": PerPosition(possible=(), reached=(), accepted=())}
    lookahead = tuple(BinRounds(lookahead=n, tau=Ratio(1.0 + n, None), rounds=10.0 * n, **rest) for n in (1, 2, 3))
    figures = {name: getattr(last, name) for name in ("prompts", "alpha", "alpha_of_text", "greedy_match", "coverage")}
    bins = tuple(Bin(bin=name, lookahead=lookahead, **figures) for name in ("code", "talk"))
    parted = tuple(Bins(by=by, bins=bins) for by in ("task", "category"))
    return replace(record, acceptance=(*others, replace(last, bins=parted)))


def test_bins_are_told_at_the_best_lookahead_and_only_where_there_are_several(binned):
    found = {title: parts for title, parts in sections(binned).items() if title.startswith("By ")}
    assert [title for title in found if not title.startswith("By position")] == [
        "By task of the prompt: draft",
        "By category of the prompt: draft",
    ]
    alpha, matches = binned.acceptance[-1].alpha, binned.acceptance[-1].greedy_match
    tokens = f"2 prompts, {alpha.tokens} tokens"
    cells = [tokens, with_interval(alpha), f"{matches.value:.3f}", "3.000 at lookahead 2", "20.0"]
    assert rows(found["By category of the prompt: draft"][0]) == [["1", "code", *cells], ["1", "talk", *cells]]


def test_positions_and_entropies_have_titles_of_their_own(binned):
    for by, title in (
        ("output_position", "By output position (tokens before): draft"),
        ("entropy", "By entropy of the target (nats): draft"),
    ):
        assert title in sections(changed(binned, **{"acceptance__-1__bins__0__by": by}))


def test_gains_in_tau_are_told_at_the_best_lookahead(record):
    differences, note = sections(record)["Paired differences, same prompts and answers"]
    assert note.startswith("p over tokens is McNemar's exact test. It takes tokens for independent")
    cells = rows(differences)
    assert [cell[0] for cell in cells] == ["draft - undistilled"] * 2
    for cell, difference in zip(cells, record.differences, strict=True):
        tau = difference.lookahead[1].tau
        assert cell[3].startswith(f"{tau.value:.3f} [")
        assert cell[3].endswith("] at lookahead 2")
        matches = difference.greedy_match
        assert cell[4:] == [with_interval(matches), f"{matches.mcnemar_p:.2g}", f"{matches.sign_flip_p:.2g}"]


def test_every_step_is_named_with_its_tokens(record):
    latency = record.latency
    title = f"Step times at batch 1, {latency.context_tokens} tokens of context, 3 repetitions"
    names = ["target, 1 token", *(f"target, {n} tokens (verify)" for n in (2, 3, 4))]
    names += [f"{draft}, {tokens}" for draft in ("undistilled", "draft") for tokens in ("1 token", "2 tokens")]
    cells = rows(sections(record)[title][0])
    assert [cell[0] for cell in cells] == names
    steps = [latency.target, *latency.verify]
    steps += [step for row in latency.drafts for step in (row.one_token, row.two_tokens)]
    assert [(cell[1].split()[0], *cell[2:]) for cell in cells] == [
        tuple(f"{value:.2f}" for value in (step.median_ms, step.p10_ms.value, step.p90_ms.value)) for step in steps
    ]


def test_only_the_last_drafts_speed_up_is_forecast(record):
    found = {title: parts for title, parts in sections(record).items() if title.startswith("Predicted speed-up")}
    forecasts = [row for row in record.speedup if row.draft == "draft"]
    assert list(found) == [
        f"Predicted speed-up of draft at temperature {row.temperature:g}: {prediction(record, row)} at lookahead 2"
        for row in forecasts
    ]
    for [part], forecast in zip(found.values(), forecasts, strict=True):
        assert [cells[:5] for cells in rows(part)] == [
            [
                str(entry.lookahead),
                *(f"{value:.3f}" for value in (entry.predicted, entry.iid, entry.leviathan, entry.memory_bound)),
            ]
            for entry in forecast.lookahead
        ]


def test_live_decoding_is_told_with_and_without_the_draft(record):
    counts = {"tau": 1.25, "rounds": 20, "looked_up_rounds": 5, "plain_rounds": 15, "same_text": 2}
    lookup = replace(record.live.ways[0], speedup=Estimate(1.5, (1.25, 1.75)), **counts)
    over = OverLookup(way="draft", speedup=Estimate(0.75, (0.5, 1.0)))
    record = changed(record, live__ways=(lookup,), live__over_lookup=(over,))
    live = record.live
    title = f"Live decoding of 2 prompts at batch 1, temperature 0, lookahead {live.lookahead}"
    spent, words, other, over, _, trace = sections(record)[title]
    named = f"n-gram lookup, lookahead {lookup.lookahead}"
    ways = (("target alone", live.plain), ("with draft", live.speculative), (named, lookup.spent))
    assert rows(spent) == [
        [name, str(one.tokens), *(f"{value:.2f}" for value in (one.prefill_s, one.decode_s, one.ms_per_token))]
        for name, one in ways
    ]
    decoding = with_interval(lookup.decoding_speedup, times=True)
    assert other == (
        f"N-gram lookup, lookahead {lookup.lookahead}: 1.50x [1.25, 1.75] with the reading of the prompt, "
        f"{decoding} without it; tau 1.25, 5 of 20 rounds looked up, 15 without a proposal, 2 of 2 texts those of "
        "plain decoding."
    )
    assert over == "Over n-gram lookup alone, in the same turns: draft 0.75x [0.50, 1.00]."
    assert words == (
        "Speed-up 1.25x [1.12, 1.50] with the reading of the prompt, 2.50x [2.25, 2.75] without it; "
        f"predicted without it: {prediction(record, record.speedup_of('draft', 0.0))}."
    )
    assert trace == "Every round of the draft: rounds.jsonl, whose figures `widedraft rounds` prints."


def test_the_method_is_told_in_numbers(record):
    record = changed(record, settings__dtype="bfloat16")
    [facts] = sections(record)["How it was measured"]
    assert "number type bfloat16." in facts
    assert "Prompts: 2 given, 2 taken, 0 of them longer than 1024 tokens and left out, 2 scored." in facts
    [entry] = record.prompts.tasks
    assert f"Tasks: prompts of no named task: 2 taken, sha256 {entry.sha256[:12]}." in facts
    two = sections(changed(record, prompts__tasks=(entry, replace(entry, task="gsm8k", version=3))))
    assert "no named task: 2 taken" in two["How it was measured"][0]
    assert f", gsm8k version 3: 2 taken, sha256 {entry.sha256[:12]}." in two["How it was measured"][0]
    assert "Answers: at most 12 tokens, written by the target in batches of 2; seed 17." in facts
    assert "Intervals: 50 % expanded percentile bootstrap over prompts, 50 resamples." in facts


def test_a_rate_of_nothing_is_none():
    assert rate(0.0, 0.0, Ratio(None, None)) == "none (0.0 / 0.0)"
