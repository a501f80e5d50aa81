"""Replay against enumeration, against the exact law of speculative sampling, and against a live sampler."""

from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from architectures.vocabulary_head import cut_head
from eval.decoding.sampling import (
    EXACT_GREEDY_DRAFT,
    EXACT_SAMPLED_DRAFT,
    LOSSLESS,
    Limits,
    Sampling,
    Speculation,
    distribution,
)
from eval.decoding.speculative import speculative_decode
from eval.replay import (
    NO_CATEGORY,
    NO_TASK,
    POSITION_EDGES,
    REJECTION,
    Replay,
    ReplayedResponse,
    binned_counts,
    count_trace,
    part_tokens,
    pool,
    position_bins,
    replay_counts,
    replay_response,
    response_logits,
    rule_name,
    rule_names,
    tau,
    token_labels,
    whole_vocabulary,
)
from tests.eval.decoding.laws import FIRST, TEXT


def rounds_of(accept_bits, num_speculative_tokens):
    """Plain reference: walk through a text whose accept decisions are known."""
    start, steps = 0, []
    while start < len(accept_bits):
        accepted, room = 0, min(num_speculative_tokens, len(accept_bits) - start - 1)
        while accepted < room and accept_bits[start + accepted]:
            accepted += 1
        steps.append((start, accepted))
        start += accepted + 1
    return steps


def enumerated_counts(accept, num_speculative_tokens):
    """Plain reference: every pattern of accepts, weighted by its chance."""
    weighted = []
    for bits in product((0, 1), repeat=len(accept)):
        chance = np.prod(np.where(bits, accept, 1 - np.array(accept)))
        counts = count_trace(
            rounds_of(bits, num_speculative_tokens),
            num_tokens=len(accept),
            num_speculative_tokens=num_speculative_tokens,
        )
        rows = (counts.possible, counts.reached, counts.accepted)
        weighted.append(chance * np.array([[counts.steps] * num_speculative_tokens, *rows]))
    return sum(weighted)


@pytest.mark.parametrize("num_speculative_tokens", [*range(1, 9), 16])
def test_expected_counts_equal_the_sum_over_all_accept_patterns(num_speculative_tokens):
    accept = [0.9, 0.2, 1.0, 0.55, 0.0, 0.7, 0.35]
    counts = replay_counts(np.array(accept), num_speculative_tokens=num_speculative_tokens)
    expected = enumerated_counts(accept, num_speculative_tokens)
    assert counts.steps == pytest.approx(expected[0, 0], abs=1e-12)
    assert counts.possible == pytest.approx(expected[1], abs=1e-12)
    assert counts.reached == pytest.approx(expected[2], abs=1e-12)
    assert counts.accepted == pytest.approx(expected[3], abs=1e-12)


@pytest.mark.parametrize("num_speculative_tokens", range(1, 17))
def test_at_temperature_zero_counts_are_those_of_the_one_possible_trace(num_speculative_tokens):
    bits = np.random.default_rng(num_speculative_tokens).random(57) < 0.6
    counts = replay_counts(bits.astype(float), num_speculative_tokens=num_speculative_tokens)
    assert counts == count_trace(
        rounds_of(bits, num_speculative_tokens), num_tokens=57, num_speculative_tokens=num_speculative_tokens
    )


def markov_pair(num_tokens, seed):
    rng = np.random.default_rng(seed)
    target, draft = (rng.dirichlet(np.full(num_tokens, 0.7), size=num_tokens) for _ in range(2))
    return target, 0.7 * target + 0.3 * draft


def exact_steps(target, draft, length, num_speculative_tokens):
    """Expected steps by the law of the algorithm itself, over states (last token, tokens left)."""
    both, rest = np.minimum(target, draft), np.maximum(target - draft, 0)
    steps = np.zeros((length + 1, len(target)))
    for left in range(1, length + 1):
        room = min(num_speculative_tokens, left - 1)
        value = target @ steps[left - room - 1]  # all proposals kept: one more token from the target
        for k in reversed(range(room)):
            value = both @ value + rest @ steps[left - k - 1]
        steps[left] = 1 + value
    return steps[length][0]


