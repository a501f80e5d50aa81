"""Greedy decoding at batch 1, plain and speculative, with keys and values of both models rolled back after each round.

The prompt and the tokens emitted so far are the committed tokens. Before each round the target's cache holds all of
them but the last, whose logits it has yet to give. So does the draft's, except after a round that accepted everything
it proposed: the last proposed token never went through the draft, and goes in with the next one, two tokens at once.

Shape suffixes used in this file:
    T = tokens fed in one call, S = tokens proposed in one round

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1 at temperature 0
(arXiv 2211.17192).
"""

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eval.cache import new_cache, roll_back
from eval.models import shared_vocab_size


@dataclass(frozen=True)
class Round:
    """One draft-then-verify cycle, which emitted accepted + 1 tokens.

    Attributes:
        start: Tokens emitted before it.
        proposed: Tokens the draft proposed.
        accepted: Proposed tokens kept; a stop token is the target's own and not among them.
        draft_s: Seconds the draft took.
        verify_s: Seconds the target took.
    """

    start: int
    proposed: int
    accepted: int
    draft_s: float
    verify_s: float


@dataclass(frozen=True)
class Decoded:
    """A text and how it came about.

    Attributes:
        token_ids: The emitted tokens, the stop token included if one ended the text.
        rounds: The trace; empty for plain decoding.
        prefill_s: Seconds to read the prompt, with both models if there are two.
        decode_s: Seconds from then to the last token.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    prefill_s: float
    decode_s: float


@torch.inference_mode()
def speculative_decode(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt_ids: Sequence[int],
    *,
    lookahead: int,
    max_new_tokens: int,
    stop_ids: AbstractSet[int],
) -> Decoded:
    """The target's greedy continuation of a prompt, found with the help of a draft.

    Args:
        target: Decides every token.
        draft: Proposes tokens; shares the target's vocabulary and device.
        prompt_ids: At least one token.
        lookahead: Tokens proposed per round, fewer where the text has no room for them.
        max_new_tokens: Length of the text at most.
        stop_ids: Tokens that end the text; may be empty.
    """
    require_work(prompt_ids, max_new_tokens=max_new_tokens)
    if lookahead < 1:
        raise ValueError(f"lookahead must be at least 1, got {lookahead}. Use greedy_decode to decode without a draft.")
    vocab_size = shared_vocab_size(target, draft)
    verifier, drafter = Sequencer(target, vocab_size=vocab_size), Sequencer(draft, vocab_size=vocab_size)
    start_s = clock_s(target.device)
    verifier.prefill(prompt_ids)
    drafter.prefill(prompt_ids)
    prefilled_s = clock_s(target.device)
    committed, rounds, num_missing = list(prompt_ids), [], 0
    while not is_finished(committed[len(prompt_ids) :], max_new_tokens=max_new_tokens, stop_ids=stop_ids):
        verifier.roll_back(len(committed) - 1)
        drafter.roll_back(len(committed) - 1 - num_missing)
        num_emitted = len(committed) - len(prompt_ids)
        num_proposed = min(lookahead, max_new_tokens - num_emitted - 1)
        emitted, draft_s, verify_s = run_round(verifier, drafter, committed, num_proposed, stop_ids)
        committed += emitted
        rounds.append(Round(num_emitted, num_proposed, len(emitted) - 1, draft_s, verify_s))
        num_missing = int(num_proposed == rounds[-1].accepted)
    decode_s = clock_s(target.device) - prefilled_s
    return Decoded(tuple(committed[len(prompt_ids) :]), tuple(rounds), prefilled_s - start_s, decode_s)


@torch.inference_mode()
def greedy_decode(
    model: PreTrainedModel, prompt_ids: Sequence[int], *, max_new_tokens: int, stop_ids: AbstractSet[int]
) -> Decoded:
    """The model's greedy continuation of a prompt, one token at a time, by the same machinery as with a draft."""
    require_work(prompt_ids, max_new_tokens=max_new_tokens)
    sequencer = Sequencer(model)
    start_s = clock_s(model.device)
    sequencer.prefill(prompt_ids)
    prefilled_s = clock_s(model.device)
    last_token, token_ids = prompt_ids[-1], []
    while not is_finished(token_ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids):
        [last_token] = sequencer.feed(torch.tensor([last_token], device=model.device)).tolist()
        token_ids.append(last_token)
    return Decoded(tuple(token_ids), (), prefilled_s - start_s, clock_s(model.device) - prefilled_s)


