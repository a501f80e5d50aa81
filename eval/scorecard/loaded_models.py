"""A target and its drafts, loaded, and what the drafts do along its answers."""

from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PreTrainedModel

from architectures.draft_vocabulary.head import head_ids
from architectures.progress.track import track
from eval.acceptance.bins import ReplayedAnswer
from eval.acceptance.replay import answer_logits, replay_answer
from eval.decoding.batch import first_tokens
from eval.decoding.sampling import Sampling
from eval.models.loading import shared_vocab_size
from eval.records.grid import TARGET
from eval.scorecard.answers import Answers
from eval.scorecard.draft_scores import ReplayedDraft


@dataclass(frozen=True)
class Pair:
    """The target and its drafts, loaded."""

    target: PreTrainedModel
    drafts: Mapping[str, PreTrainedModel]

    @property
    def device(self) -> str:
        return str(self.target.device)

    @property
    def primary(self) -> str:
        """The draft that is decoded live: the last."""
        return list(self.drafts)[-1]

    @property
    def target_and_primary(self) -> dict[str, PreTrainedModel]:
        """The models of live decoding, by the names that steps have."""
        return {TARGET: self.target, self.primary: self.drafts[self.primary]}


def replay_drafts(pair: Pair, answers: Answers, *, sampling: Sampling) -> list[ReplayedDraft]:
    """Every draft along every answer; the target's pass over an answer serves all of them."""
    replayed: dict[str, list[ReplayedAnswer]] = {name: [] for name in pair.drafts}
    numbered = list(zip(answers.prompt_numbers, answers.traces, strict=True))
    tokens = [len(trace.prompt_ids) + len(trace.answer_ids) for trace in answers.traces]
    for prompt, trace in track(
        numbered,
        description=f"replay at T={sampling.temperature:g}",
        total=len(numbered),
        works=lambda pair: len(pair[1].prompt_ids) + len(pair[1].answer_ids),
        whole=sum(tokens),
    ):
        target_logits_TV = answer_logits(pair.target, trace.prompt_ids, trace.answer_ids)
        for name, draft in pair.drafts.items():
            vocab_size = shared_vocab_size(pair.target, draft)
            draft_logits_TV = answer_logits(draft, trace.prompt_ids, trace.answer_ids)
            replay = replay_answer(
                target_logits_TV[:, :vocab_size],
                draft_logits_TV[:, :vocab_size],
                trace.answer_ids,
                sampling=sampling,
                prompt_ids=first_tokens(pair.target, trace.prompt_ids),
            )
            replayed[name].append(ReplayedAnswer(prompt, trace.category, replay, trace.task))
    return [
        ReplayedDraft(name, sampling.temperature, rows, has_small_head=head_ids(pair.drafts[name]) is not None)
        for name, rows in replayed.items()
    ]
