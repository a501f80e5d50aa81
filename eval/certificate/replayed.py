"""Exact counts over an engine's own texts: in greedy decoding a draft's token is kept where it is the text's.

The target is not needed: its text is the engine's, quantised or not. Where rounds begin is the engine's way too: most
read the prompt without proposing, and a text's first token comes of that alone; transformers proposes at once. A draft
with a tokenizer of its own reads and says its tokens by their text, as vLLM maps them (TLI, arXiv 2502.05202).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from eval.acceptance.counts import Counts
from eval.acceptance.replay import answer_logits, replay_counts
from eval.engine_runs.record import Counted, Engine, EngineRun, TextRun
from eval.models.loading import load_tokenizer

NONE = -1  # in place of a token that is no output id of the draft
PROPOSES_AT_ONCE: tuple[Engine, ...] = ("transformers",)


@dataclass(frozen=True)
class OwnTokens:
    """What a draft with a tokenizer of its own makes of its target's ids.

    Attributes:
        ids: Its own id of each of the target's ids that it has.
        unknown: Its own id for all others.
    """

    ids: Mapping[int, int]
    unknown: int

    def read(self, target_ids: Sequence[int]) -> list[int]:
        """A text of the target as the draft reads it."""
        return [self.ids.get(token, self.unknown) for token in target_ids]

    def wanted(self, target_ids: Sequence[int]) -> list[int]:
        """The draft's ids that would be kept; NONE where it has none."""
        return [self.ids.get(token, NONE) for token in target_ids]


def own_tokens(target: Path, draft: Path) -> OwnTokens | None:
    """How a draft folder reads its target's ids; None where they are its own.

    A tokenizer of its own is one that lacks some of the target's tokens, as `convert --form own-tokenizer` writes it.
    """
    ours, theirs = (load_tokenizer(folder) for folder in (draft, target))
    own, of_target = ours.get_vocab(), theirs.get_vocab()
    unknown = ours.unk_token_id
    if len(own) >= len(of_target) or not isinstance(unknown, int):
        return None
    return OwnTokens({id_: own[text] for text, id_ in of_target.items() if text in own}, unknown)


def replay_run(draft: PreTrainedModel, run: EngineRun, own: OwnTokens | None = None) -> list[Counted]:
    """What the draft keeps of every text that an engine wrote without it."""
    alone = int(run.engine not in PROPOSES_AT_ONCE)
    nothing = Counted(rounds=0, proposed=0, accepted=0, by_position=(0,) * run.lookahead)
    texts = [begun(text, alone) for text in run.texts]
    return [counted(replay_text(draft, *text, run.lookahead, own)) if text[1] else nothing for text in texts]


def begun(text: TextRun, tokens: int) -> tuple[Sequence[int], Sequence[int]]:
    """A prompt with the first tokens of its text, and those that rounds write."""
    return (*text.prompt_ids, *text.plain_ids[:tokens]), text.plain_ids[tokens:]


def replay_text(
    draft: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int], lookahead: int, own: OwnTokens | None
) -> Counts:
    """Counts of one text; it has at least one token."""
    wanted = answer
    if own is not None:
        prompt, answer, wanted = own.read(prompt), own.read(answer), own.wanted(answer)
    proposed_T = answer_logits(draft, prompt, answer).argmax(dim=-1).cpu().numpy()
    return replay_counts((proposed_T == np.array(wanted)).astype(np.float64), lookahead=lookahead)


def counted(counts: Counts) -> Counted:
    """Whole numbers, as they are where every chance is 0 or 1."""
    positions = tuple(round(value) for value in counts.accepted)
    return Counted(
        rounds=round(counts.rounds),
        proposed=round(counts.proposed_tokens),
        accepted=sum(positions),
        by_position=positions,
    )
