"""The lossless checks pass a sound pair, fail a faulty decoder and inflated acceptance, and believe few near ties."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import binom, chisquare

from eval import lossless
from eval.decoding import sampling, speculative
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
    TIE_STEPS,
    TextTies,
    Verification,
    check_distribution,
    check_greedy_text,
    check_lossless,
    check_own_draft,
    decode,
    evidence,
    excess_p,
    inflated_by_rule,
    inflation_p_value,
    judge_ties,
    judged_positions,
    larger_p,
    one_hot_argmax,
    own_p_value,
    shortfalls,
    stepwise_logits,
)
from eval.models import load_model
from eval.replay import response_logits
from tests.eval.decoding import test_mutants
from tests.eval.decoding.test_plain_decoding import FAMILIES
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
        p_BK, q_BK = (sampling.prob_of(probs, proposal.tokens_BK) for probs in (target_BJV[:, :-1], proposal.probs_BKS))
        return ((1 + by) * p_BK / q_BK).clamp(max=1)

    patch(sampling, "acceptance_probs", mutant)


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


GREEDY = Verification(Limits(32))
NOBODY = frozenset()


def second_of_two_near_ties(monkeypatch, share):
    """When the target judges a proposal, the second-best token is taken where it lies within what 4 roundings allow."""
    verify = speculative.SpeculativeSteps.verify

    def mutant(self, proposal, counts):
        with monkeypatch.context() as patch:
            feed = self.batch.verifier.feed
            patch.setattr(self.batch.verifier, "feed", lambda *args, **how: swapped(feed(*args, **how), share))
            return verify(self, proposal, counts)

    monkeypatch.setattr(speculative.SpeculativeSteps, "verify", mutant)


def swapped(logits, share):
    """Logits in which the second of two near ties stands above the first."""
    logits, allowed = logits.float(), 4 * share * torch.finfo(logits.dtype).eps
    values, ids = logits.topk(2, dim=-1)
    near = values[..., 0] - values[..., 1] <= allowed * logits.abs().amax(dim=-1)
    raised = torch.where(near, values[..., 0] + 1, values[..., 1])
    return logits.scatter(-1, ids[..., 1:], raised[..., None])


@pytest.fixture(scope="module")
def half_pair(target_folder, noisy_folder):
    return [load_model(folder, dtype="bfloat16", device="cpu") for folder in (target_folder, noisy_folder)]


def test_a_decoder_that_is_wrong_within_rounding_fails_in_half_precision(monkeypatch, half_pair, prompts):
    second_of_two_near_ties(monkeypatch, 0.5)
    assert not check_greedy_text(half_pair, prompts, GREEDY).holds


def test_near_ties_that_are_small_enough_but_too_many_fail(monkeypatch, half_pair, prompts):
    second_of_two_near_ties(monkeypatch, 0.3)
    finding = check_greedy_text(half_pair, [[*prompt, extra] for prompt in prompts for extra in (5, 77, 130)], GREEDY)
    assert not finding.holds
    assert ", beyond a near tie 0;" in finding.detail


def test_few_tokens_that_are_no_near_ties_fail(monkeypatch, half_pair, prompts):
    """The first step alone takes the second best, however far it is: too few to be too many."""
    verify, steps = speculative.SpeculativeSteps.verify, []

    def mutant(self, proposal, counts):
        steps.append(1)
        with monkeypatch.context() as patch:
            feed, share = self.batch.verifier.feed, 1e9 if len(steps) == 1 else 0.0
            patch.setattr(self.batch.verifier, "feed", lambda *args, **how: swapped(feed(*args, **how), share))
            return verify(self, proposal, counts)

    monkeypatch.setattr(speculative.SpeculativeSteps, "verify", mutant)
    finding = check_greedy_text(half_pair, prompts[1:4], GREEDY)
    assert not finding.holds
    assert float(finding.detail.split("p = ")[1].split(";")[0]) > MIN_P


@pytest.mark.parametrize("seed", range(2))
def test_an_honest_decoder_passes_in_half_precision(half_pair, seed):
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 259, (length,), generator=generator).tolist() for length in (3, 5, 9, 17)]
    finding = check_greedy_text(half_pair, prompts, GREEDY)
    assert finding.holds, finding.detail


def test_a_decoder_that_is_wrong_within_rounding_fails_in_float32(monkeypatch, target, noisy_draft, prompts):
    """Wider than float32 rounds, for these texts hold no nearer ties."""
    second_of_two_near_ties(monkeypatch, 1e4)
    assert not check_greedy_text((target, noisy_draft), prompts, GREEDY).holds


@pytest.mark.parametrize("family", FAMILIES)
def test_step_by_step_the_target_reads_what_it_reads_at_once(make_checkpoint, make_translator, prompts, family):
    make = make_translator if family == "t5" else partial(make_checkpoint, model_type=family)
    model = load_model(make(seed=1, **FAMILIES[family]), dtype="float32", device="cpu")
    for prompt, width in (([5], 1), (prompts[3], 5)):
        whole, stepwise = (
            response_logits(model, prompt, prompts[4]),
            stepwise_logits(model, prompt, prompts[4], width=width),
        )
        torch.testing.assert_close(stepwise, whole, rtol=1e-4, atol=1e-4)


def test_near_ties_that_are_larger_than_readings_differ_are_few():
    texts = [
        TextTies(
            10,
            ((0.19, 1.0, (5, 6)), (0.31, 1.0, (7, 8)), (0.31, 1.0, (7, 8)), (0.1, 0.05, (5, 7))),
            NOBODY,
            (NOBODY,),
            0.1,
        ),
        TextTies(5, ((0.3, 1.0, (7, 8)),), NOBODY, (NOBODY,), 0.2),
    ]
    judged = judge_ties(texts)
    assert (judged.tokens, judged.ties, judged.too_far, judged.larger) == (15, 4, 1, 2)
    assert (judged.largest, judged.noise, judged.larger_p) == (0.31, 0.2, 0.25)
    assert not judged.is_honest  # for the one that is too far
    assert larger_p(6, own=1, measured=2) > MIN_P > larger_p(7, own=1, measured=2)


def test_an_honest_decoder_is_believed_however_heavy_the_tails_of_rounding():
    """Readings of 2,000 near ties differ by t-distributed noise, that of the text among them."""
    rng, failed, beyond = np.random.default_rng(5), 0, 0
    for _ in range(500):
        gaps, noise = rng.uniform(0, 3, 2000), rng.standard_t(2, (3, 2000)) * 0.02
        flips = gaps + noise < 0
        taken = [frozenset((int(place), 0) for place in np.flatnonzero(row)) for row in flips]
        short = tuple((float(gaps[place]), TIE_STEPS, (place, 0)) for place, _ in taken[0])
        judged = judge_ties([TextTies(2000, short, taken[0], (*taken[1:],), float(np.abs(noise[1:]).max()))])
        failed += not judged.is_honest
        beyond += judged.largest > 1.5 * judged.noise
    assert failed <= 3  # MIN_P of 500, twice
    assert beyond > 5  # at a limit of 1.5 times the largest difference, two in a hundred


def test_four_roundings_of_the_largest_logit_are_a_near_tie_at_most():
    logits = torch.tensor([[-20.0, 16.0, 15.5]])
    short_T, tolerance_T = shortfalls(logits, torch.tensor([2]), torch.bfloat16)
    assert (short_T.item(), tolerance_T.item()) == (0.5, 20 * 4 / 128)


def test_choices_of_the_text_alone_are_counted_against_the_reading_that_explains_most():
    """Each once a text: one that goes in circles meets the same near tie again and again."""
    own, other = frozenset((place, 50) for place in range(12)), frozenset((place, 50) for place in range(8))
    unlike, more = frozenset((place, 60) for place in range(4)), frozenset({(99, 1), (98, 1)})
    judged = judge_ties([TextTies(99, (), own, (NOBODY, other | unlike)), TextTies(99, (), more, (more, more))])
    assert (judged.own, judged.other) == (4, 4)
    assert judged.own_p == excess_p(4, 4) > 0.5
    blamed = judge_ties([TextTies(99, (), own, (NOBODY, frozenset({(5, 70)})))])
    assert (blamed.own, blamed.other, blamed.own_p) == (12, 1, excess_p(12, 1))


def test_ten_choices_that_no_reading_has_are_too_many():
    assert excess_p(0, 0) == 1.0
    assert excess_p(9, 0) == 2**-9 > MIN_P > excess_p(10, 0) == 2**-10
