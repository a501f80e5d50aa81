"""A tensor made of Python's numbers on a GPU waits for all it was asked before: none is made behind the target's step.

Kernels of the rule are launched while that step still runs; what `lift_fresh` is called for is such a tensor.
"""

from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from eval.decoding.kv_cache import RowSequencer
from eval.decoding.sampling import REJECTION, RULES, Limits, Sampling, Speculation
from eval.decoding.speculative import Batch, SpeculativeSteps, plain_decode, speculative_decode
from tests.eval.decoding.test_laws import ALWAYS

SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(0.8, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.1)]


class Made(TorchDispatchMode):
    """Counts tensors made of numbers between two places of a step."""

    def __init__(self):
        super().__init__()
        self.is_on, self.spans, self.count = False, 0, 0

    @override
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.lift_fresh.default:
            self.count += (
                self.is_on and args[0].dim() > 0
            )  # a single number, as top-p assigns it, is a kernel's argument
        return func(*args, **(kwargs or {}))

    def begin(self, function):
        def called(*args, **settings):
            result = function(*args, **settings)
            self.is_on, self.spans = True, self.spans + 1
            return result

        return called

    def end(self, function):
        def called(*args, **settings):
            self.is_on = False
            return function(*args, **settings)

        return called


@pytest.fixture
def made():
    return Made()


@pytest.mark.parametrize(
    ("sampling", "policy", "rule"),
    [(SAMPLINGS[0], None, REJECTION), (SAMPLINGS[1], None, REJECTION), *product(SAMPLINGS[2:], (None, ALWAYS), RULES)],
)
def test_a_step_makes_none_behind_its_verification(
    target, noisy_draft, prompts, monkeypatch, made, sampling, policy, rule
):
    monkeypatch.setattr(SpeculativeSteps, "verify", made.begin(SpeculativeSteps.verify))
    monkeypatch.setattr(SpeculativeSteps, "emit", made.end(SpeculativeSteps.emit))
    speculation = Speculation(2, rule=rule)
    with made:
        speculative_decode(
            target,
            noisy_draft,
            prompts[:3],
            limits=Limits(8),
            sampling=sampling,
            speculation=speculation,
            row_seeds=[1, 2, 3],
            lookup_first=policy,
        )
    assert made.spans >= 3
    assert made.count == 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_plain_step_makes_none_behind_the_model(target, prompts, monkeypatch, made, sampling):
    monkeypatch.setattr(RowSequencer, "feed", made.begin(RowSequencer.feed))
    for name in ("seen_at_first", "next_tokens", "append"):
        monkeypatch.setattr(Batch, name, made.end(getattr(Batch, name)))
    with made:
        plain_decode(target, prompts[:3], limits=Limits(8), sampling=sampling, row_seeds=[1, 2, 3])
    assert made.spans == 9
    assert made.count == 0
