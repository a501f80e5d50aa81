"""Responses of the target to prompts, shard by shard, with or without the hidden states they were chosen from.

A killed run continues at its first missing shard and ends in the same bytes as one that was left alone. Kept hidden
states, the inputs of the output head, are what a teacher's cache is made of without reading the responses again.

Shape suffixes used in this file:
    B = rows of a step, T = tokens fed to each, H = width of the last hidden state; A = tokens of a response
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from architectures.checkpoints.fingerprint import fingerprint_checkpoint, fingerprint_value
from architectures.errors import UserError
from architectures.files.atomic import write_text
from architectures.progress.track import Advance, no_progress
from architectures.sharing import ALONE, Share
from eval.answers.asked_turns import Turn, first_turns, num_turns
from eval.answers.earlier_answers import Earlier, earlier_answers
from eval.answers.hidden_files import is_finite, new_hidden_file, read_states, require_states
from eval.answers.parts import EVERY_FILE, Part, one_at_a_time
from eval.answers.shards import claim_shards, hidden_path, shard_paths, shard_text, write_shard
from eval.answers.token_ids import require_rows_for_row
from eval.answers.traces import DecodingSettings, Trace, asked, rows_of
from eval.answers.writing import Kind, Missing, write_missing
from eval.decoding.cuda_graphs import answer_opener
from eval.decoding.kv_cache import Opener, listen
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import Emitted, Wanted, decode_steps
from eval.decoding.texts import DRAWS, Decoded, Limits
from eval.models.loading import (
    context_length_of,
    load_tokenizer,
    stop_token_ids,
    text_config,
    tokenizer_identity,
)
from eval.prompts import Prompt, drop_too_long, render_prompt, template_hash
from eval.targets.loading import load_target


class RoundStates:
    """What goes into the output head of a target while it verifies a draft's proposals for one text.

    Args:
        model: Decodes one text at a time with a draft; from now on it notes what its output head is given.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        listen(model, self.note)
        self.noted_TH = torch.empty(0, 0)

    def note(self, hidden_BTH: Tensor) -> None:
        """Called before each product with the head."""
        self.noted_TH = hidden_BTH[0].clone()

    def of(self, emitted: Emitted) -> Tensor:
        """hidden_AH on the processor, one row for each token that the round before this call added to the text."""
        return self.noted_TH[: len(emitted.token_ids)].cpu()


class HiddenStates:
    """What goes into the output head of a model, on the processor and in the model's number type, token by token.

    Args:
        model: Decodes plainly; from now on it notes what its output head is given.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        listen(model, self.note)
        self.noted_BH = torch.empty(0, 0)
        self.taken = 0  # texts that have had theirs of what is noted
        self.texts: dict[int, list[Tensor]] = {}

    def note(self, hidden_BTH: Tensor) -> None:
        """Called before each product with the head; no token follows what is noted while prompts are read."""
        self.noted_BH, self.taken = hidden_BTH[:, -1].clone(), 0

    def along(
        self, steps: Iterator[Emitted | tuple[int, Decoded]], names: Sequence[int]
    ) -> Iterator[Emitted | tuple[int, Decoded]]:
        """The steps as they are; the state behind each of their tokens is kept under the name of its text.

        Args:
            steps: Of plain decoding by the model: all that one step adds comes before the next one is made, in the
                order of the step's rows.
            names: Of the texts, by their indices.
        """
        for step in steps:
            if isinstance(step, Emitted):
                self.texts.setdefault(names[step.index], []).append(self.next_state(step.index, len(names)))
            yield step

    def next_state(self, index: int, num_texts: int) -> Tensor:
        """hidden_H of the text whose turn it is: by its index where texts that have ended keep their rows."""
        if self.taken == 0:
            self.noted_BH = self.noted_BH.cpu()  # once a step, for all its rows
        row = index if len(self.noted_BH) == num_texts else self.taken
        self.taken += 1
        return self.noted_BH[row]

    def take(self, name: int) -> Tensor:
        """hidden_AH of a text that has ended, which is let go of here."""
        return torch.stack(self.texts.pop(name))


LOGP_DIGITS = 6  # of log-probabilities in nats: more than float32 has of most

Rendered = tuple[list[int], Turn]  # the ids of a conversation so far, and its turn


def write_traces(
    target: Path,
    prompts: Sequence[Prompt],
    out: Path,
    settings: DecodingSettings,
    *,
    name: str = "train",
    answered_by: Kind | None = None,
    answers_from: Sequence[Path] = (),
    part: Part = EVERY_FILE,
    share: Share = ALONE,
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
        answered_by: What writes them: an Answerer where left out, a StateKeeper, or an engine
            (eval.engines.generate).
        answers_from: Folders of earlier answers; one to the same prompt is taken from there.
        part: Which of the files are written; other jobs may write the others meanwhile.
        share: This process's share of them. All of these files are there when it returns.

    Raises:
        UserError: If out holds answers of this name made otherwise, earlier ones were, or no prompt is short enough.
    """
    kind = answered_by or Answerer
    settings, tokenizer = within_context(target, settings), load_tokenizer(target)
    turns = first_turns(drop_too_long(prompts, tokenizer, settings.max_prompt_len))
    chunks = [turns[start : start + settings.shard_size] for start in range(0, len(turns), settings.shard_size)]
    record = {
        "target": fingerprint_checkpoint(target),
        "template": template_hash(tokenizer),
        "prompts": fingerprint_value([asked(prompt) for prompt in prompts]),
        **settings.claimed,
        **claimed_draws(settings.temperature, kind.draws),
    }
    identity, states = tokenizer_identity(tokenizer), kind.keeps_states
    earlier = earlier_answers(answers_from, record, with_states=states)
    answerer = kind(target, tokenizer, settings, name=name, earlier=earlier, share=share)

    def missing_shards() -> list[Path]:
        with nullcontext() if part == EVERY_FILE else one_at_a_time(out):
            paths = claim_shards(out, name, record, num_shards=len(chunks), tokenizer=identity, hidden_states=states)
        return [path for path in part.of_all(paths) if not answerer.is_written(path)]

    by_path = dict(zip(shard_paths(out, name, len(chunks)), chunks, strict=True))
    missing = answerer.mine(share.lead(missing_shards))
    write_missing([(path, by_path[path]) for path in missing], answerer, name=name, share=share)


