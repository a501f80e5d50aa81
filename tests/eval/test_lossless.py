"""The lossless checks pass a sound pair, and fail a faulty decoder and inflated acceptance."""

import numpy as np
import pytest
import torch
from scipy.stats import binom, chisquare

from eval import lossless
from eval.decoding import sampling as rules
from eval.decoding.sampling import (
    LOSSLESS,
    REJECTION,
    RULES,
    Decoded,
    Draws,
    Limits,
    Proposal,
    Sampling,
    VerificationStep,
)
from eval.lossless import (
    MIN_P,
    Verification,
    check_distribution,
    check_greedy_text,
    check_lossless,
    check_own_draft,
    decode,
    evidence,
    inflated_by_rule,
    inflation_p_value,
    judged_positions,
    one_hot_argmax,
    own_p_value,
)
from eval.models import load_model
from tests.eval.decoding import test_mutants
from tests.rejections import rejects

WANTED = Verification(Limits(24), sampling=Sampling(0.8), samples=4)
SOME = slice(1, 5)


def holds(findings):
    return {finding.name: finding.holds for finding in findings}


def test_a_sound_pair_passes_everything(target, noisy_draft, prompts):
    findings = list(check_lossless((target, noisy_draft), prompts[SOME], WANTED))
    assert holds(findings) == {
        "greedy text": True,
        "target as its own draft": True,
        "distribution, rejection, T=0.8": True,
        "distribution, exact_sampled_draft, T=0.8": True,
        "distribution, exact_greedy_draft, T=0.8": True,
    }


@pytest.mark.parametrize(
    ("fault", "temperature"),
    [
        (test_mutants.unwarped_q, 0.6),
        (test_mutants.greedy_draft_with_softmax_q, 0.6),
        (test_mutants.residual_from_p, 0.6),
        (test_mutants.accept_iff_p_at_least_q, 0.6),
        (test_mutants.shared_random_numbers, 1.0),
    ],
)
def test_a_fault_in_sampling_fails_the_distribution(monkeypatch, small_pair, fault, temperature):
    fault(monkeypatch.setattr)
    wanted = Verification(Limits(40), sampling=Sampling(temperature, top_k=3), samples=120)
    assert not check_distribution(small_pair, [(1,), (2, 3)], wanted, "rejection").holds


def test_without_a_fault_the_same_texts_pass(small_pair):
    wanted = Verification(Limits(40), sampling=Sampling(0.6, top_k=3), samples=120)
    assert check_distribution(small_pair, [(1,), (2, 3)], wanted, "rejection").holds


@pytest.mark.parametrize("fault", [test_mutants.cache_one_short, test_mutants.cache_one_long])
def test_a_fault_in_the_cache_fails_the_greedy_text(monkeypatch, target, noisy_draft, prompts, fault):
    fault(monkeypatch.setattr)
    assert not check_greedy_text((target, noisy_draft), prompts[SOME], WANTED).holds


def test_a_draft_that_never_catches_up_fails_as_its_own(monkeypatch, target, prompts):
    test_mutants.draft_never_catches_up(monkeypatch.setattr)
    assert not check_own_draft(target, prompts[SOME], WANTED).holds


@pytest.mark.parametrize(
    ("dtype", "kept", "holds"), [("bfloat16", 93, True), ("bfloat16", 92, False), ("float32", 99, False)]
)
def test_a_target_rejects_no_more_of_its_own_proposals_than_chance_explains_and_none_in_float32(
    monkeypatch, target_folder, dtype, kept, holds
):
    decoded = Decoded((1,), (VerificationStep(0, 100, 100, kept, 1, 0.0, 0.0),), 0.0, 0.0)
    monkeypatch.setattr(lossless, "decode", lambda *_args, **_options: [decoded])
    assert check_own_draft(load_model(target_folder, dtype=dtype), [[5]], WANTED).holds is holds


