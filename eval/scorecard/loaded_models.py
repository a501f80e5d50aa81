"""A target and its drafts, loaded, and what the drafts do along its answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from transformers import PreTrainedModel

from architectures.draft_vocabulary.head import head_ids
from architectures.kept import Kept
from architectures.progress.track import track
from architectures.sharing import ALONE, Share
from eval.acceptance.bins import ReplayedAnswer
from eval.acceptance.draft_scores import ReplayedDraft
from eval.acceptance.kept_replays import Keeping, keep_replays, replays_there
from eval.acceptance.replay import Replay, answer_logits, replay_answer
from eval.answers.traces import Trace
from eval.config import SamplingConfig
from eval.decoding.batch import first_tokens
from eval.decoding.sampling import Sampling
from eval.models.loading import shared_vocab_size
from eval.records.grid import TARGET
from eval.scorecard.answers import Answers
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


@dataclass(frozen=True)
class Replayed:
    """A target's answers, and what its drafts do along them; all by the temperature of the answers.

    Attributes:
        pair: The models.
        answers: That are scored.
        tuning: That a policy is tuned on; empty where none is.
        along: Every draft along those that are scored.
        along_tuning: The last draft along the others.
    """

    pair: Pair
    answers: Mapping[float, Answers]
    tuning: Mapping[float, Answers]
    along: Mapping[float, Sequence[ReplayedDraft]]
    along_tuning: Mapping[float, ReplayedDraft]


def replay_all(
    pair: Pair,
    answers: Mapping[float, Answers],
    tuning: Mapping[float, Answers],
    *,
    sampling: SamplingConfig,
    share: Share,
    keeping: Keeping | None = None,
) -> Replayed:
    """All that is replayed for a scorecard but texts that are decoded for it; each process replays a part.

    Args:
        pair: The models.
        answers: That are scored.
        tuning: That a policy is tuned on.
        sampling: Of the answers that are not greedy.
        share: This process's part.
        keeping: Where an interrupted command left replays, and this one puts its own; None to keep none.
    """
    primary = Pair(pair.target, {pair.primary: pair.drafts[pair.primary]})

    def along(models: Pair, groups: Mapping[float, Answers], name: str) -> dict[float, list[ReplayedDraft]]:
        replayed = {}
        for t, group in groups.items():
            kept = None if keeping is None else keeping.of(f"{name}-T{t:g}", group.traces)
            replayed[t] = replay_drafts(models, group, sampling=Sampling.of(t, sampling), share=share, kept=kept)
        return replayed

    of_tuning = {t: replayed for t, [replayed] in along(primary, tuning, "tuning").items()}
    return Replayed(pair, answers, tuning, along(pair, answers, "scored"), of_tuning)


def replay_drafts(
    pair: Pair, answers: Answers, *, sampling: Sampling, share: Share = ALONE, kept: Kept | None = None
) -> list[ReplayedDraft]:
    """Every draft along every answer; the target's pass over an answer serves all of them.

    Args:
        pair: The models.
        answers: Of the target.
        sampling: By which they were decoded.
        share: This process's part of the answers.
        kept: Where the replays of an interrupted pass are, and those of this one go.
    """
    there = share.lead(lambda: {} if kept is None else replays_there(kept, len(answers.traces)))
    missing = [number for number in range(len(answers.traces)) if number not in there]
    mine = {number: answers.traces[number] for number in share.mine(missing)}
    made = share.together(list(replays_of_some(pair, mine, sampling, kept, share.words)))
    replayed = {**there, **dict(zip(missing, made, strict=True))}
    numbered = [
        (prompt, trace, replayed[number])
        for number, (prompt, trace) in enumerate(zip(answers.prompt_numbers, answers.traces, strict=True))
    ]
    return [
        ReplayedDraft(
            name,
            sampling.temperature,
            [ReplayedAnswer(prompt, trace.category, each[name], trace.task) for prompt, trace, each in numbered],
            has_small_head=head_ids(draft) is not None,
        )
        for name, draft in pair.drafts.items()
    ]


def replays_of_some(
    pair: Pair, traces: Mapping[int, Trace], sampling: Sampling, kept: Kept | None, words: str
) -> Iterator[dict[str, Replay]]:
    """Every draft along some answers, by number, under a progress bar; each is kept as soon as it is made."""
    passes = [answer_pass(pair.target, trace) for trace in traces.values()]
    read = track(
        zip(traces.items(), run_passes(pair.target, passes), strict=True),
        description=f"replay at T={sampling.temperature:g}{words}",
        total=len(passes),
        works=lambda read: len(read[0][1].token_ids),
        whole=sum(each.width for each in passes),
    )
    for (number, trace), logits_TV in read:
        replays = replays_of(pair, trace, logits_TV, sampling)
        if kept is not None:
            keep_replays(kept, number, replays)
        yield replays


def replays_of(pair: Pair, trace: Trace, target_logits_TV: Tensor, sampling: Sampling) -> dict[str, Replay]:
    """Every draft along one answer."""
    replays = {}
    for name, draft in pair.drafts.items():
        vocab_size = shared_vocab_size(pair.target, draft)
        draft_logits_TV = answer_logits(draft, trace.prompt_ids, trace.answer_ids)
        replays[name] = replay_answer(
            target_logits_TV[:, :vocab_size],
            draft_logits_TV[:, :vocab_size],
            trace.answer_ids,
            sampling=sampling,
            prompt_ids=first_tokens(pair.target, trace.prompt_ids),
        )
    return replays
