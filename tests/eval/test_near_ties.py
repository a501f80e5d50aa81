"""Near ties are believed as often and as large as other readings of the same texts have them."""

from functools import partial

import numpy as np
import pytest
import torch

from eval.decoding import speculative as batch_steps
from eval.decoding.sampling import Limits
from eval.lossless import (
    MIN_P,
    TIE_STEPS,
    TextTies,
    Verification,
    check_greedy_text,
    excess_p,
    judge_ties,
    larger_p,
    shortfalls,
    stepwise_logits,
)
from eval.models import load_model
from eval.replay import response_logits
from tests.eval.decoding.test_plain_decoding import FAMILIES

WANTED = Verification(Limits(32))
NOBODY = frozenset()


def second_of_two_near_ties(monkeypatch, share):
    """When the target judges a proposal, the second-best token is taken where it lies within what 4 roundings allow."""
    verify = batch_steps.SpeculativeSteps.verify

    def mutant(self, proposal, counts):
        with monkeypatch.context() as patch:
            feed = self.batch.verifier.feed
            patch.setattr(self.batch.verifier, "feed", lambda *args, **how: swapped(feed(*args, **how), share))
            return verify(self, proposal, counts)

    monkeypatch.setattr(batch_steps.SpeculativeSteps, "verify", mutant)


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
    assert not check_greedy_text(half_pair, prompts, WANTED).holds


def test_near_ties_that_are_small_enough_but_too_many_fail(monkeypatch, half_pair, prompts):
    second_of_two_near_ties(monkeypatch, 0.3)
    finding = check_greedy_text(half_pair, [[*prompt, extra] for prompt in prompts for extra in (5, 77, 130)], WANTED)
    assert not finding.holds
    assert ", beyond a near tie 0;" in finding.detail


def test_few_tokens_that_are_no_near_ties_fail(monkeypatch, half_pair, prompts):
    """The first step alone takes the second best, however far it is: too few to be too many."""
    verify, steps = batch_steps.SpeculativeSteps.verify, []

    def mutant(self, proposal, counts):
        steps.append(1)
        with monkeypatch.context() as patch:
            feed, share = self.batch.verifier.feed, 1e9 if len(steps) == 1 else 0.0
            patch.setattr(self.batch.verifier, "feed", lambda *args, **how: swapped(feed(*args, **how), share))
            return verify(self, proposal, counts)

    monkeypatch.setattr(batch_steps.SpeculativeSteps, "verify", mutant)
    finding = check_greedy_text(half_pair, prompts[1:4], WANTED)
    assert not finding.holds
    assert float(finding.detail.split("p = ")[1].split(";")[0]) > MIN_P


@pytest.mark.parametrize("seed", range(2))
def test_an_honest_decoder_passes_in_half_precision(half_pair, seed):
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 259, (length,), generator=generator).tolist() for length in (3, 5, 9, 17)]
    finding = check_greedy_text(half_pair, prompts, WANTED)
    assert finding.holds, finding.detail


def test_a_decoder_that_is_wrong_within_rounding_fails_in_float32(monkeypatch, target, noisy_draft, prompts):
    """Wider than float32 rounds, for these texts hold no nearer ties."""
    second_of_two_near_ties(monkeypatch, 1e4)
    assert not check_greedy_text((target, noisy_draft), prompts, WANTED).holds


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