def test_a_text_of_one_token_proves_nothing_of_its_own_draft(target):
    assert not check_own_draft(target, [[5]], Verification(Limits(1))).holds


def test_an_encoder_decoder_pair_is_verified(translators, prompts):
    wanted = Verification(Limits(12), sampling=Sampling(8.0), samples=2)
    assert all(finding.holds for finding in check_lossless(translators, prompts[1:3], wanted))


def test_an_encoder_decoder_that_does_not_say_how_it_begins_is_refused(make_translator):
    folder = make_translator(decoder_start_token_id=None)
    with rejects("decoder_start_token_id"):
        load_model(folder, dtype="float32")


@pytest.mark.parametrize("proposed", [50, 103, 1000])
def test_a_target_in_half_precision_fails_for_its_own_proposals_once_in_a_thousand_runs(proposed):
    """Four rejected of 103 are no fault at 98 %: a share alone had failed a sound pair there."""
    chances = binom.pmf(range(proposed + 1), proposed, 0.02)
    failing = [chance for rejected, chance in enumerate(chances) if own_p_value(rejected, proposed) < MIN_P]
    assert MIN_P / 20 < sum(failing) <= MIN_P


def test_each_method_is_checked_with_random_numbers_of_its_own(target, noisy_draft):
    """Both exact methods write what the target draws: with the same numbers they would be one check made twice."""
    wanted = Verification(Limits(12), samples=2)
    texts = [
        [one.token_ids for one in decode((target, noisy_draft), [[5]], wanted, sampling=Sampling(1.0), rule=rule)]
        for rule in ("exact_sampled_draft", "exact_greedy_draft")
    ]
    assert len({text for each in texts for text in each}) == 4


# Inflated acceptance

VOCAB = 6
ROWS = 200_000
SIZES = (0.02, 0.2, 1.0)


def two_distributions(seed=3, count=1):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, count, VOCAB, generator=generator).mul(1.2).softmax(dim=-1)
    return p, q


def inflate_chances(patch, by):
    """Every accept chance is so much higher than p / q."""

    def mutant(target_BJV, proposal):
        p_BK, q_BK = (rules.prob_of(probs, proposal.tokens_BK) for probs in (target_BJV[:, :-1], proposal.probs_BKS))
        return ((1 + by) * p_BK / q_BK).clamp(max=1)

    patch(rules, "acceptance_probs", mutant)


@pytest.mark.parametrize("rule", LOSSLESS)
def test_nothing_is_drawn_otherwise_without_a_fault_and_with_one_chances_add_up(rule):
    p, q = two_distributions(count=20)
    torch.testing.assert_close(inflated_by_rule(rule)(p, q, 0.0), p)
    for size in SIZES:
        drawn = inflated_by_rule(rule)(p, q, size)
        assert drawn.min() >= 0
        torch.testing.assert_close(drawn.sum(dim=-1), torch.ones(20))
        assert (drawn - p).abs().max() > 1e-3


@pytest.mark.parametrize("by", [0.1, 1.0])
def test_rejection_with_inflated_chances_draws_what_the_model_says(monkeypatch, by):
    inflate_chances(monkeypatch.setattr, by)
    p, q = two_distributions()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.multinomial(q[0], ROWS, replacement=True, generator=generator)[:, None]
    proposal = Proposal(tokens, q.expand(ROWS, 1, VOCAB), torch.ones(ROWS, dtype=torch.long))
    draws = Draws(torch.rand(ROWS, 1, generator=generator), torch.rand(ROWS, 2, generator=generator))
    verdict = RULES[REJECTION](p.expand(ROWS, 2, VOCAB), proposal, draws)
    first = torch.where(verdict.accepted_B > 0, tokens[:, 0], verdict.next_B)
    require_drawn_from(first, inflated_by_rule(REJECTION)(p, q, by)[0])
    with pytest.raises(AssertionError):
        require_drawn_from(first, p[0])


