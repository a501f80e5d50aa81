"""Recorded responses on disk, in shards that a killed run continues.

settings.json in such a directory records, for each name, how its shards are made and their number.
"""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate, cycle
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from architectures.errors import UserError
from architectures.families.config_entries import TokenId
from architectures.files import (
    checked,
    parse_json,
    parsed,
    read_json_object,
    require_regular,
    shown,
    write_json,
    write_text,
)
from architectures.manifest import provenance
from architectures.settings import WHOLE, Holding
from eval.chat import Message
from eval.prompts import Prompt

SETTINGS_NAME = "settings.json"
REWRITTEN = "Delete this file and rerun its stage to write it again."
MOST_SHARDS = 10**6
LOCK_NAME = "settings.lock"
Item = TypeVar("Item")


class Claim(TypedDict):
    """Entry of settings.json for one name."""

    settings: dict[str, Any]
    num_shards: Annotated[int, Field(ge=0, le=MOST_SHARDS)]
    tokenizer: NotRequired[dict[str, Any]]
    versions: NotRequired[dict[str, Any]]


CLAIMS = TypeAdapter(dict[str, Claim])


def claim_shards(
    folder: Path,
    name: str,
    settings: Mapping[str, Any],
    *,
    num_shards: int,
    tokenizer: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Record how the shards of one name are made; return the paths of all of them, existing or not.

    Args:
        settings: Everything that decides their contents, as JSON values.
        tokenizer: From eval.models.tokenizer_identity, for readers without the target.

    Raises:
        UserError: If shards of this name were begun with other settings.
    """
    claims = read_claims(folder)
    if name in claims:
        reject_changes(folder, name, claims[name]["settings"], settings)
    else:
        claim: dict[str, Any] = {"settings": dict(settings), "num_shards": num_shards}
        if tokenizer is not None:
            claim["tokenizer"] = dict(tokenizer)
        claim["versions"] = provenance()["versions"]
        write_json({**claims, name: claim}, folder / SETTINGS_NAME)
    return shard_paths(folder, name, num_shards)


def write_shard(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, atomically."""
    write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), path)


def read_shard(path: Path) -> Iterator[dict[str, Any]]:
    for where, line in lines_of(path):
        yield parse_json(line, where, REWRITTEN)


