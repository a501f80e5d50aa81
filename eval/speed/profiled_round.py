"""A round of speculative decoding under the profiler: its parts named, the reading of prompts and warm-up outside."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import record_function
from transformers import PreTrainedModel

from eval.decoding.batch import Batch, Emitted
from eval.decoding.batch_rounds import Rounds
from eval.decoding.rules import Draws, Proposal, Verdict
from eval.decoding.texts import Limits, Text
from eval.decoding.turn import Turn
from eval.decoding.wanted import Streams, Wanted
from eval.profiling.option import PROFILED_ROUNDS
from eval.profiling.recording import Profile, Recording
from eval.speed.ways import Setup
from eval.steps.sequencer import takes_rows

DRAFTING, VERIFYING, ACCEPTING = PARTS = ("draft", "verify", "accept")
ROUNDS_UNDER_PROFILER = 2  # one for it to warm up, and the one that is recorded


class NamedRounds(Rounds):
    """Rounds whose parts have names in a trace.

    A name costs microseconds also where nothing is recorded, so decoding itself has none.
    """

    def propose(self, counts: Sequence[int]) -> tuple[Proposal, Sequence[int]]:
        """All steps of the draft."""
        with record_function(DRAFTING):
            return super().propose(counts)

    def verify(self, proposal: Proposal, counts: Sequence[int]) -> Tensor:
        """The step of the target."""
        with record_function(VERIFYING):
            return super().verify(proposal, counts)

    def judge(self, logits_BJV: Tensor, turn: Turn, draws: Draws | None) -> Verdict:
        with record_function(ACCEPTING):
            return super().judge(logits_BJV, turn, draws)

    def emit(
        self,
        text: Text,
        token_ids: list[int],
        proposed_ids: list[int],
        seconds: tuple[float, float],
        *,
        looked_up: bool,
    ) -> Emitted:
        """What is done with its verdict, text by text."""
        with record_function(ACCEPTING):
            return super().emit(text, token_ids, proposed_ids, seconds, looked_up=looked_up)


@torch.inference_mode()
def profile_round(
    setup: Setup,
    draft: PreTrainedModel,
    lookahead: int,
    prompts: Sequence[Sequence[int]],
    *,
    row_seeds: Sequence[int],
    folder: Path,
) -> Profile:
    """Record a round in the middle of texts, and write it as `round` into a folder.

    Texts do not end at a stop token here, so every row is there in every round. Prompts that cannot be decoded together
    are not: the first one is.

    Args:
        setup: Of the models, as they are measured; its limits allow PROFILED_ROUNDS whole rounds.
        draft: Proposes.
        lookahead: Tokens a round.
        prompts: One batch.
        row_seeds: Of each.
        folder: That takes the files.
    """
    models = [setup.target, draft]
    together = all(takes_rows(model) for model in models)
    wanted = Wanted(
        prompts if together else prompts[:1],
        Limits(setup.limits.max_new_tokens),  # what steps were compiled for
        setup.sampling,
        replace(setup.speculation, lookahead=lookahead),
    )
    indices = range(len(wanted.prompts))
    streams = Streams.of(wanted, setup.seeds, row_seeds[: len(indices)], setup.target.device)
    rounds = NamedRounds(Batch(models, wanted, streams, indices, setup.opener))
    for _ in range(PROFILED_ROUNDS - ROUNDS_UNDER_PROFILER):
        list(rounds.step())
    recording = Recording(setup.target.device)
    recording.start()
    try:
        for _ in range(ROUNDS_UNDER_PROFILER):
            list(rounds.step())
            recording.step()
    finally:
        recording.stop()
    return recording.written(folder, "round", PARTS)