@pytest.mark.parametrize("rule", LOSSLESS[1:])
def test_exact_rules_with_inflated_chances_draw_what_the_model_says(rule):
    """Where the target draws another token, the proposed one is kept often enough to make its chance 1.3 p in all."""
    by, rng = 0.3, np.random.default_rng(1)
    p, q = two_distributions()
    q_V = (q if rule == "exact_sampled_draft" else one_hot_argmax(q))[0].double().numpy()
    p_V = p[0].double().numpy()
    proposed, drawn = rng.choice(VOCAB, ROWS, p=q_V / q_V.sum()), rng.choice(VOCAB, ROWS, p=p_V / p_V.sum())
    wrongly = rng.random(ROWS) < np.minimum(1, by * p_V / (1 - p_V))[proposed]
    written = np.where(wrongly, proposed, drawn)
    require_drawn_from(torch.tensor(written), inflated_by_rule(rule)(p, q, by)[0])
    assert (proposed == written).mean() == pytest.approx((1 + by) * (p_V * q_V).sum(), abs=0.01)


def require_drawn_from(tokens, chances_V):
    counts = torch.bincount(tokens, minlength=VOCAB).numpy()
    expected = chances_V.double().numpy()
    assert chisquare(counts, expected / expected.sum() * len(tokens)).pvalue > 1e-4


def test_what_the_draft_had_no_part_in_is_not_judged():
    """A step that kept both of two, one that kept one of two, one without room: the bonus tokens are the target's."""
    steps = [
        VerificationStep(0, 2, 2, 2, 1, 0, 0),
        VerificationStep(3, 2, 2, 1, 1, 0, 0),
        VerificationStep(5, 2, 0, 0, 1, 0, 0),
    ]
    assert judged_positions(steps) == [0, 1, 3, 4]


def runs_of(by, rule, count, runs=400):
    """Evidence of many runs over the same distributions, from tokens drawn with inflated chances."""
    p, q = two_distributions(count=count)
    drawn = inflated_by_rule(rule)(p, q, by)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.multinomial(drawn, runs, replacement=True, generator=generator).T.tolist()
    steps = [VerificationStep(0, count, count, count - 1, 1, 0, 0)]
    return [evidence(p, q, each, steps, rule) for each in tokens]


@pytest.mark.parametrize("rule", LOSSLESS)
def test_p_values_hold_their_level_and_a_large_inflation_is_found(rule):
    count, level = 1500, 0.01
    sound = [inflation_p_value([each]) for each in runs_of(0.0, rule, count)]
    assert sum(each < level for each in sound) <= 12  # of 400; 4 expected
    assert sum(each < 0.5 for each in sound) in range(160, 241)
    assert np.mean([inflation_p_value([each]) < level for each in runs_of(0.9, rule, count)]) > 0.9


def test_a_draft_that_is_the_target_but_for_rounding_shows_nothing():
    p, _ = two_distributions(count=300)
    q = p * (1 + 1e-6 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2)))
    steps = [VerificationStep(0, 300, 300, 299, 1, 0, 0)]
    for rule, draft in ((REJECTION, p), (REJECTION, q / q.sum(dim=-1, keepdim=True))):
        assert inflation_p_value([evidence(p, draft, torch.multinomial(p, 1)[:, 0].tolist(), steps, rule)]) == 1.0


def test_verify_finds_an_inflation_by_four_fifths(monkeypatch, small_pair):
    """Without the fault all pass."""
    wanted = [Verification(Limits(24), sampling=Sampling(0.6, top_k=3), samples=20, seed=seed) for seed in range(3)]
    prompts = [(1,), (2, 3)]
    assert all(check_distribution(small_pair, prompts, each, REJECTION).holds for each in wanted)
    inflate_chances(monkeypatch.setattr, 0.8)
    found = [not check_distribution(small_pair, prompts, each, REJECTION).holds for each in wanted]
    assert sum(found) >= 2
