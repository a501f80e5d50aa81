"""Batched decoding: the same as one row at a time, as transformers' generate, and as the probabilities say."""

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from eval.decoding import choose, continue_prompts
from eval.models import load_model
from eval.sampling import Sampling, uniform_draws

GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8, top_p=0.9)
PROMPTS = [[5], [9, 10, 11, 12, 13, 14, 15], [7, 8, 9], [200, 100], [6] * 20, [41, 42, 43, 44]]


@pytest.fixture(scope="module")
def model(tiny_target):
    return load_model(tiny_target, dtype="float32", device="cpu")


def decode(model, prompts, *, sampling=GREEDY, stop_ids=frozenset(), max_new_tokens=24, seeds=None):
    seeds = range(len(prompts)) if seeds is None else seeds
    pairs = list(
        continue_prompts(
            model, prompts, max_new_tokens=max_new_tokens, stop_ids=stop_ids, sampling=sampling, seeds=seeds
        )
    )
    assert len({place for place, _ in pairs}) == len(pairs) == len(prompts)
    return [ids for _, ids in sorted(pairs)]


def transformers_greedy(model, prompt, stop_ids, max_new_tokens=24):
    ids = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(stop_ids) or [10**6],
        pad_token_id=0,
    )
    return ids[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def stop_ids(model):
    """Tokens that end some of the rows early, at different steps, and some not at all."""
    answers = decode(model, PROMPTS)
    return frozenset([answers[0][3], answers[1][9], answers[4][14]])


def test_greedy_batch_equals_transformers_row_by_row(model, stop_ids):
    ours = decode(model, PROMPTS, stop_ids=stop_ids)
    assert ours == [transformers_greedy(model, prompt, stop_ids) for prompt in PROMPTS]
    assert len({len(answer) for answer in ours}) >= 3  # rows left the batch at different steps


def test_answers_end_at_the_first_stop_token_and_contain_it(model, stop_ids):
    for free, stopped in zip(decode(model, PROMPTS), decode(model, PROMPTS, stop_ids=stop_ids), strict=True):
        first_stop = next((place for place, token in enumerate(free) if token in stop_ids), len(free))
        assert stopped == free[: first_stop + 1]


def test_continuations_come_as_they_end(model, stop_ids):
    lengths = [
        len(ids)
        for _, ids in continue_prompts(
            model, PROMPTS, max_new_tokens=24, stop_ids=stop_ids, sampling=GREEDY, seeds=range(len(PROMPTS))
        )
    ]
    assert lengths == sorted(lengths)


def test_one_new_token(model):
    assert [len(ids) for ids in decode(model, PROMPTS, max_new_tokens=1)] == [1] * len(PROMPTS)


@pytest.mark.parametrize("sampling", [SAMPLED, Sampling(temperature=1.5)])
def test_a_sampled_row_depends_on_its_own_seed_alone(model, sampling):
    seeds, stop_ids = [11, 12, 13, 14, 15, 16], frozenset(range(0, 264, 12))
    together = decode(model, PROMPTS, sampling=sampling, stop_ids=stop_ids, seeds=seeds)
    alone = [
        decode(model, [prompt], sampling=sampling, stop_ids=stop_ids, seeds=[seed])[0]
        for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    assert together == alone
    assert len({len(answer) for answer in together}) >= 3
    assert decode(model, PROMPTS, sampling=sampling, stop_ids=stop_ids, seeds=[s + 1 for s in seeds]) != together


def test_a_sampled_row_is_the_plain_loop_over_its_draws(model):
    text = list(PROMPTS[2])
    with torch.inference_mode():
        for draw in uniform_draws([13], 24)[0]:
            text.append(choose(model(torch.tensor([text])).logits[:, -1], draw[None], SAMPLED).item())
    assert decode(model, PROMPTS[2:3], sampling=SAMPLED, seeds=[13]) == [text[len(PROMPTS[2]) :]]


def test_temperature_near_zero_is_greedy(model):
    assert decode(model, PROMPTS, sampling=Sampling(temperature=1e-4)) == decode(model, PROMPTS)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (2.0, 1.0), (1.0, 0.8), (0.7, 0.5)])
def test_sampled_frequencies_match_the_probabilities(temperature, top_p):
    torch.manual_seed(0)
    logits_V = torch.randn(12)
    num_draws = 20_000
    tokens = choose(logits_V.expand(num_draws, -1), torch.rand(num_draws), Sampling(temperature, top_p))
    probs_V = (logits_V.double() / temperature).softmax(dim=-1)
    order_V = probs_V.argsort(descending=True)
    num_kept = 1 + int((probs_V[order_V].cumsum(0) < top_p).sum())  # the fewest whose mass reaches top_p
    kept = order_V[:num_kept].tolist()
    counts = Counter(tokens.tolist())
    assert set(counts) == set(kept)
    expected = probs_V[kept] / probs_V[kept].sum() * num_draws
    assert chisquare([counts[token] for token in kept], expected.numpy()).pvalue > 0.01
    assert (num_kept < 12) == (top_p < 1)


def test_tokens_after_the_one_that_reaches_top_p_are_left_out():
    draws_B = torch.linspace(0, 1 - 2**-24, 40)
    logits_BV = torch.tensor([0.3, 0.2, 0.1, 0.0]).expand(40, -1)  # chances 0.29, 0.26, 0.24, 0.21
    assert set(choose(logits_BV, draws_B, Sampling(1.0, top_p=0.5)).tolist()) == {0, 1}


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_half_precision_logits_are_sampled_in_float32(top_p):
    logits_BV = torch.randn(500, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    draws_B = uniform_draws([0], 500)[0]
    sampling = Sampling(1.0, top_p)
    assert choose(logits_BV, draws_B, sampling).equal(choose(logits_BV.float(), draws_B, sampling))


def test_the_least_and_the_greatest_draw_fall_on_possible_tokens():
    logits_BV = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]] * 2)
    draws_B = torch.tensor([0.0, 1 - 2**-24])
    for top_p in (1.0, 0.999):
        assert set(choose(logits_BV, draws_B, Sampling(1.0, top_p)).tolist()) == {1, 2}


def test_draws_are_uniform_and_apart():
    draws_BD = uniform_draws(range(50), 40)
    assert draws_BD.min() >= 0
    assert draws_BD.max() < 1
    assert draws_BD.mean().item() == pytest.approx(0.5, abs=0.02)  # standard error 0.0065
    assert len(draws_BD[:, 0].unique()) == 50
