"""The target's answers to prompts, on disk: written shard by shard and read back.

A killed run continues at its first missing shard and ends in the same bytes as one that was left alone.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, TypeAdapter
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from architectures.entry_kinds import TokenId
from architectures.errors import UserError
from architectures.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.progress import track
from architectures.typed_file import parsed
from eval.asked_turns import Turn, first_turns, num_turns
from eval.decoding.batch import Emitted
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import decode_steps, finished
from eval.decoding.texts import DRAWS, Decoded, Limits
from eval.decoding.wanted import Wanted
from eval.models import context_length_of, load_model, load_tokenizer, stop_token_ids, text_config, tokenizer_identity
from eval.older_answers import adopt_older_answers
from eval.prompt_lengths import drop_too_long
from eval.shards import REWRITTEN, claim_shards, shard_lines, write_shard
from eval.tasks.forms import Message, Prompt
from eval.tasks.rendering import render_prompt, template_hash
from eval.token_ids import require_rows_for_row
from eval.trace_laws import require_messages

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

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return (*self.prompt_ids, *self.answer_ids)


@dataclass(frozen=True)
class DecodingSettings:
    """How the target writes its answers.

    Attributes:
        max_new_tokens: Tokens of an answer at most.
        temperature: Divides the logits; 0 is greedy.
        top_p: Probability mass sampled from; 1 keeps everything.
        batch_size: Prompts answered together.
        shard_size: Prompts per shard, the unit a rerun continues from.
        max_prompt_len: Tokens; longer prompts are dropped and counted.
        seed: Of the random draws.
        dtype: Number type of the target while it writes.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    batch_size: int
    shard_size: int
    max_prompt_len: int
    seed: int
    dtype: str


def write_traces(
    target: Path,
    prompts: Sequence[Prompt],
    out: Path,
    settings: DecodingSettings,
    *,
    name: str = "train",
    answered_by: "type[Answerer] | None" = None,
) -> None:
    """Let the target answer every prompt, into out/<name>-00000.jsonl and so on.

    Shards that exist are kept; the target is loaded only if one is missing. Prompts longer than max_prompt_len, or
    whose answers might exceed what the target was made for, are dropped, and so is the rest of a conversation that
    grows beyond it; stderr says how many.

    Args:
        target: Its folder.
        prompts: To be answered.
        out: Folder of the answers.
        settings: How the target writes.
        name: First part of the shards' names.
        answered_by: What writes them: an Answerer where left out, or an eval.state_keeper.StateKeeper.

    Raises:
        UserError: If out holds answers of this name made otherwise, or no prompt is short enough.
    """
    adopt_older_answers(out, target)
    settings, tokenizer = within_context(target, settings), load_tokenizer(target)
    turns = first_turns(drop_too_long(prompts, tokenizer, settings.max_prompt_len))
    chunks = [turns[start : start + settings.shard_size] for start in range(0, len(turns), settings.shard_size)]
    record = {
        "target": fingerprint_checkpoint(target),
        "template": template_hash(tokenizer),
        "prompts": fingerprint_value([asked(prompt) for prompt in prompts]),
        **asdict(settings),
        **claimed_draws(settings.temperature),
    }
    answerer = (answered_by or Answerer)(target, tokenizer, settings, name=name)
    identity, states = tokenizer_identity(tokenizer), answerer.keeps_states
    paths = claim_shards(out, name, record, num_shards=len(chunks), tokenizer=identity, hidden_states=states)
    missing = [(path, chunk) for path, chunk in zip(paths, chunks, strict=True) if not answerer.is_written(path)]
    write_missing(missing, answerer, name=name)


def asked(prompt: Prompt) -> dict[str, Any]:
    """What a folder of answers claims of a prompt; category and task only where there is one."""
    return {
        name: value for name, value in asdict(prompt).items() if name not in ("category", "task") or value is not None
    }


def claimed_draws(temperature: float) -> dict[str, str]:
    """What a folder of texts claims of its random numbers; nothing where none decided."""
    return {} if temperature == 0 else {"draws": DRAWS}


def read_traces(out: Path, name: str) -> list[Trace]:
    """The answers of one name, in the order of their prompts.

    Raises:
        UserError: If they are incomplete or damaged.
    """
    traces: list[Trace] = []
    for where, line in shard_lines(out, name):
        trace = parsed(TRACE, line, where, REWRITTEN)
        require_messages(trace.messages, where)
        if traces and trace.id <= traces[-1].id:
            raise UserError(f"{where}: id must be above the {traces[-1].id} before it, got {trace.id}. {REWRITTEN}")
        traces.append(trace)
    return traces


def continues(earlier_ids: Sequence[int], later_ids: Sequence[int]) -> bool:
    """Whether the later tokens begin with all of the earlier ones."""
    return tuple(later_ids[: len(earlier_ids)]) == tuple(earlier_ids)


def within_context(target: Path, settings: DecodingSettings) -> DecodingSettings:
    """The settings, with prompts no longer than leaves room for a whole answer in what the target was made for.

    Raises:
        UserError: If there is no room for a prompt.
    """
    limit = context_length_of(target)
    if limit is None:
        return settings
    room = limit.tokens - settings.max_new_tokens
    if room < 1:
        raise UserError(
            f"{target}: {limit.origin}, which answers of max_new_tokens={settings.max_new_tokens} leave no room for a "
            "prompt in. Lower max_new_tokens."
        )
    return replace(settings, max_prompt_len=min(settings.max_prompt_len, room))


