"""`widedraft verify --beside` passes a sound pair that looks up, and sees a decoder that keeps what it looked up."""

import pytest
import torch

from eval.checks.verify import Verification, check_distribution, check_greedy_text, check_own_draft, looked_up
from eval.decoding.rules import LOSSLESS, Verdict
from eval.decoding.sampling import Sampling
from eval.decoding.turn import Turn
from eval.proposing.policy import ProposalPolicy

POLICY = ProposalPolicy(3, 0.0, (0.5, 0.5), 2.0)
WANTED = Verification(max_new_tokens=40, sampling=Sampling(0.6), samples=60, lookup_policies={0.0: POLICY, 0.6: POLICY})


def test_a_sound_pair_passes_with_looking_up(target, noisy_draft, prompts):
    for finding in (
        check_greedy_text(target, noisy_draft, prompts, WANTED),
        check_own_draft(target, prompts, WANTED),
    ):
        assert finding.holds, finding.detail
        assert any(one.looked_up for text in finding.run.decoded for one in text.rounds)


@pytest.mark.parametrize("rule", LOSSLESS)
def test_sampled_texts_of_a_sound_pair_pass(small_pair, rule):
    finding = check_distribution(*small_pair, [(1,), (2, 3)], WANTED, rule)
    assert finding.holds, finding.detail
    assert any(one.looked_up for text in finding.run.decoded for one in text.rounds)


def test_a_decoder_that_keeps_what_it_looked_up_fails(monkeypatch, small_pair):
    sound = Turn.judged

    def keeps_one(self, rule, target_BJV, draws):
        verdict = sound(self, rule, target_BJV, draws)
        rows_B = torch.tensor([bool(ids) for ids in self.lookups])
        one_B = torch.where(rows_B & (verdict.accepted_B == 0), 1, verdict.accepted_B)
        return Verdict(one_B, verdict.next_B)

    monkeypatch.setattr(Turn, "judged", keeps_one)
    assert not check_distribution(*small_pair, [(1,), (2, 3)], WANTED, "rejection").holds


def test_the_tokens_that_were_looked_up_are_found_again(small_pair):
    finding = check_distribution(*small_pair, [(1,), (2, 3)], WANTED, "rejection")
    kept = 0
    for place, text in zip(finding.run.prompt_indices, finding.run.decoded, strict=True):
        context = [(1,), (2, 3)][place]
        rounds = [one for one in text.rounds if one.looked_up]
        found = dict(looked_up(context, text, POLICY))
        assert set(found) == {one.start + step for one in rounds for step in range(min(one.accepted + 1, one.proposed))}
        for one in rounds:
            for step in range(one.accepted):
                kept += 1
                assert found[one.start + step] == text.token_ids[one.start + step]
    assert kept > 0
    assert not dict(looked_up((1,), finding.run.decoded[0], None))
