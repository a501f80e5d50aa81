"""The acceptance rules by enumeration: every draw of a grid on which one step is exact, every text of four tokens.

The tables are multiples of 1/4: draws at the midpoints of a grid fall on each token exactly as often as it is likely.
"""

import itertools

import pytest
import torch

from eval.decoding.sampling import LOSSLESS, RULES, Draws, Proposal, invert_cumulative, residual

LENGTH, K, VOCAB = 4, 3, 4
TARGET_VV = torch.tensor([[2, 1, 1, 0], [0, 1, 1, 2], [1, 1, 1, 1], [4, 0, 0, 0]]) / 4  # next token given the last
DRAFT_VV = torch.tensor([[1, 1, 2, 0], [1, 1, 1, 1], [2, 2, 0, 0], [2, 0, 1, 1]]) / 4
FIRST = 0  # the last token of the prompt
DRAFTS = {  # what a draft says given the last token, and the ids of its columns; p / q in halves, as the grids ask
    "all ids": (DRAFT_VV, None),
    "three ids": (torch.tensor([[2, 1, 1], [1, 1, 2], [0, 0, 0], [2, 1, 1]]) / 4, torch.tensor([0, 1, 3])),
    "two ids": (torch.tensor([[2, 2]] * 4) / 4, torch.tensor([1, 2])),
    "one id": (torch.ones(4, 1), torch.tensor([0])),
}


def grid(points, columns):
    """Every combination of midpoints, as [points ** columns, columns]."""
    values = (torch.arange(points) + 0.5) / points
    return torch.cartesian_prod(*[values] * columns).view(-1, columns)


def proposed_everywhere(rule, draft):
    """Every proposal of a draft, each as often as it is likely; with no probabilities where it takes its argmax."""
    draft_VS, ids_S = draft
    said_S = torch.arange(VOCAB) if ids_S is None else ids_S
    if rule == "exact_greedy_draft":
        tokens = [FIRST]
        for _ in range(K):
            tokens.append(said_S[draft_VS[tokens[-1]].argmax()].item())
        return torch.tensor([tokens[1:]]), None
    draws_NK = grid(4, K)
    tokens, last_N = [], torch.full((len(draws_NK),), FIRST)
    for step in range(K):
        last_N = said_S[invert_cumulative(draft_VS[last_N], draws_NK[:, step])]
        tokens.append(last_N)
    tokens_NK = torch.stack(tokens, dim=1)
    before_NK = torch.cat([torch.full((len(tokens_NK), 1), FIRST), tokens_NK[:, :-1]], dim=1)
    return tokens_NK, draft_VS[before_NK]


def every_round(rule, draft):
    """All steps of a rule: proposed tokens, the verdict on each, all of one weight."""
    tokens_NK, probs_NKS = proposed_everywhere(rule, draft)
    accepts, targets = grid(2, K), grid(4, K + 1)
    if rule == "rejection":  # one target draw is used: the same at every place
        targets = grid(4, 1).expand(-1, K + 1)
    else:
        accepts = accepts[:1]
    picks = torch.cartesian_prod(*[torch.arange(len(each)) for each in (tokens_NK, accepts, targets)])
    tokens_NK = tokens_NK[picks[:, 0]]
    probs_NKS = None if probs_NKS is None else probs_NKS[picks[:, 0]]
    before_NJ = torch.cat([torch.full((len(picks), 1), FIRST), tokens_NK], dim=1)
    proposal = Proposal(tokens_NK, probs_NKS, torch.full((len(picks),), K), draft[1])
    verdict = RULES[rule](TARGET_VV[before_NJ], proposal, Draws(accepts[picks[:, 1]], targets[picks[:, 2]]))
    return tokens_NK, verdict


def chances_of_texts(rule, draft):
    """The exact chance of every text of LENGTH tokens: what one step emits, then the target alone."""
    tokens_NK, verdict = every_round(rule, draft)
    chances = torch.zeros([VOCAB] * LENGTH, dtype=torch.float64)
    weight = 1 / len(tokens_NK)
    outcomes = zip(tokens_NK.tolist(), verdict.accepted_B.tolist(), verdict.next_B.tolist(), strict=True)
    counted: dict[tuple[int, ...], int] = {}
    for tokens, accepted, following in outcomes:
        emitted = (*tokens[:accepted], following)
        counted[emitted] = counted.get(emitted, 0) + 1
    for emitted, count in counted.items():
        for rest in itertools.product(range(VOCAB), repeat=LENGTH - len(emitted)):
            chances[(*emitted, *rest)] += count * weight * chance_of_text((emitted[-1], *rest))
    return chances


def chance_of_text(tokens):
    """Of all tokens after the first, by the target."""
    return float(torch.tensor([TARGET_VV[a, b] for a, b in itertools.pairwise(tokens)]).double().prod())


def texts_of_the_target():
    chances = torch.zeros([VOCAB] * LENGTH, dtype=torch.float64)
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        chances[text] = chance_of_text((FIRST, *text))
    return chances


def law_texts_are_the_targets(rule, draft=DRAFTS["all ids"]):
    """Total variation between the texts of a rule and the target's own is zero, over all 256."""
    distance = (chances_of_texts(rule, draft) - texts_of_the_target()).abs().sum().item() / 2
    assert distance < 1e-9, f"{rule}: total variation {distance:.3f}"


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("rule", LOSSLESS)
def test_texts_are_distributed_as_the_targets(rule, draft):
    """Also where the target says tokens that the draft cannot."""
    law_texts_are_the_targets(rule, draft)


def test_nothing_left_of_the_residual_is_the_target_itself():
    """gpt-fast has no guard there: p = q within rounding gives 0 / 0."""
    p_BV = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    assert residual(p_BV, torch.tensor([[0.5, 0.5], [0.75, 0.25]])).tolist() == [[0.5, 0.5], [0.0, 0.5]]


def test_a_row_that_proposed_less_draws_its_bonus_from_the_target():
    """Behind its last proposed token there is no q, whatever fills the place."""
    target = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
    filling = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])  # at the second place q = p: a residual there would be nothing
    proposal = Proposal(torch.tensor([[1, 0]]), filling, torch.tensor([1]))
    verdict = RULES["rejection"](target, proposal, Draws(torch.tensor([[0.5, 0.5]]), torch.full((1, 3), 0.5)))
    assert (verdict.accepted_B.item(), verdict.next_B.item()) == (1, 0)
