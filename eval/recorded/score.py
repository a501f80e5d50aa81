"""Score a draft on recorded answers of a target that is not here: scorecard.json, scorecard.md and files of rounds.

The answers say at which contexts the draft is asked, and which token it must have proposed to be kept. That decides the
rules of exact match, for every lookahead, from one pass of the draft; and where they keep log p(y_t), what rejection
accepts, min(1, q / p)(y_t). All of it is with the sampling they were drawn with. What needs the target is left out, and
is named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.draft_vocabulary.head import head_ids
from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.pages.markdown import markdown
from architectures.progress.track import track
from eval.acceptance.counts import Array, Counts, pool
from eval.acceptance.estimates import INTERVALS, Resampling
from eval.acceptance.replay import (
    acceptance_tails,
    answer_logits,
    as_array,
    rejection_accepts,
    replay_counts,
    round_starts,
    value_at,
)
from eval.config import EvalConfig, sampling_asked
from eval.decoding.batch import first_tokens
from eval.decoding.rules import EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT, REJECTION
from eval.decoding.sampling import Sampling, log_distribution, penalised, seen_along
from eval.latency.machine import torch_threads
from eval.models.identity import model_facts
from eval.models.loading import load_model, require_positions
from eval.recorded.answers import RecordedAnswer, Recording
from eval.recorded.matched_tokens import write_rounds
from eval.recorded.page import find_warnings
from eval.records import scorecard as records
from eval.records.acceptance import RecordedRow
from eval.records.files import CARD_NAME, write_record
from eval.records.origin import DraftModel, Provenance, Settings
from eval.records.scorecard import LeftOut, RecordedScorecard
from eval.scorecard.acceptance_record import PromptCounts, mean, rounds_at
from eval.scorecard_tables import scorecard_page

USED_KEYS = {"num_prompts", "lookaheads", "dtype", "confidence", "num_resamples", "num_threads"}
NEEDS_PROBABILITIES = {
    "tau of the rule rejection": (
        "it needs the target's log-probability of every answer token, and these answers were written without"
    )
}
NEEDS_TARGET = {
    "alpha as the sum of min(p, q)": (
        "it needs the target's probability of every token; at temperature 0 alpha is the accept rate, as far as the "
        "answers are the target's argmax"
    ),
    "argmax agreement": "the answers say which tokens were written, not which were the likeliest",
    "other temperatures, and other top-p, top-k, min-p or penalties": "they need answers sampled so",
    "step times and cost ratio": "the target's weights decide them",
    "predicted and measured speed-up, best lookahead, break-even alpha": "they follow from step times",
    "live decoding, and its agreement with the replay": "the loop asks the target",
    "target_changed_tokens": "only the target can read its answers again",
}


@dataclass(frozen=True)
class RecordedScore:
    """What a draft does along recorded answers under one rule.

    Attributes:
        rule: How a proposal is kept.
        accept: Of each answer, [T]: the chance that the draft proposes its token t.
        prompts: Of each answer, the number of its prompt.
        counts: Of each prompt, the counts of its rounds by lookahead.
        covered: Of each answer, [T]: 1 where token t is an output id of the draft, else 0; None of a whole head.
    """

    rule: str
    accept: Sequence[Array]
    prompts: Sequence[int]
    counts: Sequence[dict[int, Counts]]
    covered: Sequence[Array] | None = None

    def columns(self, each: Sequence[Array]) -> tuple[list[float], list[float]]:
        """Per prompt: sum of a value over its tokens, and tokens.

        Args:
            each: The value at every token of each answer.
        """
        sums, tokens = [0.0] * len(self.counts), [0.0] * len(self.counts)
        for prompt, value_T in zip(self.prompts, each, strict=True):
            sums[prompt] += float(value_T.sum())
            tokens[prompt] += len(value_T)
        return sums, tokens


def score_recording(
    recording: Recording, draft: Path, config: EvalConfig, out: Path, *, seed: int
) -> RecordedScorecard:
    """Score one draft on recorded answers; write out/scorecard.json, out/scorecard.md and greedy out/rounds/.

    Args:
        recording: Answers made with the draft's tokenizer.
        draft: Its folder.
        config: How to score; of its keys only USED_KEYS matter.
        out: Folder of what is written.
        seed: Of the resampling.

    Returns:
        What scorecard.json holds.

    Raises:
        UserError: If an answer is longer than the draft's positions.
    """
    answers = recording.first(config.num_prompts)
    require_positions(draft, max(len(each.prompt_ids) + len(each.answer_ids) for each in answers))
    lookaheads = config.lookaheads
    with torch_threads(plain_threads(config.num_threads)) as num_threads:
        model = load_model(draft, dtype=config.dtype)
        scores = replay_recording(model, answers, lookaheads, sampling=recording.sampling)
    scorecard = RecordedScorecard(
        warnings=(),
        left_out=left_out([score.rule for score in scores]),
        drafts=(DraftModel(draft="draft", **model_facts(draft, model)),),
        recording=recording_record(recording, answers),
        settings=Settings(
            **config.model_dump(mode="json", include=USED_KEYS),
            seed=seed,
            threads=num_threads,
            device=str(model.device),
            intervals=INTERVALS,
        ),
        acceptance=acceptance_rows(scores, recording.temperature, config, seed=seed),
        provenance=Provenance.of_this_process(),
    )
    scorecard = replace(scorecard, warnings=find_warnings(scorecard))
    if recording.temperature == 0:
        write_greedy_rounds(scores[0].accept, lookaheads, out / "rounds")
    write_text(f"{markdown(scorecard_page(scorecard))}\n", out / "scorecard.md")
    write_record(scorecard, out / CARD_NAME)
    return scorecard


def plain_threads(asked: int | Literal["auto"] | None) -> int | None:
    """The number of threads.

    Raises:
        UserError: If it is to be picked by steps of the target, which is not here.
    """
    if asked == "auto":
        raise UserError(
            "eval.num_threads=auto picks by steps of the target, which is not here, and nothing is timed of recorded "
            "answers. Name a number, or leave it out."
        )
    return asked


def rules_of(answers: Sequence[RecordedAnswer], temperature: float) -> list[str]:
    """The rules that answers decide without the target, the one of the headline first."""
    if temperature == 0:
        return [EXACT_GREEDY_DRAFT]
    is_kept = all(answer.answer_logp is not None for answer in answers)
    return [*([REJECTION] if is_kept else []), EXACT_GREEDY_DRAFT, EXACT_SAMPLED_DRAFT]


def replay_recording(
    draft: PreTrainedModel, answers: Sequence[RecordedAnswer], lookaheads: Iterable[int], *, sampling: Sampling
) -> list[RecordedScore]:
    """The draft along every answer, one pass for all rules and lookaheads."""
    accept: dict[str, list[Array]] = {rule: [] for rule in rules_of(answers, sampling.temperature)}
    covered = None if head_ids(draft) is None else []
    for answer in track(answers, description=f"replay at T={sampling.temperature:g}", total=len(answers)):
        logits_TV = answer_logits(draft, answer.prompt_ids, answer.answer_ids)
        context = first_tokens(draft, answer.prompt_ids)
        for rule, rows in accept.items():
            rows.append(accept_chances(logits_TV, answer, rule=rule, sampling=sampling, context=context))
        if covered is not None:
            covered.append(as_array(values_of(logits_TV, answer.answer_ids) > -torch.inf))
    prompts = [answer.prompt for answer in answers]
    scores = [count_rounds(rule, rows, prompts, lookaheads) for rule, rows in accept.items()]
    return [replace(score, covered=covered) for score in scores]


def accept_chances(
    draft_logits_TV: Tensor, answer: RecordedAnswer, *, rule: str, sampling: Sampling, context: Sequence[int]
) -> Array:
    """[T]: the chance that each answer token comes from the draft.

    By the rules of exact match that it proposes the token: a greedy draft its argmax, a sampled one what it draws from
    q. By rejection min(1, q / p)(y_t).

    Args:
        draft_logits_TV: Along the answer.
        answer: Of the target.
        rule: One of rules_of.
        sampling: How the answer was drawn, and the draft draws.
        context: What the decoder has before the answer.
    """
    seen_TV = seen_along(context, answer.answer_ids, sampling, draft_logits_TV)
    if rule == EXACT_GREEDY_DRAFT:
        proposed_T = penalised(draft_logits_TV, sampling, seen_TV).argmax(dim=-1)
        return as_array(proposed_T == torch.tensor(answer.answer_ids, device=proposed_T.device))
    draft_logp_T = values_of(log_distribution(draft_logits_TV, sampling, seen_TV), answer.answer_ids)
    if rule == EXACT_SAMPLED_DRAFT:
        return as_array(draft_logp_T.exp())
    assert answer.answer_logp is not None  # see rules_of
    return as_array(rejection_accepts(torch.tensor(answer.answer_logp, device=draft_logp_T.device), draft_logp_T))


def values_of(values_TV: Tensor, answer_ids: Sequence[int]) -> Tensor:
    """values_T: of each answer token."""
    return value_at(torch.tensor(answer_ids, device=values_TV.device), values_TV)


def count_rounds(
    rule: str, accept: Sequence[Array], prompts: Sequence[int], lookaheads: Iterable[int]
) -> RecordedScore:
    """Chances along every answer, and the rounds they make, prompt by prompt."""
    counts = {g: [replay_counts(accept_T, lookahead=g) for accept_T in accept] for g in lookaheads}
    of_prompt: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        of_prompt.setdefault(prompt, []).append(index)
    return RecordedScore(
        rule=rule,
        accept=accept,
        prompts=prompts,
        counts=[{g: pool([counts[g][index] for index in indices]) for g in counts} for indices in of_prompt.values()],
    )


def write_greedy_rounds(accept: Sequence[Array], lookaheads: Iterable[int], folder: Path) -> None:
    """Write folder/lookahead-<g>.txt: the rounds along every answer, as eval.recorded.matched_tokens reads them."""
    for lookahead in lookaheads:
        totals = [round_totals(accept_T, lookahead=lookahead) for accept_T in accept]
        write_rounds(totals, folder / f"lookahead-{lookahead}.txt")


def round_totals(accept_T: Array, *, lookahead: int) -> list[int]:
    """Tokens after each round of a greedy answer, as eval.recorded.matched_tokens has them: the last are not run."""
    num_tokens = len(accept_T)
    starts = [int(start) for start in round_starts(acceptance_tails(accept_T, lookahead)).nonzero()[0]]
    ends = [*starts[1:], num_tokens]
    return [end for start, end in zip(starts, ends, strict=True) if start < num_tokens - lookahead - 2]


def acceptance_rows(
    scores: Sequence[RecordedScore], temperature: float, config: EvalConfig, *, seed: int
) -> tuple[RecordedRow, ...]:
    resampling = Resampling(config.confidence, config.num_resamples, seed)
    return tuple(rule_row(score, temperature, resampling) for score in scores)


def rule_row(score: RecordedScore, temperature: float, resampling: Resampling) -> RecordedRow:
    rounds = PromptCounts(score.counts)
    return RecordedRow(
        draft="draft",
        temperature=temperature,
        rule=score.rule,
        prompts=len(score.counts),
        answers=len(score.accept),
        accept_rate=mean(score.columns(score.accept), resampling),
        coverage=None if score.covered is None else mean(score.columns(score.covered), resampling),
        lookahead=tuple(rounds_at(rounds, lookahead, resampling) for lookahead in sorted(score.counts[0])),
    )


def left_out(rules: Sequence[str]) -> tuple[LeftOut, ...]:
    """What a scorecard holds when the target is there, and why this one cannot.

    Args:
        rules: By which the draft was scored.
    """
    lacks_probabilities = EXACT_SAMPLED_DRAFT in rules and REJECTION not in rules
    missing = {**(NEEDS_PROBABILITIES if lacks_probabilities else {}), **NEEDS_TARGET}
    return tuple(LeftOut(figure=figure, reason=reason) for figure, reason in missing.items())


def recording_record(recording: Recording, answers: Sequence[RecordedAnswer]) -> records.Recording:
    firsts = {answer.prompt: answer for answer in reversed(answers)}
    return records.Recording(
        path=str(recording.path),
        form="text" if recording.target is None else "traces",
        target_fingerprint=recording.target,
        temperature=recording.temperature,
        sampling=sampling_asked(recording.sampling),
        given=recording.num_prompts,
        unanswered=recording.unanswered,
        scored=len(firsts),
        answers=len(answers),
        tokens=sum(len(answer.answer_ids) for answer in answers),
        sources=tuple(firsts[prompt].source for prompt in sorted(firsts)),
        prompt_ids_sha256=fingerprint_value([list(answer.prompt_ids) for answer in answers]),
        answer_ids_sha256=fingerprint_value([list(answer.answer_ids) for answer in answers]),
    )
