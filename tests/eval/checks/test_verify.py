"""`widedraft verify` passes a sound pair and names the check that a faulty decoder fails."""

from dataclasses import replace

import pytest
from scipy.stats import binom
from transformers import BartConfig, BartForConditionalGeneration

from architectures.errors import UserError
from eval.checks import verify
from eval.checks.loaded_pair import load_pair
from eval.checks.verify import (
    LEAST_P,
    Verification,
    check_distribution,
    check_greedy_text,
    check_own_draft,
    decode_run,
    own_p_value,
    verify_pair,
)
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Round
from eval.models.loading import load_model, load_tokenizer
from tests.eval.decoding import test_mutants

WANTED = Verification(max_new_tokens=24, sampling=Sampling(0.8), samples=12)
SOME = slice(1, 5)


def holds(findings):
    return {finding.name: finding.holds for finding in findings}


def test_a_sound_pair_passes_everything(target, noisy_draft, prompts):
    findings = list(verify_pair(target, noisy_draft, prompts[SOME], WANTED))
    assert holds(findings) == {
        "greedy text": True,
        "target as its own draft": True,
        "distribution, rejection, T=0.8": True,
        "distribution, exact_sampled_draft, T=0.8": True,
        "distribution, exact_greedy_draft, T=0.8": True,
    }
    assert findings[0].detail.startswith("4 of 4 texts are those of plain decoding; ")
    assert all(" proposed tokens kept" in finding.detail for finding in findings)


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
    wanted = Verification(max_new_tokens=40, sampling=Sampling(temperature, top_k=3), samples=250)
    assert not check_distribution(*small_pair, [(1,), (2, 3)], wanted, "rejection").holds


def test_without_a_fault_the_same_texts_pass(small_pair):
    wanted = Verification(max_new_tokens=40, sampling=Sampling(0.6, top_k=3), samples=250)
    assert check_distribution(*small_pair, [(1,), (2, 3)], wanted, "rejection").holds
    assert not check_distribution(*small_pair, [(1,), (2, 3)], wanted, "typical").holds


def test_p_values_of_a_sound_pair_are_spread(small_pair):
    """As many as LEAST_P allows are small: the test neither cries wolf nor sleeps."""
    found = []
    for seed in range(12):
        wanted = Verification(max_new_tokens=12, sampling=Sampling(1.0), samples=40, seed=seed)
        detail = check_distribution(*small_pair, [(1,)], wanted, "rejection").detail
        found.append(float(detail.split()[2]))
    assert min(found) > LEAST_P
    assert sum(value < 0.5 for value in found) in range(2, 11)


@pytest.mark.parametrize("fault", [test_mutants.cache_one_short, test_mutants.cache_one_long])
def test_a_fault_in_the_cache_fails_the_greedy_text(monkeypatch, target, noisy_draft, prompts, fault):
    fault(monkeypatch.setattr)
    assert not check_greedy_text(target, noisy_draft, prompts[SOME], WANTED).holds


def test_a_draft_that_never_catches_up_fails_as_its_own(monkeypatch, target, prompts):
    test_mutants.draft_never_catches_up(monkeypatch.setattr)
    assert not check_own_draft(target, prompts[SOME], WANTED).holds


def test_half_precision_allows_near_ties_and_counts_them(target_folder, noisy_folder, prompts):
    target, draft = (load_model(folder, dtype="bfloat16", device="cpu") for folder in (target_folder, noisy_folder))
    finding = check_greedy_text(target, draft, prompts[SOME], WANTED)
    assert finding.holds
    assert "are near ties of the argmax and 0 are neither" in finding.detail
    assert check_own_draft(target, prompts[SOME], WANTED).holds


def test_half_precision_does_not_allow_other_tokens(monkeypatch, target_folder, noisy_folder, prompts):
    target, draft = (load_model(folder, dtype="bfloat16", device="cpu") for folder in (target_folder, noisy_folder))
    test_mutants.cache_one_long(monkeypatch.setattr)
    assert not check_greedy_text(target, draft, prompts[SOME], WANTED).holds


@pytest.mark.parametrize(
    ("dtype", "kept", "holds"), [("bfloat16", 93, True), ("bfloat16", 92, False), ("float32", 99, False)]
)
def test_a_target_rejects_no_more_of_its_own_proposals_than_chance_explains_and_none_in_float32(
    monkeypatch, target_folder, dtype, kept, holds
):
    rounds = [Round(0, 100, 100, kept, 1, 0.0, 0.0)]
    run = decode_run("own", [load_model(target_folder, dtype="float32")] * 2, [[5]], Verification(max_new_tokens=2))
    decoded = [replace(run.decoded[0], rounds=tuple(rounds))]
    monkeypatch.setattr(verify, "decode_run", lambda *_args, **_options: replace(run, decoded=decoded))
    assert check_own_draft(load_model(target_folder, dtype=dtype), [[5]], WANTED).holds is holds


def test_a_text_of_one_token_proves_nothing_of_its_own_draft(target):
    assert not check_own_draft(target, [[5]], Verification(max_new_tokens=1)).holds


def test_an_encoder_decoder_pair_is_verified(translators, prompts):
    wanted = Verification(max_new_tokens=16, sampling=Sampling(8.0), samples=4)
    assert all(finding.holds for finding in verify_pair(*translators, prompts[SOME], wanted))


def test_an_encoder_decoder_checkpoint_is_opened_where_it_can_be_used(translators, target_folder, tmp_path):
    folder = tmp_path / "t5"
    translators[0].float().save_pretrained(folder)
    translators[0].double()
    load_tokenizer(target_folder).save_pretrained(folder)
    assert load_pair(str(folder), str(folder), dtype="float32").target.config.is_encoder_decoder
    assert load_model(folder, dtype="float32").config.is_encoder_decoder


def test_an_encoder_decoder_of_an_unknown_family_is_opened_by_who_decodes_alone(target_folder, tmp_path):
    sizes = {"vocab_size": 264, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    BartForConditionalGeneration(BartConfig(**sizes, **heads)).save_pretrained(tmp_path)
    load_tokenizer(target_folder).save_pretrained(tmp_path)
    assert load_pair(str(tmp_path), str(tmp_path), dtype="float32").target.config.model_type == "bart"
    with pytest.raises(UserError, match="an encoder-decoder model of model_type 'bart'"):
        load_model(tmp_path, dtype="float32")


def test_an_encoder_decoder_that_does_not_say_how_it_begins_is_refused(make_translator):
    folder = make_translator(decoder_start_token_id=None)
    with pytest.raises(UserError, match="decoder_start_token_id is missing"):
        load_model(folder, dtype="float32")


@pytest.mark.parametrize("proposed", [50, 103, 1000])
def test_a_target_in_half_precision_fails_for_its_own_proposals_once_in_a_thousand_runs(proposed):
    """Four rejected of 103 are no fault at 98 %: a share alone had failed a sound pair there."""
    chances = binom.pmf(range(proposed + 1), proposed, 0.02)
    failing = [chance for rejected, chance in enumerate(chances) if own_p_value(rejected, proposed) < LEAST_P]
    assert LEAST_P / 20 < sum(failing) <= LEAST_P


def test_many_rejected_proposals_of_its_own_fail():
    assert own_p_value(4, 103) == pytest.approx(0.152, abs=0.001)
    assert own_p_value(10, 103) < LEAST_P
    assert own_p_value(36, 1000) < LEAST_P
    assert own_p_value(0, 103) == 1
