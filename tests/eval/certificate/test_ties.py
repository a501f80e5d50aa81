"""Near-ties: what rounding explains, by the target's own reading."""

from dataclasses import replace

import pytest
import torch

from eval.acceptance.replay import answer_logits
from eval.certificate.ties import find_partings, rounding_of
from eval.engine_runs.record import Counted, EngineRun, TextRun

PROMPT = (1, 70, 80, 90)
NOTHING = Counted(rounds=0, proposed=0, accepted=0)


def run_of(plain, drafted, dtype):
    text = TextRun(prompt_ids=PROMPT, plain_ids=plain, drafted_ids=drafted, plain_s=1.0, drafted_s=1.0, counted=NOTHING)
    return EngineRun(
        engine="llama.cpp",
        version="1",
        command="",
        dtype=dtype,
        lookahead=2,
        max_new_tokens=4,
        own=NOTHING,
        texts=(text,),
    )


def ranked(target):
    """Ids of the second token after PROMPT and the target's first, the likeliest first; and their logits."""
    first = int(answer_logits(target, PROMPT, [0])[-1].argmax())
    logits_V = answer_logits(target, PROMPT, [first, 0])[-1]
    return first, logits_V.argsort(descending=True).tolist(), logits_V


def test_the_two_best_tokens_tie_where_rounding_is_coarse_enough(target):
    first, order, logits_V = ranked(target)
    gap = float(logits_V[order[0]] - logits_V[order[1]])
    [parting] = find_partings(target, run_of((first, order[1]), (first, order[0]), "float16"), stop_id=2)
    assert (parting.number, parting.index) == (1, 1)
    assert parting.short == pytest.approx(gap)
    assert parting.allowed == pytest.approx(4 * 2**-10 * float(logits_V.abs().max()))
    assert parting.is_tie is (gap <= parting.allowed)
    assert replace(parting, short=0.0).is_tie


def test_an_unlikely_token_is_no_tie(target):
    first, order, _ = ranked(target)
    [parting] = find_partings(target, run_of((first, order[0]), (first, order[-1]), "t-Q4_0 with d-Q4_0"), stop_id=2)
    assert not parting.is_tie


def test_the_end_of_a_text_is_its_stop_token(target):
    first, order, logits_V = ranked(target)
    [parting] = find_partings(target, run_of((first, order[0]), (first,), "float16"), stop_id=2)
    assert parting.short == pytest.approx(float(logits_V.max() - logits_V[2]))


def test_equal_texts_do_not_part(target):
    assert find_partings(target, run_of((3, 4), (3, 4), "float16"), stop_id=2) == []


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [
        ("float32", 0.0),
        ("bfloat16", torch.finfo(torch.bfloat16).eps),
        ("t-F16 with d-F16", torch.finfo(torch.float16).eps),
        ("t-BF16 with d-BF16", 2.0**-7),
        ("t-Q4_0 with d-Q8_0", 2.0**-7),
    ],
)
def test_rounding_is_that_of_the_numbers_multiplied(dtype, rounding):
    assert rounding_of(run_of((1,), (1,), dtype)) == rounding
