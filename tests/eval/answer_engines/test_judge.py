"""What the target says of texts: near ties, and the surprise of samples."""

import pytest
import torch

from eval.answer_engines.judge import judge_greedy, judge_sampled, pooled
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits

GREEDY = Sampling()


def text_of(model, prompt, sampling=GREEDY, seed=0, length=40):
    [decoded] = plain_decode(model, [prompt], limits=Limits(length), sampling=sampling, row_seeds=[seed])
    return decoded.token_ids


def test_our_own_greedy_text_differs_nowhere(target, prompts):
    verdict = judge_greedy(target, prompts[1], text_of(target, prompts[1]), GREEDY)
    assert (verdict.first, verdict.excess, verdict.tokens) == (None, 0.0, 40)


def test_the_first_other_token_is_found_with_its_gap(target, prompts):
    ids = list(text_of(target, prompts[1]))
    with torch.inference_mode():
        logits_V = target(torch.tensor([[*prompts[1], *ids[:9]]])).logits[0, -1]
    best, second = logits_V.topk(2).indices.tolist()
    assert best == ids[9]
    verdict = judge_greedy(target, prompts[1], [*ids[:9], second], GREEDY)
    assert verdict.first == verdict.worst == 9
    assert verdict.gap == pytest.approx(float(logits_V[best] - logits_V[second]), rel=1e-4)
    assert not verdict.is_honest


def test_a_penalty_is_applied_before_tokens_are_compared(target, prompts):
    penalty = Sampling(repetition_penalty=1.5)
    ids = text_of(target, prompts[1], penalty)
    assert judge_greedy(target, prompts[1], ids, penalty).is_honest
    assert not judge_greedy(target, prompts[1], ids, GREEDY).is_honest


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_p=0.8), Sampling(1.3, top_k=20, min_p=0.05)])
def test_surprise_of_honest_samples_is_what_is_expected_and_of_others_not(target, prompts, sampling):
    texts = [text_of(target, prompts[1], sampling, seed) for seed in range(8)]
    honest = pooled(judge_sampled(target, prompts[1], ids, sampling) for ids in texts)
    assert honest.is_honest
    assert abs(honest.sigmas) < 4
    assert honest.outside == 0
    colder = Sampling(sampling.temperature / 2, sampling.top_p, sampling.top_k, sampling.min_p)
    assert not pooled(judge_sampled(target, prompts[1], ids, colder) for ids in texts).is_honest
