"""Steps compiled by TorchInductor itself; what they share with captured ones is in test_fixed_steps.py."""

import shutil

import pytest

from architectures.errors import UserError
from eval.decoding import cuda_graphs as compiled
from eval.decoding.cuda_graphs import CompiledSteps
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits
from tests.eval.decoding.laws import law_greedy_text_is_the_targets

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


@needs_compiler
@pytest.mark.timeout(900)  # of which a C++ compiler takes nearly all
def test_compiled_steps_write_the_targets_texts(small_pair):
    """By TorchInductor itself: a batch that shrinks, lookaheads cut short at the end, caches used again."""
    opener = CompiledSteps()
    for prompts in ([[1], [2, 3, 1, 0]], [[3, 3], [0]]):
        law_greedy_text_is_the_targets(*small_pair, prompts, Limits(13, frozenset({0})), 3, opener)


def test_without_a_compiler_the_user_is_told(target, prompts, monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda _name: None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"needs a C\+\+ compiler .* Install g\+\+, name one in CXX"):
        plain_decode(target, prompts[:1], limits=Limits(2), opener=CompiledSteps())


@pytest.mark.parametrize(("needed", "capacity"), [(1, 256), (256, 256), (257, 512), (1032, 2048), (4104, 8192)])
def test_caches_have_few_lengths(needed, capacity):
    assert compiled.Compiler().capacity(needed) == capacity
