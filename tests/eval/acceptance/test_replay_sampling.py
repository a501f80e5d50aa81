"""Replay with every sampling setting a server has: what it predicts is what the decoding loop counts, text by text."""

from copy import deepcopy

import pytest
import torch

from architectures.vocabulary_head import cut_head
from eval.decoding.sampling import LOSSLESS, Limits, Sampling, Speculation, distribution
from eval.decoding.speculative import speculative_decode
from eval.replay import count_trace, replay_counts, replay_response, whole_vocabulary
from tests.eval.decoding.laws import FIRST, TEXT

ROWS, K = 800, 2
SETTINGS = {
    "top_k": Sampling(1.0, top_k=2),
    "top_p": Sampling(1.2, top_p=0.8),
    "min_p": Sampling(1.0, min_p=0.4),
    "penalty": Sampling(1.0, repetition_penalty=1.8),
    "all": Sampling(1.3, top_p=0.9, top_k=3, min_p=0.1, repetition_penalty=1.3),
}


def pair_of(small_pair, head):
    target, draft = small_pair[0], deepcopy(small_pair[1])
    if head == "some ids":
        cut_head(draft, torch.tensor([0, 1, 3]))
    return target, draft


@torch.inference_mode()
def logits_along(model, texts):
    """What response_logits gives of each text, all texts in one pass."""
    ids_NT = torch.tensor([[*FIRST, *ids[:-1]] for ids in texts])
    return [whole_vocabulary(model, logits_TV.float()) for logits_TV in model(input_ids=ids_NT).logits]


@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize(("head", "name"), [*(("whole head", name) for name in SETTINGS), ("some ids", "all")])
def test_what_replay_predicts_is_what_decoding_counts(small_pair, head, name, rule):
    """Of many sampled texts, within four standard errors, which are 0 where the text decides everything."""
    pair, sampling = pair_of(small_pair, head), SETTINGS[name]
    how = {
        "limits": Limits(TEXT),
        "speculation": Speculation(K, rule=rule),
        "row_seeds": range(ROWS),
    }
    decoded = speculative_decode(*pair, [FIRST] * ROWS, sampling=sampling, **how)
    texts = sorted({text.token_ids for text in decoded})
    predicted = {}
    for ids, *logits in zip(texts, *(logits_along(model, texts) for model in pair), strict=True):
        replayed = replay_response(*logits, ids, sampling=sampling, prompt_ids=FIRST)
        predicted[ids] = replay_counts(replayed.rules[rule].accept, num_speculative_tokens=K)
    traces = [[(step.start, step.accepted) for step in text.steps] for text in decoded]
    counted = [count_trace(each, num_tokens=TEXT, num_speculative_tokens=K) for each in traces]
    for figure in ("steps", "accepted_tokens", "proposed_tokens"):
        due = [getattr(predicted[text.token_ids], figure) for text in decoded]
        differences = torch.tensor([getattr(each, figure) - own for each, own in zip(counted, due, strict=True)])
        assert abs(differences.mean()) <= 4 * differences.std() / ROWS**0.5
    assert sum(each.accepted_tokens for each in counted) > 0


def test_each_model_is_replayed_with_the_tokens_seen_before_each_token():
    """Against a plain loop over the response's tokens."""
    generator = torch.Generator().manual_seed(4)
    logits_TV, draft_logits_TV = 2 * torch.randn(2, 6, 9, generator=generator)
    prompt, response, sampling = [3, 3, 8], [1, 5, 1, 0, 8, 2], Sampling(0.9, top_k=4, repetition_penalty=1.7)
    replayed = replay_response(logits_TV, draft_logits_TV, response, sampling=sampling, prompt_ids=prompt)
    for index, token in enumerate(response):
        seen_1V = torch.zeros(1, 9, dtype=torch.bool)
        seen_1V[0, [*prompt, *response[:index]]] = True
        p_1V, q_1V = (distribution(each[index, None], sampling, seen_1V) for each in (logits_TV, draft_logits_TV))
        due = 0.0 if q_1V[0, token] == 0 else min(1.0, float(q_1V[0, token] / p_1V[0, token]))
        assert replayed.rules["rejection"].accept[index] == pytest.approx(due, rel=1e-5)
        assert replayed.rules["rejection"].alpha[index] == pytest.approx(float(torch.minimum(p_1V, q_1V).sum()))


def test_a_drawn_token_that_rounding_puts_outside_a_filter_has_chances():
    """The target drew token 1 in a batch; read again, top-k leaves it out: p is a rounding error, not 0 / 0."""
    target_TV = torch.tensor([[5.0, 1.0, 0.0]] * 3)
    draft_TV = torch.tensor([[5.0, 1.0, 0.0], [0.0, 5.0, 1.0], [1.0, 0.0, 5.0]])
    replayed = replay_response(target_TV, draft_TV, [1, 1, 1], sampling=Sampling(1.0, top_k=1))
    assert replayed.rules["rejection"].accept.tolist() == [0, 1, 0]
    assert replayed.rules["exact_sampled_draft"].accept.tolist() == [0, 1, 0]
    assert torch.isneginf(torch.tensor(replayed.target_logp)).all()