def sampling_of(settings: DecodingSettings) -> Sampling:
    """How tokens are chosen."""
    return Sampling(settings.temperature, settings.top_p, settings.top_k, settings.min_p, settings.repetition_penalty)


def claimed_draws(temperature: float, draws: str = DRAWS) -> dict[str, str]:
    """What a folder of texts claims of its random numbers; nothing where none decided."""
    return {} if temperature == 0 else {"draws": draws}


def within_context(target: Path, settings: DecodingSettings) -> DecodingSettings:
    """The settings, with prompts no longer than the context that the target was made for leaves beside a whole answer.

    Raises:
        UserError: If it leaves no token for a prompt.
    """
    limit = context_length_of(target)
    if limit is None:
        return settings
    longest = limit.tokens - settings.max_new_tokens
    if longest < 1:
        raise UserError(
            f"{target}: {limit.origin}, which answers of max_new_tokens={settings.max_new_tokens} leave no room for a "
            "prompt in. Lower max_new_tokens."
        )
    return replace(settings, max_prompt_len=min(settings.max_prompt_len, longest))


PASS_ROWS = 32  # rows that cost as much as the weights of a pass do: 48 rows took twice the time of 8 on two cores


class Answerer:
    """The target, loaded when it is first asked what no earlier answer says."""

    keeps_states: ClassVar[bool] = False
    draws: ClassVar[str] = DRAWS

    def __init__(
        self,
        target: Path,
        tokenizer: PreTrainedTokenizerBase,
        settings: DecodingSettings,
        *,
        name: str,
        earlier: Mapping[tuple[int, ...], Earlier] | None = None,
        share: Share = ALONE,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.settings = settings
        self.name = name
        self.earlier = earlier or {}
        self.share = share
        self.advance: Advance = no_progress
        self.taken: dict[int, Earlier] = {}  # of the earlier ones those that answer a turn, by its id

    @cached_property
    def model(self) -> PreTrainedModel:
        return load_target(self.target, dtype=self.settings.dtype, holding=self.settings.holding)

    @cached_property
    def opener(self) -> Opener:
        return answer_opener(self.model, self.settings.steps)

    @cached_property
    def vocab_size(self) -> int:
        return text_config(self.target).vocab_size

    def is_written(self, path: Path) -> bool:
        """Whether a shard is there, with all that belongs to it."""
        return path.is_file()

    def mine(self, missing: Sequence[Path]) -> Sequence[Path]:
        """See Writer."""
        return self.share.mine(missing)

    def work_of(self, missing: Missing) -> float:
        """See Writer."""
        return sum(work_of(num_turns(turns), self.settings.batch_size) for _, turns in missing)

    def write_all(self, missing: Missing) -> Iterator[Trace]:
        """Yield the answers of shards that are written one after another."""
        for path, turns in missing:
            yield from self.write(path, turns)

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
        """One answer a turn: earlier ones, then batch by batch in the order of lengths; too long turns have none."""
        rendered = [(self.render(turn), turn) for turn in turns]
        fitting = [(ids, turn) for ids, turn in rendered if len(ids) <= self.settings.max_prompt_len]
        new = [(ids, turn) for ids, turn in fitting if tuple(ids) not in self.earlier]
        yield from ((turn, self.take(ids, turn)) for ids, turn in fitting if tuple(ids) in self.earlier)
        new.sort(key=lambda pair: len(pair[0]))
        for start in range(0, len(new), self.settings.batch_size):
            yield from self.answer_batch(new[start : start + self.settings.batch_size])

    def take(self, ids: Sequence[int], turn: Turn) -> Trace:
        """The earlier answer to a turn, as this folder's."""
        self.taken[turn.id] = self.earlier[tuple(ids)]
        return replace(
            self.taken[turn.id].trace,
            id=turn.id,
            source=turn.source,
            messages=turn.messages,
            category=turn.category,
            task=turn.task,
        )

    def render(self, turn: Turn) -> list[int]:
        """A turn as the target reads it."""
        ids = render_prompt(self.tokenizer, turn.messages)
        require_rows_for_row(ids, self.target, self.vocab_size, turn.source)
        return ids

    def answer_batch(self, batch: Sequence[Rendered]) -> Iterator[tuple[Turn, Trace]]:
        """The answers to some turns that are decoded together, as they end; the time they take is that of all steps."""
        work = PASS_ROWS + len(batch)
        step_work, steps, emitted = work / self.settings.max_new_tokens, 0, Counter[int]()
        for event in self.decode(batch):
            if isinstance(event, tuple):
                prompt_ids, turn = batch[event[0]]
                yield turn, self.trace(turn, prompt_ids, event[1])
                continue
            emitted[event.index] += 1
            if emitted[event.index] > steps:
                steps += 1
                self.advance(step_work, items=0)
        self.advance(work - steps * step_work, items=0)

    def decode(self, batch: Sequence[Rendered]) -> Iterator[Emitted | tuple[int, Decoded]]:
        """Decode some turns together, step by step."""
        wanted = Wanted(
            [ids for ids, _ in batch],
            Limits(self.settings.max_new_tokens, stop_token_ids(self.model)),
            sampling_of(self.settings),
        )
        seeds = [derive_seed(self.settings.seed, self.name, turn.id) for _, turn in batch]
        return decode_steps([self.model], wanted, row_seeds=seeds, opener=self.opener)

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
            answer_logp=tuple(round(logp, LOGP_DIGITS) for logp in decoded.logp) or None,
        )


