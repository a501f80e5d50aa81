"""The target's answers to prompts, as they stand on a disk."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from architectures.errors import UserError
from architectures.families.config_entries import TokenId
from architectures.files.reading import parsed, shown
from architectures.settings.holding import WHOLE, Holding
from eval.answers.shards import REWRITTEN, shard_lines
from eval.prompts import Message, Prompt

LogProbability = Annotated[float, Field(le=0, allow_inf_nan=False)]
TokenIds = Annotated[tuple[TokenId, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Trace:
    """One answer of the target.

    Attributes:
        id: Unique among the traces of one name, ascending in the order of the prompts.
        source: The row its prompt came from; "#2" follows for the row's second turn, and so on.
        messages: The conversation the target answered.
        prompt_ids: The same as token ids, ready to be continued.
        answer_ids: The continuation; ends with the stop token if finish_reason is "stop".
        answer: The same as text, without special tokens.
        finish_reason: "stop" if the target ended it, "length" if the limit did.
        category: The prompt's, if it has one.
        task: The prompt's, likewise.
        answer_logp: log p(y_t) in nats of every token of the answer, of what it was drawn from: after penalty,
            temperature and filters. None of greedy answers, and of sampled ones that an earlier widedraft wrote.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: Annotated[int, Field(ge=0)]
    source: str
    messages: tuple[Message, ...]
    prompt_ids: TokenIds
    answer_ids: TokenIds
    answer: str
    finish_reason: Literal["stop", "length"]
    category: str | None = None
    task: str | None = None
    answer_logp: tuple[LogProbability, ...] | None = None

    def __post_init__(self) -> None:
        if self.answer_logp is not None and len(self.answer_logp) != len(self.answer_ids):
            raise ValueError(
                f"answer_logp must have one value for each of the {len(self.answer_ids)} tokens of the answer, got "
                f"{len(self.answer_logp)}."
            )

    @property
    def token_ids(self) -> tuple[int, ...]:
        return (*self.prompt_ids, *self.answer_ids)


@dataclass(frozen=True)
class DecodingSettings:
    """How the target writes its answers.

    Attributes:
        max_new_tokens: Tokens of an answer at most.
        temperature: Divides the logits; 0 is greedy.
        top_p: As eval.config.SamplingConfig has it, like top_k, min_p and repetition_penalty.
        batch_size: Prompts answered together.
        shard_size: Prompts per shard, the unit a rerun continues from.
        max_prompt_len: Tokens; longer prompts are dropped and counted.
        seed: Of the random draws.
        dtype: Number type of the target while it writes.
        holding: How it is held.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    batch_size: int
    shard_size: int
    max_prompt_len: int
    seed: int
    dtype: str
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    holding: Holding = WHOLE

    @property
    def claimed(self) -> dict[str, Any]:
        """As a folder of answers claims them: what is younger than its name stands there where it changes a choice.

        Where the target's weights are does not, like the device; in fewer bits it is another model.
        """
        unsaid = {field.name: field.default for field in fields(self)}  # MISSING of those that always stand there
        values = {name: value for name, value in asdict(self).items() if name != "holding"}
        said = {name: value for name, value in values.items() if value != unsaid[name]}
        return said | self.holding.claimed


def asked(prompt: Prompt) -> dict[str, Any]:
    """What a folder of answers claims of a prompt; category and task only where there is one."""
    return {
        name: value for name, value in asdict(prompt).items() if name not in ("category", "task") or value is not None
    }


@dataclass(frozen=True)
class Turn:
    """One question to the target, and the questions that follow it in the same conversation."""

    id: int
    row: str
    number: int
    messages: tuple[Message, ...]
    later_turns: tuple[str, ...]
    category: str | None
    task: str | None

    @property
    def source(self) -> str:
        """The row, and which of its turns this is unless it is the first."""
        return self.row if self.number == 1 else f"{self.row}#{self.number}"

    def following(self, answer: str) -> "Turn":
        """The next turn of the conversation, once this one is answered."""
        question, *later_turns = self.later_turns
        messages = ({"role": "assistant", "content": answer}, {"role": "user", "content": question})
        return replace(
            self,
            id=self.id + 1,
            number=self.number + 1,
            messages=(*self.messages, *messages),
            later_turns=tuple(later_turns),
        )


def first_turns(prompts: Sequence[Prompt]) -> list[Turn]:
    """The first turn of each prompt; ids leave room for its later ones."""
    ids = accumulate((1 + len(prompt.later_turns) for prompt in prompts), initial=0)
    return [
        Turn(first_id, prompt.source, 1, prompt.messages, prompt.later_turns, prompt.category, prompt.task)
        for first_id, prompt in zip(ids, prompts, strict=False)  # the last sum is the number of all turns
    ]


def num_turns(turns: Sequence[Turn]) -> int:
    """How many answers first turns and all that follow them have."""
    return sum(1 + len(turn.later_turns) for turn in turns)


def read_traces(out: Path, name: str) -> list[Trace]:
    """The answers of one name, in the order of their prompts.

    Raises:
        UserError: If they are incomplete or damaged.
    """
    traces: list[Trace] = []
    for where, line in shard_lines(out, name):
        trace = parsed_trace(where, line)
        if traces and trace.id <= traces[-1].id:
            raise UserError(f"{where}: id must be above the {traces[-1].id} before it, got {trace.id}. {REWRITTEN}")
        traces.append(trace)
    return traces


def parsed_trace(where: str, line: bytes) -> Trace:
    """A row of a shard as an answer, or UserError that says where it is and why it is none."""
    trace = parsed(TRACE, line, where, REWRITTEN)
    for index, message in enumerate(trace.messages):
        if not {"role", "content"} <= message.keys():
            raise UserError(f"{where}: messages.{index} must have role and content, got {shown(message)}. {REWRITTEN}")
    return trace


def continues(earlier_ids: Sequence[int], later_ids: Sequence[int]) -> bool:
    """Whether the later tokens begin with all of the earlier ones."""
    return tuple(later_ids[: len(earlier_ids)]) == tuple(earlier_ids)


def rows_of(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Answers as the rows of a shard."""
    rows = [asdict(trace) for trace in sorted(traces, key=lambda trace: trace.id)]
    return [{name: value for name, value in row.items() if (name, value) != ("answer_logp", None)} for row in rows]


TRACE = TypeAdapter(Trace)