class Sequencer:
    """A model in the middle of a text: its cache, and the argmax after the tokens it is fed.

    Args:
        model: The model.
        vocab_size: Only so many ids are chosen from; all if None.
    """

    def __init__(self, model: PreTrainedModel, *, vocab_size: int | None = None) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.cache = new_cache(model)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.cache.get_seq_length()

    def feed(self, token_ids_T: Tensor, *, num_choices: int = 1) -> Tensor:
        """Append tokens; returns the most likely next token after each of the last num_choices of them."""
        output = self.model(
            input_ids=token_ids_T[None], past_key_values=self.cache, use_cache=True, logits_to_keep=num_choices
        )
        return output.logits[0, :, : self.vocab_size].argmax(dim=-1)

    def prefill(self, prompt_ids: Sequence[int]) -> None:
        """Append all of the prompt but its last token, which the first round feeds."""
        if len(prompt_ids) > 1:
            self.feed(torch.tensor(prompt_ids[:-1], device=self.model.device))

    def roll_back(self, length: int) -> None:
        """Keep only the first tokens in the cache."""
        roll_back(self.cache, length)


def run_round(
    verifier: Sequencer, drafter: Sequencer, committed: list[int], num_proposed: int, stop_ids: AbstractSet[int]
) -> tuple[list[int], float, float]:
    """Draft, verify, and return the tokens to emit with the seconds each half took. Leaves both caches too long."""
    device = verifier.model.device
    start_s = clock_s(device)
    proposed_S = propose(drafter, committed, num_proposed)
    drafted_s = clock_s(device)
    last_1 = torch.tensor(committed[-1:], device=device)
    choices = verifier.feed(torch.cat([last_1, proposed_S]), num_choices=num_proposed + 1).tolist()
    emitted = choices[: leading_matches(proposed_S.tolist(), choices) + 1]
    return up_to_stop(emitted, stop_ids), drafted_s - start_s, clock_s(device) - drafted_s


def propose(drafter: Sequencer, committed: list[int], num_proposed: int) -> Tensor:
    """The draft's own greedy continuation of the committed tokens, kept on the device."""
    proposed = []
    fed = torch.tensor(committed[drafter.length :], device=drafter.model.device)
    for _ in range(num_proposed):
        fed = drafter.feed(fed)
        proposed.append(fed)
    return torch.cat(proposed) if proposed else fed[:0]


def leading_matches(proposed: Sequence[int], choices: Sequence[int]) -> int:
    """How many proposed tokens are the target's choices, before the first that is not."""
    for count, (token, choice) in enumerate(zip(proposed, choices, strict=False)):  # choices hold one token more
        if token != choice:
            return count
    return len(proposed)


def up_to_stop(token_ids: list[int], stop_ids: AbstractSet[int]) -> list[int]:
    """The tokens up to the first stop token, which is kept."""
    for position, token in enumerate(token_ids):
        if token in stop_ids:
            return token_ids[: position + 1]
    return token_ids


def is_finished(token_ids: Sequence[int], *, max_new_tokens: int, stop_ids: AbstractSet[int]) -> bool:
    """Whether a text has its full length or ends with a stop token."""
    return len(token_ids) >= max_new_tokens or (len(token_ids) > 0 and token_ids[-1] in stop_ids)


def require_work(prompt_ids: Sequence[int], *, max_new_tokens: int) -> None:
    """Refuse calls that have nothing to continue or nothing to write."""
    if not prompt_ids or max_new_tokens < 1:
        raise ValueError(
            f"decoding needs a prompt token and room for a new one, got {len(prompt_ids)} prompt tokens and "
            f"max_new_tokens={max_new_tokens}."
        )


def clock_s(device: torch.device) -> float:
    """A clock reading once the device has done everything asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