def work_of(count: int, batch_size: int) -> int:
    """What so many answers are to others: a last small batch takes hardly less than a whole one."""
    return -(-count // batch_size) * PASS_ROWS + count


def derive_seed(seed: int, name: str, index: int) -> int:
    """A seed for one prompt, unrelated to those of its neighbours."""
    return int.from_bytes(sha256(f"{seed}/{name}/{index}".encode()).digest()[:8], "big", signed=True)


class StateKeeper(Answerer):
    """Answers as an Answerer does, in the same bytes, and writes the states they were chosen from beside them."""

    keeps_states: ClassVar[bool] = True

    @cached_property
    def states(self) -> HiddenStates:
        """Of the answers in work: those of one batch at most."""
        return HiddenStates(self.model)

    def decode(self, batch: Sequence[Rendered]) -> Iterator[Emitted | tuple[int, Decoded]]:
        """See Answerer."""
        return self.states.along(super().decode(batch), [turn.id for _, turn in batch])

    def is_written(self, path: Path) -> bool:
        """See Answerer; a shard without its states is not."""
        return super().is_written(path) and hidden_path(path).is_file()

    def write(self, path: Path, turns: Sequence[Turn]) -> Iterator[Trace]:
        """See Answerer.

        Raises:
            UserError: If a state is no number, or the shard is there and was answered otherwise.
        """
        traces = []
        with new_hidden_file(path, most_answers=num_turns(turns)) as file:
            for trace in self.answer(turns):
                file.add(trace.id, self.states_of(trace))
                traces.append(trace)
                yield trace
            content = shard_text(rows_of(traces))
            refuse_other_answers(path, content)
            file.finish(content.encode("utf-8"))
        write_text(content, path)

    def states_of(self, trace: Trace) -> Tensor:
        """hidden_AH of an answer that has ended, or was taken from earlier ones.

        Raises:
            UserError: If one of them is no number, or those of an earlier answer are gone or another's.
        """
        if trace.id in self.taken:
            return self.earlier_states(self.taken[trace.id])
        hidden_AH = self.states.take(trace.id)
        assert len(hidden_AH) == len(trace.answer_ids), "a state for every token"
        if not is_finite(hidden_AH):
            raise UserError(
                f"{trace.source}: not all of the target's hidden states of its answer are numbers in "
                f"{self.settings.dtype}. Set target.dtype to a type of a larger range, or use another target."
            )
        return hidden_AH

    def earlier_states(self, earlier: Earlier) -> Tensor:
        """hidden_AH of an answer as they stand beside its shard.

        Raises:
            UserError: If they are gone, damaged or another's.
        """
        answer, length = earlier.trace.id, len(earlier.trace.answer_ids)
        width = text_config(self.target).hidden_size
        require_states(earlier.shard, {answer: length}, width=width, dtype=self.settings.dtype)
        return read_states(earlier.shard, answer, length)


def refuse_other_answers(path: Path, content: str) -> None:
    """Raise UserError if a shard is there, from which a draft may have been made, and now came out otherwise."""
    if path.is_file() and path.read_text(encoding="utf-8") != content:
        raise UserError(
            f"{path}: answered again for hidden states that are missing, and otherwise than it stands there, as "
            "another machine or other versions do. Set distill.teacher.captured_while to reading, or delete this "
            "folder and what was made from it."
        )