def markov_accept(target, draft, text):
    """r_t along a text that follows token 0."""
    before, after = (0, *text[:-1]), text
    return np.minimum(1, draft[before, after] / target[before, after])


@pytest.mark.parametrize("num_speculative_tokens", [1, 2, 3, 6])
def test_replay_averaged_over_all_texts_is_the_exact_law(num_speculative_tokens):
    target, draft = markov_pair(3, seed=4)
    mean = 0.0
    for text in product(range(3), repeat=5):
        chance = np.prod(target[(0, *text[:-1]), text])
        mean += (
            chance
            * replay_counts(markov_accept(target, draft, text), num_speculative_tokens=num_speculative_tokens).steps
        )
    assert mean == pytest.approx(exact_steps(target, draft, 5, num_speculative_tokens), abs=1e-12)


@pytest.mark.parametrize(
    ("alpha", "num_speculative_tokens", "expected_tau", "expected_utilisation"),
    [(0.8, 4, 3.3616, 0.5904), (0.6, 5, 2.3834, 0.2767), (0.9, 8, 6.1258, 0.6407), (0.5, 3, 1.875, 0.2917)],
)
def test_golden_steps_of_independent_accepts(alpha, num_speculative_tokens, expected_tau, expected_utilisation):
    """reference/evaluation.md 1.4; the end of 5,000 tokens moves them by a few steps' part of 1e-3."""
    counts = replay_counts(np.full(5000, alpha), num_speculative_tokens=num_speculative_tokens)
    assert tau(counts) == pytest.approx(expected_tau, rel=2e-3)
    assert counts.accepted_tokens / counts.proposed_tokens == pytest.approx(expected_utilisation, rel=2e-3)
    assert counts.accepted_tokens / sum(counts.reached) == pytest.approx(alpha, rel=1e-12)


@pytest.mark.parametrize("draft_is_sampled", [True, False])
def test_exact_match_replayed_averaged_over_all_texts_is_the_exact_law(draft_is_sampled):
    """A proposal d is kept if the target samples d as well; the target's sample is emitted either way."""
    target, draft = markov_pair(3, seed=4)
    proposal = draft if draft_is_sampled else np.eye(3)[draft.argmax(1)]
    mean = 0.0
    for text in product(range(3), repeat=5):
        before = (0, *text[:-1])
        logits = [torch.tensor(model[list(before)]).log() for model in (target, draft)]
        rule = EXACT_SAMPLED_DRAFT if draft_is_sampled else EXACT_GREEDY_DRAFT
        accept = replay_response(*logits, text, sampling=Sampling(1.0)).rules[rule].accept
        mean += np.prod(target[before, text]) * replay_counts(accept, num_speculative_tokens=3).steps
    assert mean == pytest.approx(exact_match_steps(target, proposal, length=5, num_speculative_tokens=3), abs=1e-12)


def exact_match_steps(target, proposal, *, length, num_speculative_tokens):
    """Expected steps after token 0, by recursion over single tokens."""

    def rounds_left(last, left, room):
        if left == 0:
            return 0.0
        if room == 0 or left == 1:  # the step's last token is the target's own
            return sum(target[last, x] * (left > 1) * (1 + new_round(x, left - 1)) for x in range(3))
        return sum(
            target[last, x]
            * (
                proposal[last, x] * rounds_left(x, left - 1, room - 1)
                + (1 - proposal[last, x]) * (1 + new_round(x, left - 1))
            )
            for x in range(3)
        )

    def new_round(last, left):
        return rounds_left(last, left, num_speculative_tokens)

    return 1 + new_round(0, length)


@pytest.mark.parametrize("num_speculative_tokens", [1, 3, 16])
def test_steps_parted_by_where_they_start_are_the_steps(num_speculative_tokens):
    rng = np.random.default_rng(5)
    accept, bins = rng.random(60), rng.integers(2, 6, 60)
    parted = binned_counts(accept, bins, num_speculative_tokens=num_speculative_tokens)
    whole = replay_counts(accept, num_speculative_tokens=num_speculative_tokens)
    assert list(parted) == [2, 3, 4, 5]
    together = pool(list(parted.values()))
    assert together.steps == pytest.approx(whole.steps)
    for name in ("possible", "reached", "accepted"):
        assert getattr(together, name) == pytest.approx(getattr(whole, name))
    first = binned_counts(accept, (np.arange(60) > 0).astype(int), num_speculative_tokens=num_speculative_tokens)[0]
    assert first.steps == 1
    assert first.accepted == pytest.approx(np.cumprod(accept[:num_speculative_tokens]))