Rendered = tuple[list[int], Turn]  # the ids of a conversation so far, and its turn


class Answerer:
    """The target, loaded when it is first asked."""

    keeps_states: ClassVar[bool] = False  # whether hidden states are written beside the answers

    def __init__(
        self, target: Path, tokenizer: PreTrainedTokenizerBase, settings: DecodingSettings, *, name: str
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.settings = settings
        self.name = name

    @cached_property
    def model(self) -> PreTrainedModel:
        """The target's weights."""
        return load_model(self.target, dtype=self.settings.dtype)

    @cached_property
    def vocab_size(self) -> int:
        """Rows of its embeddings."""
        return text_config(self.target).vocab_size

    def is_written(self, path: Path) -> bool:
        """Whether a shard is there, with all that belongs to it."""
        return path.is_file()

    def write(self, path: Path, turns: Sequence[Turn]) -> Iterator[Trace]:
        """Yield the answers of a shard as they come; it is written when it is complete."""
        traces = []
        for trace in self.answer(turns):
            traces.append(trace)
            yield trace
        write_shard(path, rows_of(traces))

    def answer(self, turns: Sequence[Turn]) -> Iterator[Trace]:
        """The answers to first turns and all that follow them, in no particular order."""
        while turns:
            following = []
            for turn, trace in self.answer_each(turns):
                yield trace
                if turn.later_turns:
                    following.append(turn.following(trace.answer))
            turns = following

    def answer_each(self, turns: Sequence[Turn]) -> Iterator[tuple[Turn, Trace]]:
        """One answer a turn, batch by batch in the order of their lengths; turns that are too long have none."""
        rendered = [(self.render(turn), turn) for turn in turns]
        fitting = [(ids, turn) for ids, turn in rendered if len(ids) <= self.settings.max_prompt_len]
        fitting.sort(key=lambda pair: len(pair[0]))
        for start in range(0, len(fitting), self.settings.batch_size):
            yield from self.answer_batch(fitting[start : start + self.settings.batch_size])

    def render(self, turn: Turn) -> list[int]:
        """A turn as the target reads it."""
        ids = render_prompt(self.tokenizer, turn.messages)
        require_rows_for_row(ids, self.target, self.vocab_size, turn.source)
        return ids

    def answer_batch(self, batch: Sequence[Rendered]) -> Iterator[tuple[Turn, Trace]]:
        """The answers to some turns that are decoded together, as they end."""
        for place, decoded in finished(self.decode(batch)):
            prompt_ids, turn = batch[place]
            yield turn, self.trace(turn, prompt_ids, decoded)

    def decode(self, batch: Sequence[Rendered]) -> Iterator[Emitted | tuple[int, Decoded]]:
        """Decode some turns together, step by step."""
        wanted = Wanted(
            [ids for ids, _ in batch],
            Limits(self.settings.max_new_tokens, stop_token_ids(self.model)),
            Sampling(self.settings.temperature, self.settings.top_p),
        )
        seeds = [derive_seed(self.settings.seed, self.name, turn.id) for _, turn in batch]
        return decode_steps([self.model], wanted, row_seeds=seeds)

    def trace(self, turn: Turn, prompt_ids: Sequence[int], decoded: Decoded) -> Trace:
        """One answered turn, in ids and in words."""
        text = self.tokenizer.decode(
            list(decoded.token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return Trace(
            id=turn.id,
            source=turn.source,
            messages=turn.messages,
            prompt_ids=tuple(prompt_ids),
            answer_ids=decoded.token_ids,
            answer=cast("str", text),
            finish_reason="stop" if decoded.stopped else "length",
            category=turn.category,
            task=turn.task,
        )


def write_missing(missing: Sequence[tuple[Path, Sequence[Turn]]], answerer: Answerer, *, name: str) -> None:
    """Write shards one after another under a progress bar; end with a line that says how fast it went."""
    start_s = time.monotonic()
    total = sum(num_turns(turns) for _, turns in missing)
    each = (trace for path, turns in missing for trace in answerer.write(path, turns))
    num_answers = num_tokens = 0
    for trace in track(each, description=f"{name} answers", total=total):
        num_answers += 1
        num_tokens += len(trace.answer_ids)
    if num_answers:
        elapsed_s = time.monotonic() - start_s
        print(
            f"{name}: {num_answers} answers, {num_tokens} tokens, {num_tokens / elapsed_s:.0f} tokens/s",
            file=sys.stderr,
        )


def rows_of(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Answers as the rows of a shard."""
    return [asdict(trace) for trace in sorted(traces, key=lambda trace: trace.id)]


def derive_seed(seed: int, name: str, index: int) -> int:
    """A seed for one prompt, unrelated to those of its neighbours."""
    return int.from_bytes(sha256(f"{seed}/{name}/{index}".encode()).digest()[:8], "big", signed=True)


TRACE = TypeAdapter(Trace)
