"""The target's responses to the prompts of a scorecard, and every draft replayed along them."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

from transformers import PreTrainedModel

from architectures.progress.track import track
from architectures.settings.holding import WHOLE, Holding
from architectures.sharing import ALONE, Share
from architectures.vocabulary_head import head_ids
from eval.acceptance.draft_scores import ReplayedAnswer, ReplayedDraft
from eval.acceptance.replay import Replay, answer_logits, replay_answer
from eval.answers.shards import require_known_ids
from eval.answers.traces import DecodingSettings, Trace, read_traces
from eval.config import EvalConfig, SamplingConfig
from eval.decoding.generate import Kind, write_traces
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import first_tokens
from eval.models.loading import require_positions, shared_vocab_size, text_config
from eval.prompts import Prompt
from eval.targets.passes import Pass, run_passes

TRACES_NAME = "eval"


@dataclass(frozen=True)
class Answers:
    """The target's responses at one temperature, and the number of the prompt each of them belongs to."""

    traces: Sequence[Trace]
    prompt_numbers: Sequence[int]

    def first_turns(self) -> list[tuple[int, Trace]]:
        """The index and the response of each prompt's first turn."""
        return [
            (index, trace)
            for index, trace in enumerate(self.traces)
            if index == 0 or self.prompt_numbers[index] != self.prompt_numbers[index - 1]
        ]


def record_answers(
    target: Path,
    prompts: Sequence[Prompt],
    config: EvalConfig,
    out: Path,
    *,
    temperature: float,
    seed: int,
    answered_by: Kind | None = None,
    holding: Holding = WHOLE,
    share: Share = ALONE,
) -> Answers:
    """Generate the target's responses into out/answers unless they are there; each process generates a part."""
    penalty_only = SamplingConfig(repetition_penalty=config.sampling.repetition_penalty)  # all that a greedy text obeys
    settings = DecodingSettings(
        max_new_tokens=config.max_new_tokens,
        temperature=temperature,
        **(config.sampling if temperature > 0 else penalty_only).model_dump(),
        batch_size=config.batch_size,
        shard_size=config.batch_size,
        max_prompt_len=config.max_prompt_len,
        seed=seed,
        dtype=config.dtype,
        holding=holding,
    )
    folder = answers_folder(out, temperature, config.sampling)
    write_traces(target, prompts, folder, settings, name=TRACES_NAME, answered_by=answered_by, share=share)
    traces = read_traces(folder, TRACES_NAME)
    # A prompt that was too long has no response; of the others a prompt of n turns has n.
    sources = {trace.source for trace in traces}
    num_turns = (1 + len(prompt.later_turns) for prompt in prompts if prompt.source in sources)
    first_ids = list(accumulate(num_turns, initial=0))
    return Answers(traces, [bisect_right(first_ids, trace.id) - 1 for trace in traces])


def answers_folder(out: Path, temperature: float, sampling: SamplingConfig = SamplingConfig()) -> Path:  # noqa: B008
    """Where the responses at one temperature are: "answers/T1", "answers/T0.8,top_p=0.9"."""
    chosen = (f"{name}={value:g}" for name, value in sampling.that_count(temperature).items())
    return out / "answers" / ",".join([f"T{temperature:g}", *chosen])


def require_fitting(models: Sequence[Path], answers: Mapping[float, Answers], out: Path, config: EvalConfig) -> None:
    """Raise UserError if a model has no position, or no embedding, for a token of the responses in `out`."""
    longest = max(len(t.prompt_ids) + len(t.answer_ids) for group in answers.values() for t in group.traces)
    for model in models:
        require_positions(model, longest)
    vocab_sizes = {folder: text_config(folder).vocab_size for folder in models}
    for temperature, group in answers.items():
        folder = answers_folder(out, temperature, config.sampling)
        require_known_ids((trace.token_ids for trace in group.traces), folder, TRACES_NAME, vocab_sizes)


def replay_drafts(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    answers: Answers,
    *,
    sampling: Sampling,
    share: Share = ALONE,
) -> list[ReplayedDraft]:
    """Every draft along every response; one pass of the target over a response serves all drafts.

    Args:
        target: The model that generated the responses.
        drafts: By name.
        answers: Of the target.
        sampling: By which they were sampled.
        share: This process's part of the responses.
    """
    own = share.mine(answers.traces)
    replayed = share.together(list(replay_some(target, drafts, own, sampling=sampling, whose=share.words)))
    numbered = list(zip(answers.prompt_numbers, answers.traces, replayed, strict=True))
    return [
        ReplayedDraft(
            name,
            sampling.temperature,
            [ReplayedAnswer(prompt, trace.category, each[name], trace.task) for prompt, trace, each in numbered],
            has_small_head=head_ids(draft) is not None,
        )
        for name, draft in drafts.items()
    ]


def replay_some(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    traces: Sequence[Trace],
    *,
    sampling: Sampling,
    whose: str,
) -> Iterator[dict[str, Replay]]:
    """Every draft along some responses, one after the other."""
    passes = [
        Pass(partial(answer_logits, target, trace.prompt_ids, trace.answer_ids), rows=1, width=len(trace.token_ids))
        for trace in traces
    ]
    read = track(
        zip(traces, run_passes(target, passes), strict=True),
        description=f"replay at T={sampling.temperature:g}{whose}",
        total=len(passes),
        works=lambda read: len(read[0].token_ids),
        whole=sum(each.width for each in passes),
    )
    for trace, target_logits_TV in read:
        replays = {}
        for name, draft in drafts.items():
            vocab_size = shared_vocab_size(target, draft)
            draft_logits_TV = answer_logits(draft, trace.prompt_ids, trace.answer_ids)
            replays[name] = replay_answer(
                target_logits_TV[:, :vocab_size],
                draft_logits_TV[:, :vocab_size],
                trace.answer_ids,
                sampling=sampling,
                prompt_ids=first_tokens(target, trace.prompt_ids),
            )
        yield replays