# What each rule makes of two models' logits, against float64; and the bins that hold every token once


def greedy_response(model, prompt, num_tokens):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(prompt) :].tolist()


def test_row_t_of_the_logits_is_what_the_model_expects_at_response_token_t(target, prompts):
    for prompt in prompts:
        response = greedy_response(target, prompt, 12)
        assert response_logits(target, prompt, response).argmax(-1).tolist() == response


@pytest.fixture
def pair_logits():
    generator = torch.Generator().manual_seed(2)
    target = 3 * torch.randn(30, 50, generator=generator)
    return target, target + torch.randn(30, 50, generator=generator)


def plain_distributions(pair_logits, temperature):
    """p and q in float64."""
    scaled = [np.exp(logits.double().numpy() / temperature) for logits in pair_logits]
    return [weights / weights.sum(1, keepdims=True) for weights in scaled]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_accept_and_alpha_equal_a_plain_float64_reference(pair_logits, temperature):
    rows, response = np.arange(30), np.random.default_rng(0).integers(0, 50, 30)
    p, q = plain_distributions(pair_logits, temperature)
    response[::3] = q.argmax(1)[::3]
    replay = replay_response(*pair_logits, response.tolist(), sampling=Sampling(temperature))
    expected = {
        REJECTION: (np.minimum(1, q[rows, response] / p[rows, response]), np.minimum(p, q).sum(1)),
        EXACT_GREEDY_DRAFT: (q.argmax(1) == response, p[rows, q.argmax(1)]),
        EXACT_SAMPLED_DRAFT: (q[rows, response], (p * q).sum(1)),
    }
    assert replay.rules.keys() == expected.keys()
    for rule, (accept, alpha) in expected.items():
        assert replay.rules[rule].accept == pytest.approx(accept.astype(float), rel=1e-4)
        assert replay.rules[rule].alpha == pytest.approx(alpha, rel=1e-4)
    assert replay.target_logp == pytest.approx(np.log(p[rows, response]), rel=1e-4, abs=1e-6)
    assert replay.draft_logp == pytest.approx(np.log(q[rows, response]), rel=1e-4, abs=1e-6)
    assert replay.match.tolist() == (p.argmax(1) == q.argmax(1)).tolist()


@pytest.mark.parametrize("rule", rule_names(1.0))
def test_the_mean_accept_chance_of_the_targets_own_tokens_is_alpha(pair_logits, rule):
    p, _ = plain_distributions(pair_logits, 1.0)
    along_y = [replay_response(*pair_logits, [y] * 30, sampling=Sampling(1.0)).rules[rule] for y in range(50)]
    mean = sum(p[:, y] * accepts.accept for y, accepts in enumerate(along_y))
    assert along_y[0].alpha == pytest.approx(mean, rel=1e-4)


def test_golden_alphas_of_the_three_rules():
    """reference/evaluation.md 1.2: one draft, three scores, and all of them right."""
    target, draft = (torch.tensor([row]).log() for row in ((0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05)))
    rules = replay_response(target, draft, [0], sampling=Sampling(1.0)).rules
    assert {rule: accepts.alpha.item() for rule, accepts in rules.items()} == pytest.approx(
        {"rejection": 0.90, "exact_greedy_draft": 0.60, "exact_sampled_draft": 0.47}
    )


def test_alpha_is_not_min_p_q_at_the_drafted_token():
    """The mean of min(p, q)(x) over drafted x is .465 where the draft is right with chance .90."""
    target, draft = (torch.tensor([row]).log() for row in ((0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05)))
    alpha = replay_response(target, draft, [0], sampling=Sampling(1.0)).rules[REJECTION].alpha.item()
    p, q = target.exp(), draft.exp()
    assert (q * torch.minimum(p, q)).sum().item() == pytest.approx(0.465)
    assert alpha == pytest.approx((q * (p / q).clamp(max=1)).sum().item()) == pytest.approx(0.90)


