"""A target and its drafts, loaded, and what the drafts do along its answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from transformers import PreTrainedModel

from architectures.draft_vocabulary.head import head_ids
from architectures.progress.track import track
from eval.acceptance.bins import ReplayedAnswer
from eval.acceptance.replay import answer_logits, replay_answer
from eval.answers.traces import Trace
from eval.decoding.batch import first_tokens
from eval.decoding.sampling import Sampling
from eval.models.loading import shared_vocab_size
from eval.records.grid import TARGET
from eval.scorecard.answers import Answers
from eval.scorecard.draft_scores import ReplayedDraft
from eval.targets.passes import Pass, run_passes


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


def answer_pass(model: PreTrainedModel, trace: Trace) -> Pass[Tensor]:
    """A model's pass over one answer, to be made when its turn comes."""
    read = partial(answer_logits, model, trace.prompt_ids, trace.answer_ids)
    return Pass(read, rows=1, width=len(trace.token_ids))


def replay_drafts(pair: Pair, answers: Answers, *, sampling: Sampling) -> list[ReplayedDraft]:
    """Every draft along every answer; the target's pass over an answer serves all of them."""
    replayed: dict[str, list[ReplayedAnswer]] = {name: [] for name in pair.drafts}
    passes = [answer_pass(pair.target, trace) for trace in answers.traces]
    numbered = zip(answers.prompt_numbers, answers.traces, run_passes(pair.target, passes), strict=True)
    for prompt, trace, target_logits_TV in track(
        numbered,
        description=f"replay at T={sampling.temperature:g}",
        total=len(passes),
        works=lambda read: len(read[1].token_ids),
        whole=sum(each.width for each in passes),
    ):
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
