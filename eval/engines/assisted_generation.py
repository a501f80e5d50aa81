"""transformers' own assisted generation, counted by wrapping the class that proposes candidates."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, __version__
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from eval.engines.certificate import Counted, EngineRun, TextRun, pooled


@dataclass
class Tally:
    """Rounds as they go by: how many tokens each proposed, and how many were kept."""

    proposed: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def counted(self, lookahead: int) -> Counted:
        return Counted(
            rounds=len(self.kept),
            proposed=sum(self.proposed),
            accepted=sum(self.kept),
            by_position=tuple(sum(kept > position for kept in self.kept) for position in range(lookahead)),
        )


def run_transformers(
    models: tuple[PreTrainedModel, PreTrainedModel],
    prompts: Sequence[Sequence[int]],
    *,
    lookahead: int,
    max_new_tokens: int,
    seed: int,
) -> EngineRun:
    """Decode every prompt greedily without and with the draft, in turns of a drawn order; then the target by itself."""
    target, draft = models
    order = random.Random(seed)  # noqa: S311  # no secret
    texts = []
    for prompt in prompts:
        decoded: dict[bool, tuple[list[int], float, Counted]] = {}
        for drafted in order.sample([False, True], 2):
            decoded[drafted] = decode(target, draft if drafted else None, prompt, lookahead, max_new_tokens)
        texts.append(
            TextRun(
                prompt_ids=tuple(prompt),
                plain_ids=tuple(decoded[False][0]),
                drafted_ids=tuple(decoded[True][0]),
                plain_s=decoded[False][1],
                drafted_s=decoded[True][1],
                counted=decoded[True][2],
            )
        )
    own = [decode(target, target, prompt, lookahead, max_new_tokens)[2] for prompt in prompts]
    return EngineRun(
        engine="transformers",
        version=__version__,
        command=f"generate(assistant_model=DRAFT, num_assistant_tokens={lookahead}, do_sample=False)",
        dtype=str(target.dtype).removeprefix("torch."),
        lookahead=lookahead,
        max_new_tokens=max_new_tokens,
        own=pooled(own),
        texts=tuple(texts),
    )


def decode(
    target: PreTrainedModel, draft: PreTrainedModel | None, prompt: Sequence[int], lookahead: int, max_new_tokens: int
) -> tuple[list[int], float, Counted]:
    """A text, its seconds and the counters; those are empty without a draft."""
    ids_BT = torch.tensor([list(prompt)], device=target.device)
    model: Any = target
    settings: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids_BT),
        "do_sample": False,
        "max_new_tokens": max_new_tokens,
    }
    if draft is not None:
        proposing: Any = draft.generation_config
        settings["assistant_model"] = draft
        proposing.num_assistant_tokens, proposing.num_assistant_tokens_schedule = lookahead, "constant"
        proposing.assistant_confidence_threshold = 0.0
    with tallied() as tally:
        start_s = time.perf_counter()
        text_BT: Tensor = model.generate(ids_BT, **settings)
        elapsed_s = time.perf_counter() - start_s
    return text_BT[0, len(prompt) :].tolist(), elapsed_s, tally.counted(lookahead)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Count what transformers' candidate generator proposes and is told of, for as long as the block lasts."""
    tally = Tally()
    kind: Any = AssistedCandidateGenerator
    propose, update = kind.get_candidates, kind.update_candidate_strategy

    def get_candidates(self: Any, input_ids: Tensor, **others: Any) -> Any:
        candidates = propose(self, input_ids, **others)
        tally.proposed.append(candidates[0].shape[1] - input_ids.shape[1])
        return candidates

    def update_candidate_strategy(self: Any, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        tally.kept.append(int(num_matches))
        update(self, input_ids, scores, num_matches)

    kind.get_candidates, kind.update_candidate_strategy = get_candidates, update_candidate_strategy
    try:
        yield tally
    finally:
        kind.get_candidates, kind.update_candidate_strategy = propose, update
