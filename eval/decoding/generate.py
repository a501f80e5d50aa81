"""Generate the target's responses to prompts, shard by shard.

A killed run continues at its first missing shard and produces the same bytes as an uninterrupted one.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from architectures.console import Advance, no_progress, progress
from architectures.errors import UserError
from architectures.manifest import fingerprint_checkpoint, fingerprint_value
from architectures.sharing import ALONE, Share
from architectures.target_files import stop_ids
from eval.chat import end_of_turn, render_prompt, template_hash
from eval.decoding.cuda_graphs import generation_opener
from eval.decoding.kv_cache import Opener
from eval.decoding.sampling import DRAWS, Decoded, Limits, Sampling
from eval.decoding.speculative import DecodingRequest, Emitted, decode_steps
from eval.large_targets import load_target
from eval.models import (
    context_length_of,
    load_tokenizer,
    require_finite,
    stop_token_ids,
    text_config,
    tokenizer_identity,
)
from eval.prompts import Prompt, drop_too_long, rendered
from eval.replay import response_logits
from eval.responses import (
    EVERY_FILE,
    DecodingSettings,
    RecordedTurn,
    ShardPart,
    Trace,
    claim_shards,
    first_turns,
    num_turns,
    one_at_a_time,
    prompt_record,
    require_rows_for_row,
    rows_of,
    shard_paths,
    write_shard,
)

LOGP_DIGITS = 6  # of log-probabilities in nats: more than float32 has for most

Rendered = tuple[list[int], RecordedTurn]  # prompt ids of a conversation so far, and its turn
Missing = Sequence[tuple[Path, Sequence[RecordedTurn]]]  # missing shards, and the first turns of each


Kind = Callable[..., "LocalGenerator"]  # LocalGenerator, or an engine of eval.engines.external_generate


def write_traces(
    target: Path,
    prompts: Sequence[Prompt],
    out: Path,
    settings: DecodingSettings,
    *,
    name: str = "train",
    generated_by: Kind | None = None,
    part: ShardPart = EVERY_FILE,
    share: Share = ALONE,
) -> None:
    """Generate responses to prompts into out/<name>-00000.jsonl and so on.

    Existing shards are kept; the target is loaded only if one is missing. Prompts longer than max_prompt_len, or whose
    responses might exceed the target's context length, are dropped, and so is the rest of a conversation that outgrows
    it; stderr reports the count.

    Args:
        name: Prefix of the shards' names.
        generated_by: Generates the responses: LocalGenerator by default, or an engine (eval.engines.external_generate).
        part: The files to write; other jobs may write the rest at the same time.
        share: This process's share of them. All files of the part exist on return.

    Raises:
        UserError: If out has responses of this name with other settings, or no prompt is short enough.
    """
    settings, tokenizer = within_context(target, settings), load_tokenizer(target)
    generator = (generated_by or LocalGenerator)(target, tokenizer, settings, name=name, share=share)
    lengths = [len(ids) for _, ids in rendered(tokenizer, prompts)]
    turns = first_turns(drop_too_long(prompts, lengths, settings.max_prompt_len), settings.temperatures)
    chunks = [turns[start : start + settings.shard_size] for start in range(0, len(turns), settings.shard_size)]
    record = {
        "target": fingerprint_checkpoint(target),
        "template": template_hash(tokenizer),
        "prompts": fingerprint_value([prompt_record(prompt) for prompt in prompts]),
        **settings.claimed,
        **claimed_draws(max(settings.temperatures), generator.draws),
    }

    def missing_shards() -> list[Path]:
        with nullcontext() if part == EVERY_FILE else one_at_a_time(out):
            paths = claim_shards(out, name, record, num_shards=len(chunks), tokenizer=tokenizer_identity(tokenizer))
        return [path for path in part.of_all(paths) if not path.is_file()]

    by_path = dict(zip(shard_paths(out, name, len(chunks)), chunks, strict=True))
    missing = [(path, by_path[path]) for path in generator.mine(share.lead(missing_shards))]

    # This process's shards, with a progress bar advanced by decoding steps.
    start_s, num_written, num_tokens = time.monotonic(), 0, 0
    total, whole = sum(num_turns(turns) for _, turns in missing), generator.work_of(missing)
    with progress(f"{name} responses{share.words}", total=total, whole=whole) as generator.advance:
        for trace in generator.write_all(missing):
            generator.advance(0)
            num_written, num_tokens = num_written + 1, num_tokens + len(trace.response_ids)
    responses, tokens = map(sum, zip(*share.exchange((num_written, num_tokens)), strict=True))
    if responses:
        rate = tokens / (time.monotonic() - start_s)
        print(f"{name}: {responses} responses, {tokens} tokens, {rate:.0f} tokens/s", file=sys.stderr)


def sampling_of(settings: DecodingSettings, temperature: float) -> Sampling:
    return Sampling(temperature, settings.top_p, settings.top_k, settings.min_p, settings.repetition_penalty)


def claimed_draws(temperature: float, draws: str = DRAWS) -> dict[str, str]:
    """Return the random number scheme to record with responses; empty at temperature 0."""
    return {} if temperature == 0 else {"draws": draws}


def within_context(target: Path, settings: DecodingSettings) -> DecodingSettings:
    """Limit max_prompt_len so that prompt and response fit the context length; UserError if no token is left."""
    limit = context_length_of(target)
    if limit is None:
        return settings
    longest = limit.tokens - settings.max_new_tokens
    if longest < 1:
        raise UserError(
            f"{target}: {limit.origin}; max_new_tokens={settings.max_new_tokens} leaves no "
            "tokens for a prompt. Lower max_new_tokens."
        )
    return replace(settings, max_prompt_len=min(settings.max_prompt_len, longest))


PASS_ROWS = 32  # rows that cost as much as reading the weights in a pass: 48 rows took twice the time of 8 on two cores


@dataclass(eq=False)
class LocalGenerator:
    """Response generator; loads the target when first needed.

    Attributes:
        draws: How sampled tokens follow from seeds.
        is_checked: In float16, whose range large models exceed.
    """

    target: Path
    tokenizer: PreTrainedTokenizerBase
    settings: DecodingSettings
    _: KW_ONLY
    name: str
    share: Share = ALONE
    draws: str = DRAWS
    advance: Advance = no_progress
    is_checked: bool = False

    @cached_property
    def model(self) -> PreTrainedModel:
        return load_target(self.target, dtype=self.settings.dtype, holding=self.settings.holding)

    @cached_property
    def opener(self) -> Opener:
        return generation_opener(self.model)

    @cached_property
    def vocab_size(self) -> int:
        return text_config(self.target).vocab_size

    def mine(self, missing: Sequence[Path]) -> Sequence[Path]:
        return self.share.mine(missing)

    def work_of(self, missing: Missing) -> float:
        return sum(work_of(num_turns(turns), self.settings.batch_size) for _, turns in missing)

    def write_all(self, missing: Missing) -> Iterator[Trace]:
        for path, turns in missing:
            yield from self.write(path, turns)

    def write(self, path: Path, turns: Sequence[RecordedTurn]) -> Iterator[Trace]:
        """Write a shard once complete; yield its responses as they finish."""
        traces = []
        for trace in self.generate(turns):
            traces.append(trace)
            yield trace
        write_shard(path, rows_of(traces))

    def generate(self, turns: Sequence[RecordedTurn]) -> Iterator[Trace]:
        """Yield responses to first turns and all later ones, in no particular order."""
        while turns:
            following = []
            for turn, trace in self.generate_each(turns):
                yield trace
                if turn.prompt.later_turns:
                    following.append(turn.following(trace.response))
            turns = following

    def generate_each(self, turns: Sequence[RecordedTurn]) -> Iterator[tuple[RecordedTurn, Trace]]:
        """Yield one response per turn, in batches of one temperature; turns that are too long have none."""
        rendered = [(self.render(turn), turn) for turn in turns]
        fitting = [(ids, turn) for ids, turn in rendered if len(ids) <= self.settings.max_prompt_len]
        fitting.sort(key=lambda pair: pair[1].temperature)
        for temperature, own in groupby(fitting, key=lambda pair: pair[1].temperature):
            yield from self.generate_at(temperature, list(own))

    def generate_at(self, temperature: float, fitting: Sequence[Rendered]) -> Iterator[tuple[RecordedTurn, Trace]]:
        """Yield one response per turn, in batches sorted by length; long prompts are in smaller batches."""
        sampling, size, start = sampling_of(self.settings, temperature), self.settings.batch_size, 0
        fitting = sorted(fitting, key=lambda pair: len(pair[0]))
        while start < len(fitting):
            longest = len(fitting[start : start + size][-1][0])
            rows = max(1, min(size, (self.settings.batch_tokens or size * longest) // longest))
            yield from self.generate_batch(fitting[start : start + rows], sampling)
            start += rows

    def render(self, turn: RecordedTurn) -> list[int]:
        ids = render_prompt(self.tokenizer, turn.prompt)
        require_rows_for_row(ids, self.target, self.vocab_size, turn.source)
        return ids

    def generate_batch(self, batch: Sequence[Rendered], sampling: Sampling) -> Iterator[tuple[RecordedTurn, Trace]]:
        """Yield responses of one batch as they finish, advancing the progress bar by steps."""
        work = PASS_ROWS + len(batch)
        step_work, steps, emitted = work / self.settings.max_new_tokens, 0, Counter[int]()
        for event in self.decode(batch, sampling):
            if isinstance(event, tuple):
                prompt_ids, turn = batch[event[0]]
                yield turn, self.trace(turn, prompt_ids, event[1])
                continue
            emitted[event.index] += 1
            if emitted[event.index] > steps:
                steps += 1
                self.advance(step_work, items=0)
        self.advance(work - steps * step_work, items=0)

    def decode(self, batch: Sequence[Rendered], sampling: Sampling) -> Iterator[Emitted | tuple[int, Decoded]]:
        if self.settings.dtype == "float16" and not self.is_checked:
            ids, _ = max(batch, key=lambda rendered: len(rendered[0]))
            require_finite(response_logits(self.model, ids[:-1] or ids, ids[-1:]), self.model)
            self.is_checked = True
        wanted = DecodingRequest(
            [ids for ids, _ in batch],
            Limits(self.settings.max_new_tokens, stop_token_ids(self.model)),
            sampling,
        )
        seeds = [derive_seed(self.settings.seed, self.name, turn.id) for _, turn in batch]
        return decode_steps([self.model], wanted, row_seeds=seeds, opener=self.opener)

    @cached_property
    def end_of_turn(self) -> int | None:
        return end_of_turn(self.tokenizer, stop_ids(self.target))

    def trace(self, turn: RecordedTurn, prompt_ids: Sequence[int], decoded: Decoded) -> Trace:
        if self.end_of_turn in decoded.token_ids[:-1]:
            raise UserError(
                f"{self.target}: responses continue after {self.tokenizer.decode([self.end_of_turn])!r}, which ends "
                f"turns in its chat template. Add token {self.end_of_turn} to eos_token_id in generation_config.json."
            )
        text = self.tokenizer.decode(
            list(decoded.token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return Trace(
            id=turn.id,
            source=turn.source,
            messages=turn.prompt.messages,
            prompt_ids=tuple(prompt_ids),
            response_ids=decoded.token_ids,
            response=cast("str", text),
            finish_reason="stop" if decoded.stopped else "length",
            category=turn.prompt.category,
            task=turn.prompt.task,
            tools=turn.prompt.tools,
            chat_template_kwargs=turn.prompt.chat_template_kwargs,
            response_logp=tuple(round(logp, LOGP_DIGITS) for logp in decoded.logp) or None,
            temperature=turn.temperature,
        )


def work_of(count: int, batch_size: int) -> int:
    """Estimate the work of `count` responses: a small last batch takes hardly less than a full one."""
    return -(-count // batch_size) * PASS_ROWS + count


def derive_seed(seed: int, name: str, index: int) -> int:
    return int.from_bytes(sha256(f"{seed}/{name}/{index}".encode()).digest()[:8], "big", signed=True)
