"""transformers' own assisted generation, counted by wrapping the class that proposes candidates."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator


class AssistedGeneration:
    """The target, with a draft or without: an Engine of eval.engines.workers.turns whose prompts are token ids.

    Args:
        models: By the names that the request has for target and draft.
        request: As of the workers.
        draft: Its name; None for the target alone.
    """

    def __init__(self, models: Mapping[str, PreTrainedModel], request: dict[str, Any], draft: str | None) -> None:
        self.request, self.target = request, models[request["target"]]
        self.draft = None if draft is None else models[draft]

    def decode(self, prompt_ids: list[int]) -> dict[str, Any]:
        """One greedy text, its seconds, and the proposed and accepted tokens of every verification step."""
        ids_BT = torch.tensor([prompt_ids], device=self.target.device)
        target: Any = self.target
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": self.request["max_new_tokens"]}
        if self.draft is not None:
            config: Any = self.draft.generation_config
            config.num_assistant_tokens, config.num_assistant_tokens_schedule = self.request["lookahead"], "constant"
            config.assistant_confidence_threshold = 0.0
            settings["assistant_model"] = self.draft
        with counted_steps() as (proposed, accepted):
            start_s = time.perf_counter()
            text_BT: Tensor = target.generate(ids_BT, attention_mask=torch.ones_like(ids_BT), **settings)
            elapsed_s = time.perf_counter() - start_s
        ids = text_BT[0, len(prompt_ids) :].tolist()
        return {
            "prompt_ids": prompt_ids,
            "ids": ids,
            "elapsed_s": elapsed_s,
            "proposed": proposed,
            "accepted": accepted,
        }

    def close(self) -> None:
        """Nothing: the models are the caller's."""


@contextmanager
def counted_steps() -> Iterator[tuple[list[int], list[int]]]:
    """The tokens that transformers' candidate generator proposes, and those accepted, of each step in the block."""
    proposed: list[int] = []
    accepted: list[int] = []
    kind: Any = AssistedCandidateGenerator
    propose, update = kind.get_candidates, kind.update_candidate_strategy

    def get_candidates(self: Any, input_ids: Tensor, **others: Any) -> Any:
        candidates = propose(self, input_ids, **others)
        proposed.append(candidates[0].shape[1] - input_ids.shape[1])
        return candidates

    def update_candidate_strategy(self: Any, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        accepted.append(int(num_matches))
        update(self, input_ids, scores, num_matches)

    kind.get_candidates, kind.update_candidate_strategy = get_candidates, update_candidate_strategy
    try:
        yield proposed, accepted
    finally:
        kind.get_candidates, kind.update_candidate_strategy = propose, update