def test_the_targets_entropy_is_that_of_its_own_distribution_at_any_temperature(pair_logits):
    p, _ = plain_distributions(pair_logits, 1.0)
    for temperature in (0.0, 0.3, 1.0):
        replay = replay_response(*pair_logits, [0] * 30, sampling=Sampling(temperature))
        assert replay.target_entropy == pytest.approx(-(p * np.log(p)).sum(1), rel=1e-4)
    certain = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert replay_response(certain, certain, [0], sampling=Sampling(1.0)).target_entropy.tolist() == [0.0]


def test_at_temperature_zero_a_token_is_accepted_iff_it_is_the_drafts_argmax(pair_logits):
    target, draft = pair_logits
    response = target.argmax(-1)
    replay = replay_response(target, draft, response.tolist(), sampling=Sampling(0))
    matches = (draft.argmax(-1) == response).double().numpy()
    assert 0 < matches.mean() < 1
    assert list(replay.rules) == [EXACT_GREEDY_DRAFT]
    for values in (*vars(replay.rules[EXACT_GREEDY_DRAFT]).values(), replay.match):
        assert values.tolist() == matches.tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_equal_to_the_target_is_always_accepted(pair_logits, temperature):
    target, _ = pair_logits
    replay = replay_response(target, target, target.argmax(-1).tolist(), sampling=Sampling(temperature))
    accepts = replay.rules[rule_name(temperature)]
    assert accepts.accept.tolist() == [1.0] * 30
    assert accepts.alpha == pytest.approx(1.0, abs=1e-6)
    assert replay.num_tokens == 30


def replayed(num_tokens, *, entropy=0.0, category=None):
    ones = np.ones(num_tokens)
    return ReplayedResponse(0, category, Replay({}, ones, ones, ones, np.full(num_tokens, entropy), ones))


def bin_labels(responses, by):
    """Of each response the label of every token."""
    labels, bins = part_tokens(responses)[by]
    return [[labels[number] for number in bin_T] for bin_T in bins]


@pytest.mark.parametrize(
    ("position", "label"),
    [(0, "0-15"), (15, "0-15"), (16, "16-31"), (4095, "2048-4095"), (4096, "4096 and more"), (4999, "4096 and more")],
)
def test_positions_and_their_labels(position, label):
    assert token_labels(POSITION_EDGES)[position_bins(5000)[position]] == label
    assert bin_labels([replayed(5000)], "output_position")[0][position] == label


def test_the_context_length_counts_prompt_and_response():
    [labels] = bin_labels([replace(replayed(600), prompt_len=500)], "context_length")
    assert labels == ["0-511"] * 12 + ["512-1023"] * 512 + ["1024-2047"] * 76
    [labels] = bin_labels([replace(replayed(1), prompt_len=131_071)], "context_length")
    assert labels == ["65536-131071"]


def test_no_category_overwrites_the_one_before():
    """Of languages that take turns every response stays with its own."""
    languages = ("fr", "de", "fr", "en", "de", "fr")
    responses = [replayed(1, category=language) for language in languages]
    assert bin_labels(responses, "category") == [[language] for language in languages]


def test_categories_stand_in_their_order_and_the_rest_last():
    responses = [replayed(2), replayed(3, category="talk"), replayed(1, category="code")]
    assert part_tokens(responses)["category"][0] == ["code", "talk", NO_CATEGORY]
    assert bin_labels(responses, "category") == [[NO_CATEGORY] * 2, ["talk"] * 3, ["code"]]


def test_tasks_part_responses_as_categories_do():
    responses = [replace(replayed(2, category="math"), task=task) for task in ("mt_bench/1", None, "gsm8k/1")]
    assert part_tokens(responses)["task"][0] == ["gsm8k/1", "mt_bench/1", NO_TASK]
    assert [first for first, _ in bin_labels(responses, "task")] == ["mt_bench/1", NO_TASK, "gsm8k/1"]
    assert bin_labels(responses, "category")[0] == ["math"] * 2


# With every sampling setting a server has, replay predicts what the decoding loop counts, text by text

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
