"""The published rules for the weights of a mixture: laws, and numbers by hand."""

import math

import pytest
import torch

from distill.text_data import RULES, code_weights, fixed_weights, paper_weights

REFERENCES = [2.0, 1.0, 3.0]
WEIGHTS = [0.5, 0.3, 0.2]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("losses", [[2.5, 0.9, 3.0], [0.0, 0.0, 0.0], [12.0, 11.0, 10.0], [900.0, 1.0, 3.0]])
def test_weights_stay_a_distribution(rule, losses):
    weights = WEIGHTS
    for _ in range(50):
        weights = RULES[rule](weights, losses, REFERENCES)
        assert sum(weights) == pytest.approx(1, abs=1e-12)
        assert all(0 <= weight <= 1 for weight in weights)


def test_at_the_references_or_better_the_paper_changes_nothing():
    assert paper_weights(WEIGHTS, REFERENCES, REFERENCES) == WEIGHTS
    assert paper_weights(WEIGHTS, [1.9, 0.1, 0.0], REFERENCES) == WEIGHTS


@pytest.mark.parametrize("rule", ["paper", "code"])
def test_a_domain_above_its_reference_gains_and_the_others_keep_their_proportion(rule):
    new = RULES[rule](WEIGHTS, [2.0, 1.4, 3.0], REFERENCES)
    assert new[1] > WEIGHTS[1]
    assert new[0] < WEIGHTS[0]
    assert new[0] / new[2] == pytest.approx(WEIGHTS[0] / WEIGHTS[2], rel=1e-3)


def test_the_paper_by_hand():
    # 0.5*e^0.1, 0.3 (better than its reference), 0.2*e^0.2, over their sum
    parts = [0.5 * math.exp(0.1), 0.3, 0.2 * math.exp(0.2)]
    assert paper_weights(WEIGHTS, [2.1, 0.4, 3.2], REFERENCES) == pytest.approx(
        [p / sum(parts) for p in parts], abs=1e-15
    )
    assert paper_weights([0.5, 0.5], [math.log(3), 0.0], [0.0, 0.0]) == pytest.approx([0.75, 0.25], abs=1e-15)


def test_the_code_by_hand():
    # ln 3 above: 0.75 and 0.25; then 0.9999 of that and 0.0001 of one half
    expected = [0.9999 * 0.75 + 0.00005, 0.9999 * 0.25 + 0.00005]
    assert code_weights([0.5, 0.5], [math.log(3), 0.0], [0.0, 0.0]) == pytest.approx(expected, abs=1e-15)
    assert code_weights([0.9, 0.1], [1.0, 1.0], [1.0, 1.0]) == pytest.approx([0.89996, 0.10004], abs=1e-12)


def test_the_code_as_released_in_float32():
    """update_proportion of LLM-Shearing's DynamicLoadingCallback, its lines in its order."""
    losses = [2.1, 0.4, 3.2]
    diff = torch.tensor(losses) - torch.tensor(REFERENCES)
    released = torch.nn.functional.softmax(torch.log(torch.tensor(WEIGHTS)) + 1.0 * diff, dim=0)
    released = ((1 - 1e-4) * released + 1e-4 / 3).numpy().astype("float64")
    released = (released / released.sum()).tolist()
    assert code_weights(WEIGHTS, losses, REFERENCES) == pytest.approx(released, abs=1e-6)


def test_the_code_never_loses_a_domain_and_the_paper_may():
    paper = code = [0.5, 0.5]
    for _ in range(300):
        paper = paper_weights(paper, [9.0, 0.0], [0.0, 0.0])
        code = code_weights(code, [9.0, 0.0], [0.0, 0.0])
    assert paper[1] == 0.0
    assert code[1] == pytest.approx(5e-5, rel=1e-3)


def test_fixed_weights_are_fixed():
    assert fixed_weights(WEIGHTS, [9.0, 9.0, 0.0], REFERENCES) == WEIGHTS
