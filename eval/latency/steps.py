"""The steps that decoding takes, as the loop takes them, each ready to be timed again and again.

    target step         the target reads one token
    verify              the target reads lookahead + 1 tokens
    draft step          the draft reads one token within a chain, each fed the argmax of the one before
    draft two           the draft reads two tokens: the catch-up step after a round that kept everything
    prefill             a model reads the whole context

Every step but the last is taken on a cache that holds the context before and after.

Shape suffixes used in this file:
    B = rows, T = tokens fed
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.draft_vocabulary.head import head_ids, tokens_of
from eval.latency.timing import Step
from eval.models.clock import clock_s
from eval.records.grid import TARGET
from eval.steps.sequencer import Feed, Opener, Sequencer, open_sequencer

CHAIN_LENGTH = 8  # draft steps timed together, each fed the argmax of the one before


class Kind(NamedTuple):
    """One kind of step.

    Attributes:
        model: TARGET, or a draft's name.
        tokens: Fed at once to each row.
        is_prefill: Whether they are the context, and nothing has been read before.
    """

    model: str
    tokens: int
    is_prefill: bool = False


@dataclass(frozen=True)
class Setting:
    """Where steps are taken.

    Attributes:
        context_ids: Tokens in every row of every cache before each step.
        batch: Rows.
        opener: How the models are run.
    """

    context_ids: Sequence[int]
    batch: int = 1
    opener: Opener = open_sequencer


def decoding_steps(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    setting: Setting,
    lookaheads: Iterable[int],
) -> dict[Kind, Step]:
    """A timer for every kind of step but prefill."""
    steps = target_steps(target, setting, lookaheads)
    for name, draft in drafts.items():
        steps |= draft_steps(name, draft, setting)
    return steps


def target_steps(target: PreTrainedModel, setting: Setting, lookaheads: Iterable[int]) -> dict[Kind, Step]:
    """A timer for one token of the target, and for every verification."""
    verified = sorted({lookahead + 1 for lookahead in lookaheads})
    verifier = hold_context(target, setting, [(1, False), *((tokens, True) for tokens in verified)])
    steps: dict[Kind, Step] = {Kind(TARGET, 1): partial(time_step, verifier, 1, whole=False)}
    return steps | {Kind(TARGET, tokens): partial(time_step, verifier, tokens, whole=True) for tokens in verified}


def draft_steps(name: str, draft: PreTrainedModel, setting: Setting) -> dict[Kind, Step]:
    """A timer for a draft's step within a chain, and for the one that catches up."""
    drafter = hold_context(draft, setting, [(1, False), (2, False)])
    return {Kind(name, 1): partial(time_chain, drafter), Kind(name, 2): partial(time_step, drafter, 2, whole=False)}


def prefill_steps(models: Mapping[str, PreTrainedModel], setting: Setting) -> dict[Kind, Step]:
    """A timer for the reading of the whole context by each model."""
    length = len(setting.context_ids)
    return {
        Kind(name, length, is_prefill=True): partial(time_prefill, model, setting) for name, model in models.items()
    }


@dataclass
class Held:
    """A model that has read a text in every row, and what decoding would feed it next."""

    sequencer: Sequencer
    setting: Setting

    def feed(self, ids_BT: Tensor, *, after: int = 0, whole: bool) -> Tensor:
        """The most likely next tokens when some are fed behind the text and so many more."""
        span = (len(self.setting.context_ids) + after, ids_BT.shape[1])
        columns_BT = self.sequencer.feed(ids_BT, [span] * self.setting.batch, whole=whole).argmax(dim=-1)
        return tokens_of(columns_BT, head_ids(self.sequencer.model))

    def some_tokens(self, count: int) -> Tensor:
        """ids_BT from the text, again and again if it is short; which ones makes no difference to the time."""
        ids_T = torch.tensor(self.setting.context_ids, device=self.sequencer.model.device)
        return ids_T.repeat(-(-count // len(ids_T)))[:count].repeat(self.setting.batch, 1)


def hold_context(model: PreTrainedModel, setting: Setting, feeds: Sequence[Feed] = ()) -> Held:
    """A model that has read the context, with capacity for what it will be fed behind it."""
    headroom = max(CHAIN_LENGTH, *(tokens for tokens, _ in feeds)) if feeds else 0
    length = len(setting.context_ids)
    sequencer = setting.opener(
        model,
        [setting.context_ids] * setting.batch,
        capacity=length + headroom,
        vocab_size=model.config.get_text_config(decoder=True).vocab_size,
        feeds=feeds,
    )
    held = Held(sequencer, setting)
    sequencer.feed(held.some_tokens(length), [(0, length)] * setting.batch, whole=False)
    return held


def time_prefill(model: PreTrainedModel, setting: Setting) -> float:
    """Seconds to read the whole context and know the most likely next token."""
    start_s = clock_s(model.device)
    hold_context(model, setting)
    return clock_s(model.device) - start_s


def time_step(held: Held, num_tokens: int, *, whole: bool) -> float:
    """Seconds to feed some tokens at once and know the most likely next token after each, or after the last."""
    device, ids_BT = held.sequencer.model.device, held.some_tokens(num_tokens)
    start_s = clock_s(device)
    held.feed(ids_BT, whole=whole).tolist()
    return clock_s(device) - start_s


def time_chain(held: Held) -> float:
    """Seconds per step of a chain in which each token is the model's own choice after the one before."""
    device, ids_B1 = held.sequencer.model.device, held.some_tokens(1)
    start_s = clock_s(device)
    for step in range(CHAIN_LENGTH):
        ids_B1 = held.feed(ids_B1, after=step, whole=False)
    return (clock_s(device) - start_s) / CHAIN_LENGTH
