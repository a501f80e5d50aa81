"""The target's own answers to the prompts of a scorecard, at one temperature each."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from architectures.settings.holding import WHOLE, Holding
from architectures.sharing import ALONE, Share
from eval.answers.token_ids import require_known_ids
from eval.answers.traces import DecodingSettings, Trace, read_traces
from eval.answers.writing import Kind
from eval.config import EvalConfig, SamplingConfig
from eval.decoding.answering import write_traces
from eval.models.loading import text_config
from eval.prompts import Prompt

TRACES_NAME = "eval"


@dataclass(frozen=True)
class Answers:
    """The target's answers at one temperature, and the number of the prompt each of them belongs to."""

    traces: Sequence[Trace]
    prompt_numbers: Sequence[int]

    def first_turns(self) -> list[tuple[int, Trace]]:
        """The index and the answer of each prompt's first turn."""
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
    """Let the target answer, unless it has, and read its answers; of several processes each writes a part of them."""
    folder = answers_folder(out, temperature, config.sampling)
    settings = DecodingSettings(
        max_new_tokens=config.max_new_tokens,
        temperature=temperature,
        **(config.sampling if temperature > 0 else greedy_part(config.sampling)).model_dump(),
        batch_size=config.batch_size,
        shard_size=config.batch_size,
        max_prompt_len=config.max_prompt_len,
        seed=seed,
        dtype=config.dtype,
        steps=config.answer_steps,
        holding=holding,
    )
    write_traces(target, prompts, folder, settings, name=TRACES_NAME, answered_by=answered_by, share=share)
    traces = read_traces(folder, TRACES_NAME)
    return Answers(traces, prompt_numbers(traces, prompts))


def greedy_part(sampling: SamplingConfig) -> SamplingConfig:
    """What of it decides a greedy text."""
    return SamplingConfig(repetition_penalty=sampling.repetition_penalty)


def require_rows_of(
    models: Sequence[Path], answers: Mapping[float, Answers], out: Path, sampling: SamplingConfig
) -> None:
    """Refuse answers with a token that one of the models has no row for; `out` as in `record_answers`."""
    vocab_sizes = {folder: text_config(folder).vocab_size for folder in models}
    for temperature, group in answers.items():
        folder = answers_folder(out, temperature, sampling)
        require_known_ids((trace.token_ids for trace in group.traces), folder, TRACES_NAME, vocab_sizes)


def answers_folder(out: Path, temperature: float, sampling: SamplingConfig = SamplingConfig()) -> Path:  # noqa: B008
    """Where a scorecard's answers at one temperature are: "answers/T1", "answers/T0.8,top_p=0.9"."""
    chosen = (f"{name}={value:g}" for name, value in sampling.that_count(temperature).items())
    return out / "answers" / ",".join([f"T{temperature:g}", *chosen])


def prompt_numbers(traces: Sequence[Trace], prompts: Sequence[Prompt]) -> list[int]:
    """Which prompt each answer belongs to, counted among those that were not too long to be asked."""
    sources = {trace.source for trace in traces}
    num_turns = (1 + len(prompt.later_turns) for prompt in prompts if prompt.source in sources)
    first_ids = list(accumulate(num_turns, initial=0))
    return [bisect_right(first_ids, trace.id) - 1 for trace in traces]


def context_of(answers: Mapping[float, Answers]) -> list[int]:
    """What steps are timed on: a text of typical length, at the temperature that was scored first."""
    return typical_context(next(iter(answers.values())).traces)


class Answered(Protocol):
    """A prompt with its answer."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...

    @property
    def answer_ids(self) -> Sequence[int]: ...


def typical_context(traces: Sequence[Answered]) -> list[int]:
    """Prompt and half of the answer, of the text whose length is the median one."""
    texts = sorted(([*trace.prompt_ids, *trace.answer_ids[: len(trace.answer_ids) // 2]] for trace in traces), key=len)
    return texts[len(texts) // 2]


def longest_text(answers: Mapping[float, Answers]) -> int:
    """Tokens of the longest prompt with its answer."""
    return max(len(t.prompt_ids) + len(t.answer_ids) for group in answers.values() for t in group.traces)
