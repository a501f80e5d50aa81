"""Where an engine's texts with and without a draft part: a near-tie that rounding explains, or a mistake.

One token and several at once are computed by other kernels, so in fewer than 32 bits honest engines write either of two
tokens that nearly tie. The target reads the common text once, in float32, and tells how far the worse of the two lies
below its best.

Shape suffixes used in this file:
    V = vocabulary
"""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from eval.acceptance.replay import answer_logits
from eval.certificate.laws import first_difference
from eval.engine_runs.record import EngineRun, TextRun
from eval.near_ties import TIE_STEPS

# llama.cpp rounds what it multiplies with quantised weights to 8 bits, of which one is the sign
EIGHT_BITS = 2.0**-7
ROUNDING = {"float32": 0.0, "bfloat16": torch.finfo(torch.bfloat16).eps, "float16": torch.finfo(torch.float16).eps}


@dataclass(frozen=True)
class Parting:
    """One text that a draft changed.

    Attributes:
        number: Of the prompt, from 1.
        index: Of the token, from 0.
        short: Logits that the worse token lies below the target's best there.
        allowed: That rounding explains.
    """

    number: int
    index: int
    short: float
    allowed: float

    @property
    def is_tie(self) -> bool:
        return self.short <= self.allowed


def find_partings(target: PreTrainedModel, run: EngineRun, stop_id: int) -> list[Parting]:
    """Every text that differs, judged at the first token that does.

    Args:
        target: In float32.
        run: Of the engine.
        stop_id: What stands for the end of a text, which engines leave out.
    """
    rounding = rounding_of(run)
    texts = enumerate(run.texts, start=1)
    return [judge(target, number, text, rounding, stop_id) for number, text in texts if differs(text)]


def differs(text: TextRun) -> bool:
    """Whether the draft changed it."""
    return text.plain_ids != text.drafted_ids


def rounding_of(run: EngineRun) -> float:
    """One rounding of the numbers that the engine computes with, as a share of them; F16 files are float16."""
    if "F16" in run.dtype.upper() and "BF16" not in run.dtype.upper():
        return ROUNDING["float16"]
    return ROUNDING.get(run.dtype, EIGHT_BITS)


def judge(target: PreTrainedModel, number: int, text: TextRun, rounding: float, stop_id: int) -> Parting:
    index = first_difference(text.plain_ids, text.drafted_ids)
    assert index is not None
    both = [ids[index] if index < len(ids) else stop_id for ids in (text.plain_ids, text.drafted_ids)]
    logits_V = answer_logits(target, text.prompt_ids, [*text.plain_ids[:index], both[0]])[-1]
    short = float(logits_V.max() - logits_V[both].min())
    return Parting(number, index, short, TIE_STEPS * rounding * float(logits_V.abs().max()))
