"""Batched decoding by one model: every step extends all unfinished rows by one token; finished rows leave the batch.

Answers vary in length, so a batch that keeps its finished rows to the end spends much of its time on them.

Shape suffixes used in this file:
    B = rows still being written, T = tokens fed or kept, padding on the left included, V = vocabulary, D = draws
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from eval.sampling import Sampling, distribution, invert_cumulative, uniform_draws


@torch.inference_mode()
def continue_prompts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
    sampling: Sampling,
    seeds: Sequence[int],
) -> Iterator[tuple[int, list[int]]]:
    """Yield (index of the prompt, its continuation) as continuations end, in the order in which they end.

    Args:
        model: A decoder-only model in eval mode.
        prompts: Token ids, each at least one.
        max_new_tokens: Length of a continuation at most, >= 1.
        stop_ids: Tokens that end a continuation and are its last token; may be empty.
        sampling: How tokens are chosen.
        seeds: One per prompt. A prompt's random draws depend on its seed alone, not on its neighbours in the batch.
    """
    draws_BD = None if sampling.temperature == 0 else uniform_draws(seeds, max_new_tokens).to(model.device)
    batch = Batch(model, prompts)
    continuations: list[list[int]] = [[] for _ in prompts]
    for step in range(max_new_tokens):
        logits_BV = batch.next_logits()
        tokens_B = choose(logits_BV, None if draws_BD is None else draws_BD[:, step], sampling)
        unfinished = []
        for place, (row, token) in enumerate(zip(batch.rows, tokens_B.tolist(), strict=True)):
            continuations[row].append(token)
            if token in stop_ids or step == max_new_tokens - 1:
                yield row, continuations[row]
            else:
                unfinished.append(place)
        if not unfinished:
            return
        batch.append(tokens_B)
        if len(unfinished) < len(batch.rows):
            batch.keep(unfinished)
            draws_BD = None if draws_BD is None else draws_BD[unfinished]


class Batch:
    """Rows of one model's cache, padded on the left to one length.

    Attributes:
        rows: For each row of the tensors, the index of its prompt.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.rows = list(range(len(prompts)))
        self.cache = DynamicCache(config=model.config)
        width = max(len(prompt) for prompt in prompts)
        ids = [torch.tensor(prompt, device=model.device) for prompt in prompts]
        self.new_ids_BT = torch.stack([pad(row, (width - len(row), 0)) for row in ids])
        self.real_BT = torch.stack([pad(torch.ones_like(row), (width - len(row), 0)) for row in ids])
        self.positions_BT = (self.real_BT.cumsum(dim=1) - 1).clamp(min=0)

    def next_logits(self) -> Tensor:
        """Feed what is new, the prompts at first and one token a row afterwards; returns logits_BV after it."""
        output = self.model(
            input_ids=self.new_ids_BT,
            attention_mask=self.real_BT,
            position_ids=self.positions_BT,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def append(self, tokens_B: Tensor) -> None:
        """Take one token a row as the next to feed."""
        self.new_ids_BT = tokens_B[:, None]
        self.real_BT = pad(self.real_BT, (0, 1), value=1)
        self.positions_BT = self.positions_BT[:, -1:] + 1

    def keep(self, places: Sequence[int]) -> None:
        """Let go of every row but those at the given places."""
        places_B = torch.tensor(places, device=self.model.device)
        self.cache.batch_select_indices(places_B)
        self.new_ids_BT, self.real_BT = self.new_ids_BT[places_B], self.real_BT[places_B]
        self.positions_BT = self.positions_BT[places_B]
        self.rows = [self.rows[place] for place in places]


def choose(logits_BV: Tensor, draws_B: Tensor | None, sampling: Sampling) -> Tensor:
    """One token id a row: the most likely, or the one on which a uniform draw in [0, 1) falls."""
    if draws_B is None:
        return logits_BV.argmax(dim=-1)
    return invert_cumulative(distribution(logits_BV, sampling), draws_B)