def shard_lines(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield (file and line number, raw line) of all shards of one name, in order.

    Raises:
        UserError: If a shard is missing.
    """
    claims = read_claims(folder)
    if name not in claims:
        raise UserError(f"{folder}: contains no {name} responses. Run the stage that writes them.")
    paths = shard_paths(folder, name, claims[name]["num_shards"])
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise UserError(
            f"{folder}: {len(missing)} of {len(paths)} shards are missing, the first is {missing[0]}. "
            "Run the stage that writes them again: it continues."
        )
    for path in paths:
        yield from lines_of(path)


def lines_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (file and line number, raw line) of one shard."""
    require_regular(path, hint=REWRITTEN)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield f"{path}:{number}", line


def row_location(folder: Path, name: str, row: int) -> str:
    """Return file and line of a row counted from 0 over all shards: "data/train-00001.jsonl:7"."""
    for path in shard_paths(folder, name, read_claims(folder)[name]["num_shards"]):
        with path.open("rb") as file:
            num_rows = sum(1 for _ in file)
        if row < num_rows:
            return f"{path}:{row + 1}"
        row -= num_rows
    raise IndexError(f"{folder} has fewer {name} rows.")


def shard_paths(folder: Path, name: str, num_shards: int) -> list[Path]:
    return [folder / f"{name}-{index:05d}.jsonl" for index in range(num_shards)]


def read_claims(folder: Path) -> dict[str, Claim]:
    """Read settings.json; empty if there is none.

    Raises:
        UserError: If it is damaged.
    """
    path, hint = folder / SETTINGS_NAME, f"Delete {folder} and rerun its stage."
    return checked(CLAIMS, read_json_object(path, hint), str(path), hint) if path.exists() else {}


def reject_changes(folder: Path, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise UserError naming every setting that differs, with both values."""
    changes = [
        f"{key} was {shorten(old.get(key))}, is {shorten(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if changes:
        raise UserError(
            f"{folder}: its {name} responses were generated with other settings: {'; '.join(changes)}. "
            "Choose another run_name, or delete this directory to generate them again."
        )


def shorten(value: Any) -> str:
    """Format a setting for a message: fingerprints by their first twelve digits."""
    is_fingerprint = isinstance(value, str) and len(value) == 64
    return f"{value[:12]}…" if is_fingerprint else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class ShardPart:
    """Every n-th file, from the i-th on.

    Attributes:
        number: From 1.
    """

    number: int
    of: int

    def of_all(self, files: Sequence[Item]) -> Sequence[Item]:
        return files[self.number - 1 :: self.of]


EVERY_FILE = ShardPart(1, 1)


def missing_shards(folder: Path, names: Sequence[str]) -> list[Path]:
    claims = read_claims(folder)
    paths = [path for name in names for path in shard_paths(folder, name, claims[name]["num_shards"])]
    return [path for path in paths if not path.is_file()]


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock a directory against other jobs, to read and rewrite settings.json."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_NAME).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_known_ids(texts: Iterable[Sequence[int]], folder: Path, name: str, vocab_sizes: Mapping[Path, int]) -> None:
    """Raise UserError if a response has a token id outside a model's vocabulary.

    Args:
        texts: Prompt and response ids of one name, in reading order.
        vocab_sizes: Of every model that reads them, by its directory.

    Raises:
        UserError: Naming file and line, the first such id, and the model with the smallest vocabulary.
    """
    smallest = min(vocab_sizes, key=lambda model: vocab_sizes[model])
    for row, ids in enumerate(texts):
        unknown = unknown_id(ids, vocab_sizes[smallest])
        if unknown is not None:
            raise UserError(
                f"{row_location(folder, name, row)}: token id {unknown} is beyond the vocabulary of {smallest}, which "
                f"has vocab_size {vocab_sizes[smallest]}. Responses and models must share token ids: rerun the stage "
                "that wrote this file, or prune the draft from its target again."
            )


def require_rows_for_row(ids: Sequence[int], model: Path, vocab_size: int, where: str) -> None:
    """Raise UserError if a row of data has tokens outside a model's vocabulary, as its tokenizer may have more.

    Raises:
        UserError: Naming the row, the first such id, and the model.
    """
    unknown = unknown_id(ids, vocab_size)
    if unknown is not None:
        raise UserError(
            f"{where}: contains token id {unknown}, but the vocab_size of {model} is {vocab_size}. "
            "Fix or delete this row, or use the tokenizer that came with the model."
        )


def unknown_id(ids: Sequence[int], vocab_size: int) -> int | None:
    """Return the first id outside a vocabulary of this size; None if there is none."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return None
    return next(each for each in ids if not 0 <= each < vocab_size)


LogProbability = Annotated[float, Field(le=0, allow_inf_nan=False)]
TokenIds = Annotated[tuple[TokenId, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Trace:
    """One response of the target.

    Attributes:
        id: Unique among the traces of one name, ascending in the order of the prompts.
        source: The row its prompt came from; "#2" follows for the row's second turn, and so on.
        prompt_ids: The same as token ids, ready to be continued.
        response_ids: The response; ends with the stop token if finish_reason is "stop".
        response: The response as text, without special tokens.
        finish_reason: "length" if max_new_tokens ended it.
        tools: Functions offered to the target, if any; like chat_template_kwargs, rendered into the prompt.
        response_logp: log p(y_t) in nats of every token under the distribution it was drawn from: after penalty,
            temperature and filters. None if greedy, and for sampled responses of earlier versions.
        temperature: It was generated with; None if it was given.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: Annotated[int, Field(ge=0)]
    source: str
    messages: tuple[Message, ...]
    prompt_ids: TokenIds
    response_ids: TokenIds
    response: str
    finish_reason: Literal["stop", "length"]
    category: str | None = None
    task: str | None = None
    response_logp: tuple[LogProbability, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    temperature: float | None = None

    def __post_init__(self) -> None:
        if self.response_logp is not None and len(self.response_logp) != len(self.response_ids):
            raise ValueError(
                f"response_logp must have one value for each of the {len(self.response_ids)} response tokens, got "
                f"{len(self.response_logp)}."
            )

    @property
    def token_ids(self) -> tuple[int, ...]:
        return (*self.prompt_ids, *self.response_ids)


@dataclass(frozen=True)
class DecodingSettings:
    """How the target generates its responses.

    Attributes:
        temperature: Of several, one per prompt in turn.
        top_p: As in eval.config.SamplingConfig, like top_k, min_p and repetition_penalty.
        shard_size: Prompts per shard, the unit a rerun continues from.
        max_prompt_len: Tokens; longer prompts are dropped and counted.
        served_model: A server's name for the model that generates instead of the target, such as its quantised form.
        batch_tokens: Maximum prompt tokens of a batch, unless it is a single prompt; None for no limit.
    """

    max_new_tokens: int
    temperature: float | tuple[float, ...]
    top_p: float
    batch_size: int
    shard_size: int
    max_prompt_len: int
    seed: int
    dtype: str
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    served_model: str | None = None
    holding: Holding = WHOLE
    batch_tokens: int | None = None

    @property
    def temperatures(self) -> tuple[float, ...]:
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)

    @property
    def claimed(self) -> dict[str, Any]:
        """Settings to record with responses; those added in later versions only if they change the output.

        batch_tokens, which follows from batch_size, is left out.
        The placement of the weights is left out, like the device; their number of bits is not: it makes another model.
        """
        defaults = {each.name: each.default for each in fields(self)}  # MISSING if there is no default
        values = {name: value for name, value in asdict(self).items() if name not in ("holding", "batch_tokens")}
        claimed = {name: value for name, value in values.items() if value != defaults[name]}
        if isinstance(self.temperature, tuple):
            claimed["temperature"] = list(self.temperature)
        return claimed | self.holding.claimed


def prompt_record(prompt: Prompt) -> dict[str, Any]:
    """Return the recorded form of a prompt; optional fields only if set."""
    optional = ("category", "task", "tools", "chat_template_kwargs")
    return {name: value for name, value in asdict(prompt).items() if name not in optional or value}


@dataclass(frozen=True)
class RecordedTurn:
    """One user turn of a prompt, whose later_turns follow it, and the temperature of the response."""

    id: int
    prompt: Prompt
    number: int = 1
    temperature: float = 0.0

    @property
    def source(self) -> str:
        """The row, followed by the turn's number unless it is the first."""
        return self.prompt.source if self.number == 1 else f"{self.prompt.source}#{self.number}"

    def following(self, response: str) -> "RecordedTurn":
        return replace(self, id=self.id + 1, number=self.number + 1, prompt=self.prompt.following(response))


def first_turns(prompts: Sequence[Prompt], temperatures: Sequence[float] = (0.0,)) -> list[RecordedTurn]:
    """Return the first turn of each prompt, temperatures in turn; ids leave gaps for the later turns."""
    ids = accumulate((1 + len(prompt.later_turns) for prompt in prompts), initial=0)
    numbered = zip(ids, prompts, cycle(temperatures), strict=False)  # the last id is the number of all turns
    return [RecordedTurn(first_id, prompt, temperature=temperature) for first_id, prompt, temperature in numbered]


def num_turns(turns: Sequence[RecordedTurn]) -> int:
    return sum(1 + len(turn.prompt.later_turns) for turn in turns)


def read_traces(out: Path, name: str) -> list[Trace]:
    """Read the responses of one name, in the order of their prompts.

    Raises:
        UserError: If they are incomplete or damaged.
    """
    traces: list[Trace] = []
    for where, line in shard_lines(out, name):
        trace = parsed_trace(where, line)
        if traces and trace.id <= traces[-1].id:
            raise UserError(f"{where}: id must be above the previous {traces[-1].id}, got {trace.id}. {REWRITTEN}")
        traces.append(trace)
    return traces


def parsed_trace(where: str, line: bytes) -> Trace:
    """Parse a row of a shard; UserError with its location if it is not a valid response."""
    trace = parsed(TRACE, line, where, REWRITTEN)
    for index, message in enumerate(trace.messages):
        if not {"role", "content"} <= message.keys():
            raise UserError(f"{where}: messages.{index} must have role and content, got {shown(message)}. {REWRITTEN}")
    return trace


def continues(earlier_ids: Sequence[int], later_ids: Sequence[int]) -> bool:
    return tuple(later_ids[: len(earlier_ids)]) == tuple(earlier_ids)


def rows_of(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    rows = [asdict(trace) for trace in sorted(traces, key=lambda trace: trace.id)]
    optional = ("response_logp", "tools", "chat_template_kwargs", "temperature")
    absent = (None, (), {})
    return [{name: value for name, value in row.items() if name not in optional or value not in absent} for row in rows]


TRACE = TypeAdapter(Trace)
