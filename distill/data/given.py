"""Training data with given responses: every assistant turn, rendered as if the target had generated it.

Held-out prompts still get the target's responses: acceptance can be measured only on its own.

The files are those of distill/data/training_data.py, one trace per turn; distill/data/batches.py joins the turns of
conversations again.

Turns are located by renderings that are prefixes of each other: up to a turn and opened for it, and up to its end. No
text is searched for markers.
"""

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate, groupby, pairwise, takewhile
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from architectures.console import track
from architectures.errors import UserError
from architectures.manifest import ResponseCounts, SplitCounts, fingerprint_tokenizer, fingerprint_value
from architectures.settings import WHOLE, Holding
from architectures.sharing import ALONE, Share
from architectures.target_files import stop_ids
from distill.data.conversations import WRITTEN_INSTEAD, Conversation, load_conversations
from distill.data.training_data import (
    count_responses,
    decoding_settings,
    drop_duplicates,
    drop_evaluated,
    hold_out,
    print_skipped,
)
from distill.recipe.sections import DataConfig
from eval.chat import (
    CLOSE_THINK,
    OPEN_THINK,
    RowError,
    RowErrors,
    Turn,
    assistant_turn,
    chat_text,
    render_chat,
    renders,
    user_turn,
)
from eval.decoding.generate import Kind, write_traces
from eval.models import load_tokenizer, text_config
from eval.prompts import Prompt, drop_too_long
from eval.responses import (
    EVERY_FILE,
    ShardPart,
    Trace,
    claim_shards,
    continues,
    missing_shards,
    one_at_a_time,
    read_traces,
    require_rows_for_row,
    write_shard,
)

SHOWN = 12  # last tokens of a rendering in messages


class Renderer:
    """Locates the assistant's tokens in conversations rendered by a target's chat template.

    Args:
        target: Only its tokenizer and its stop tokens are read.

    Raises:
        UserError: If the template does not delimit responses.
    """

    def __init__(self, target: Path):
        self.target = target
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(target)
        if not self.tokenizer.chat_template:
            raise UserError(
                f"{target}: its tokenizer has no chat template, which marks where responses begin and end. "
                f"Use a chat model as target, {WRITTEN_INSTEAD}."
            )
        self.stop_ids = stop_ids(target)
        self.vocab_size = text_config(target).vocab_size
        self.leads: dict[str, tuple[int, ...]] = {}
        self.lead({})

    def lead(self, kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the tokens between the opening of a turn and a response without reasoning: Qwen3's empty thinking."""
        key = json.dumps(kwargs, sort_keys=True, default=str)
        if key not in self.leads:
            self.leads[key] = self.find_lead(kwargs)
        return self.leads[key]

    def find_lead(self, kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        asked = (user_turn("?"),)
        text = chat_text(self.tokenizer, Turn(asked, (), kwargs), add_generation_prompt=True)
        opening = self.encode(text)
        x, y = (
            render_chat(self.tokenizer, Turn((*asked, assistant_turn(text)), (), kwargs), add_generation_prompt=False)
            for text in "xy"
        )
        if opens_thinking(text):  # such a template renders a complete turn without the thinking
            return ()
        if not continues(opening, x):
            raise UserError(
                f"{self.target}: its chat template opens an assistant turn with {self.ending(opening)} but renders a "
                f"complete turn as {self.ending(x)}: the response cannot be located. "
                f"Fix the template, {WRITTEN_INSTEAD}."
            )
        shared = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(x, y, strict=False))]
        return tuple(shared[len(opening) :])

    def in_one_mode(self, conversation: Conversation) -> Conversation:
        """Return a conversation whose held-out prompts are opened as its given responses are rendered.

        Responses without reasoning are rendered after an empty <think>; `enable_thinking: false` opens a turn so.
        """
        responses = [conversation.messages[index] for index in conversation.responses]
        has_reasoning = any("reasoning_content" in each or CLOSE_THINK in each["content"] for each in responses)
        kwargs = conversation.chat_template_kwargs
        lead = self.lead(kwargs)
        if not lead or has_reasoning:
            return conversation
        thinking_off = replace(conversation, chat_template_kwargs={**kwargs, "enable_thinking": False})
        opening, off = (self.opening_ids(each) for each in (conversation, thinking_off))
        return thinking_off if off == [*opening, *lead] else conversation

    def opening_ids(self, conversation: Conversation) -> list[int]:
        """Return the prompt of the first response."""
        turn = conversation.until(conversation.responses[0])
        return self.render(turn, conversation.source, add_generation_prompt=True)

    def answered(self, conversation: Conversation, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the prompt of a message, and the tokens of that message including the stop token.

        Raises:
            RowError: If the template fails, or does not render the message as a response.
        """
        where, message = conversation.source, conversation.messages[index]
        location = f"{where}: messages[{index}]"
        calls = json.dumps(message.get("tool_calls", []), ensure_ascii=False)
        for text in (message["content"], message.get("reasoning_content", ""), calls):
            self.reject_stop_within(text, location)
        opening = self.render(conversation.until(index), where, add_generation_prompt=True)
        whole = self.render(conversation.until(index + 1), where, add_generation_prompt=False)
        if not continues(opening, whole) and opens_thinking(str(self.tokenizer.decode(opening))):
            whole = self.with_thinking(conversation, index, location)
        elif "reasoning_content" in message and not renders(self.tokenizer, "reasoning_content"):
            kind = "its chat template does not render reasoning_content"
            raise RowError(f"{location}: {self.target}: {kind}. Remove the field, {WRITTEN_INSTEAD}.", kind)
        if not continues(opening, whole):
            kind = "the chat template renders this turn without its generation prompt"
            raise RowError(
                f"{location}: {kind}, ending in {self.ending(whole)}. Fix the row or the template, {WRITTEN_INSTEAD}.",
                kind,
            )
        lead = self.lead(conversation.chat_template_kwargs)
        start = len(opening) + (len(lead) if continues(lead, whole[len(opening) :]) else 0)
        end = self.end_of_response(whole, start, location)
        return tuple(whole[:start]), tuple(whole[start:end])

    def with_thinking(self, conversation: Conversation, index: int, location: str) -> list[int]:
        """Render a response behind the <think> that the template opens, which it drops from complete turns.

        Raises:
            RowError: If the message has no reasoning, or tool calls, whose place only the template knows.
        """
        message = conversation.messages[index]
        if "tool_calls" in message:
            kind = "has tool_calls, but the chat template drops the <think> that it opens"
            raise RowError(f"{location} {kind}. Remove such rows, {WRITTEN_INSTEAD}.", kind)
        reasoning, mark, content = message["content"].rpartition(CLOSE_THINK)
        reasoning = message.get("reasoning_content", reasoning.partition(OPEN_THINK)[2] if mark else "")
        if not reasoning.strip():
            kind = "has no reasoning, but the chat template opens each response with <think>"
            raise RowError(f"{location} {kind}. Add reasoning_content, {WRITTEN_INSTEAD}.", kind)
        content = content.lstrip()
        plain = replace(conversation, messages=(*conversation.messages[:index], assistant_turn(content)))
        whole = chat_text(self.tokenizer, plain.until(index + 1), add_generation_prompt=False)
        ending = whole[whole.rfind(content) + len(content) :]
        opening = chat_text(self.tokenizer, plain.until(index), add_generation_prompt=True)
        return self.encode(f"{opening}{reasoning.strip()}\n{CLOSE_THINK}\n\n{content}{ending}")

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def end_of_response(self, whole: Sequence[int], start: int, location: str) -> int:
        """Return the end of the response that begins at start, its stop token included."""
        for position in range(start, len(whole)):
            if whole[position] in self.stop_ids:
                return position + 1
        stops = ", ".join(repr(self.tokenizer.decode([each])) for each in sorted(self.stop_ids)) or "none"
        raise UserError(
            f"{location}: the chat template ends it with {self.ending(whole)}, without a stop token of the target "
            f"({stops}). "
            f"Set the right ones as eos_token_id in {self.target / 'generation_config.json'}, {WRITTEN_INSTEAD}."
        )

    def render(self, turn: Turn, where: str, *, add_generation_prompt: bool) -> list[int]:
        try:
            ids = render_chat(self.tokenizer, turn, add_generation_prompt=add_generation_prompt)
        except RowError as error:
            raise RowError(f"{where}: {error}", error.kind) from error
        require_rows_for_row(ids, self.target, self.vocab_size, where)
        return ids

    def reject_stop_within(self, response: str, location: str) -> None:
        """Raise RowError if a response contains a stop token: the target would have stopped there."""
        ids = self.tokenizer(response, add_special_tokens=False)["input_ids"]
        within = [each for each in ids if each in self.stop_ids]
        if within:
            kind = f"contains {self.tokenizer.decode(within[:1])!r}, a stop token of this target"
            raise RowError(f"{location}.content {kind}. Fix or delete this row.", kind)

    def ending(self, ids: Sequence[int]) -> str:
        return repr(self.tokenizer.decode(list(ids[-SHOWN:])))


def opens_thinking(opening: str) -> bool:
    return opening.rstrip().endswith(OPEN_THINK)


def read_conversations(
    renderer: Renderer, config: DataConfig, malformed: RowErrors
) -> list[tuple[Conversation, list[int]]]:
    """Return each conversation of the data with the prompt ids of its first response; all its turns can be rendered.

    Raises:
        UserError: If a source cannot be read, or rows are malformed unless `malformed` skips them.
    """
    loaded = load_conversations(config.prompts, chat_template_kwargs=config.chat_template_kwargs, errors=malformed)
    found = []
    for conversation in loaded:
        checked = malformed.attempt(partial(checked_conversation, renderer, conversation))
        found += [] if checked is None else [checked]
    malformed.raise_any()
    return found


def checked_conversation(renderer: Renderer, conversation: Conversation) -> tuple[Conversation, list[int]]:
    conversation = renderer.in_one_mode(conversation)
    for index in conversation.responses:
        renderer.answered(conversation, index)
    return conversation, renderer.opening_ids(conversation)


def collect_given(
    target: Path,
    config: DataConfig,
    out: Path,
    *,
    seed: int,
    dtype: str,
    to_train_on: bool = True,
    generated_by: Kind | None = None,
    holding: Holding = WHOLE,
    part: ShardPart = EVERY_FILE,
    share: Share = ALONE,
) -> ResponseCounts | None:
    """Write the given responses to out/train-*.jsonl, and the target's, to held-out prompts, to out/eval-*.jsonl.

    Resumes an interrupted run. The held-out split depends only on the conversations and the seed; a conversation that
    begins with the prompt of a held-out one is not trained on. Arguments are those of
    distill.data.training_data.generate_responses.

    Returns:
        None while files of other parts are missing, else counts as generate_responses returns them, with one prompt per
        response of a held-out conversation. In addition: `asked_in_eval`, conversations left out of training for their
        prompt; and under "train" `sequences`, into which conversations are joined, and `split`, conversations that
        become several.

    Raises:
        UserError: If a row is no conversation, there are too few to hold some out, the chat template does not delimit
            responses, or out contains responses of other inputs.
    """
    renderer, malformed = Renderer(target), RowErrors(skip=config.malformed == "skip")
    pairs = read_conversations(renderer, config, malformed)
    print_skipped(malformed)
    ids = {id(conversation): tuple(own) for conversation, own in pairs}
    distinct = drop_duplicates([conversation for conversation, _ in pairs])
    max_prompt_len = config.max_seq_len - 1  # turns after more tokens are dropped and counted
    fitting = drop_too_long(distinct, [len(ids[id(each)]) for each in distinct], max_prompt_len)
    drawn, held_out = hold_out(fitting, config.num_eval_prompts, seed=seed, least_left=1 if to_train_on else 0)
    train = drop_evaluated(drawn, held_out, ids) if to_train_on else []
    questions = [prompt for conversation in held_out for prompt in prompts_of(conversation)]
    decoding = decoding_settings(config, seed=seed, dtype=dtype, holding=holding)
    how = {"generated_by": generated_by, "part": part, "share": share}
    write_traces(target, questions, out, decoding, name="eval", **how)
    if to_train_on:
        with one_at_a_time(out) if share.leads else nullcontext():  # takes seconds; the first job does it
            write_given(renderer, train, out, shard_size=config.shard_size, max_prompt_len=max_prompt_len, share=share)
    if share.lead(lambda: missing_shards(out, ["eval"])):
        return None
    learned, num_left_out = count_given(out, train)
    asked, num_unanswered = count_responses(out, "eval", questions, renderer.tokenizer)
    return {
        "prompts": len(pairs),
        "self_written": 0,
        "duplicates": len(pairs) - len(distinct),
        "too_long": len(distinct) - len(fitting) + num_left_out + num_unanswered,
        "asked_in_eval": len(drawn) - len(train) if to_train_on else 0,
        "malformed": malformed.counts,
        "train": learned,
        "eval": asked,
    }


def prompts_of(conversation: Conversation) -> list[Prompt]:
    return [
        Prompt(
            turn_source(conversation, number),
            conversation.messages[:index],
            tools=conversation.tools,
            chat_template_kwargs=conversation.chat_template_kwargs,
        )
        for number, index in enumerate(conversation.responses, start=1)
    ]


def turn_source(conversation: Conversation, number: int) -> str:
    """Return the row, with the number of the response unless it is the first."""
    return conversation.source if number == 1 else f"{conversation.source}#{number}"


def count_given(out: Path, conversations: Sequence[Conversation]) -> tuple[SplitCounts, int]:
    """Count the training responses on disk, and those missing; print how many conversations the template splits."""
    traces = read_traces(out, "train") if conversations else []
    rows = [list(group) for _, group in groupby(traces, key=lambda trace: re.sub(r"#[0-9]+$", "", trace.source))]
    breaks = [sum(not follows(*pair) for pair in pairwise(row)) for row in rows]
    num_split = sum(map(bool, breaks))
    if num_split:
        print(
            f"train: in {num_split} of {len(rows)} conversations the chat template renders earlier turns differently; "
            f"they are split into {sum(breaks) + num_split} sequences",
            file=sys.stderr,
        )
    counts = SplitCounts(
        prompts=len(conversations),
        responses=len(traces),
        response_tokens=sum(len(trace.response_ids) for trace in traces),
        longest=max((len(trace.token_ids) for trace in traces), default=0),
        sequences=len(rows) + sum(breaks),
        split=num_split,
    )
    return counts, sum(len(each.responses) for each in conversations) - len(traces)


def follows(earlier: Trace, later: Trace) -> bool:
    """Return True if a turn's prompt begins with all tokens of the turn before it."""
    return continues((*earlier.prompt_ids, *earlier.response_ids), later.prompt_ids)


def write_given(
    renderer: Renderer,
    conversations: Sequence[Conversation],
    out: Path,
    *,
    shard_size: int,
    max_prompt_len: int,
    share: Share = ALONE,
) -> None:
    """Write each assistant turn as a trace to out/train-00000.jsonl and so on; existing shards are kept.

    Raises:
        UserError: If out contains training responses of other inputs, or the template does not delimit a row's
            responses.
    """
    record = {
        **fingerprint_tokenizer(renderer.target),
        "responses": "given",
        "stop_ids": sorted(renderer.stop_ids),
        "conversations": fingerprint_value([asdict(each) for each in conversations]),
        "shard_size": shard_size,
        "max_prompt_len": max_prompt_len,
    }
    first_ids = accumulate((len(each.responses) for each in conversations), initial=0)
    numbered = list(zip(first_ids, conversations, strict=False))  # the last sum is the total number of responses
    chunks = [numbered[start : start + shard_size] for start in range(0, len(numbered), shard_size)]
    paths = share.lead(lambda: claim_shards(out, "train", record, num_shards=len(chunks)))
    absent = share.lead(lambda: [number for number, path in enumerate(paths) if not path.is_file()])
    missing = [(paths[number], chunks[number]) for number in share.mine(absent)]
    start_s, num_responses, num_tokens = time.monotonic(), 0, 0
    total = sum(len(chunk) for _, chunk in missing)
    for traces in track(write_each(missing, renderer, max_prompt_len), description="train conversations", total=total):
        num_responses += len(traces)
        num_tokens += sum(len(trace.response_ids) for trace in traces)
    share.meet()
    if num_responses:
        rate = num_tokens / (time.monotonic() - start_s)
        print(f"train: {num_responses} given responses, {num_tokens} tokens, {rate:.0f} tokens/s", file=sys.stderr)


def write_each(
    missing: Sequence[tuple[Path, Sequence[tuple[int, Conversation]]]], renderer: Renderer, max_prompt_len: int
) -> Iterator[list[Trace]]:
    """Yield the responses of each conversation; write each shard when it is complete."""
    for path, numbered in missing:
        rows: list[dict[str, Any]] = []
        for first_id, conversation in numbered:
            traces = [
                trace
                for trace in traces_of(conversation, renderer, first_id=first_id)
                if len(trace.prompt_ids) <= max_prompt_len
            ]
            rows += [asdict(trace) for trace in traces]
            yield traces
        write_shard(path, rows)


def traces_of(conversation: Conversation, renderer: Renderer, *, first_id: int) -> Iterator[Trace]:
    for number, index in enumerate(conversation.responses, start=1):
        prompt_ids, response_ids = renderer.answered(conversation, index)
        message = conversation.messages[index]
        text = message["content"]
        if {"tool_calls", "reasoning_content"} & message.keys():
            text = renderer.tokenizer.decode(list(response_ids), skip_special_tokens=True)
        yield Trace(
            id=first_id + number - 1,
            source=turn_source(conversation, number),
            messages=conversation.messages[:index],
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            response=str(text),
            finish_reason="stop",
            tools=conversation.tools,
            chat_template_kwargs=conversation.chat_template_kwargs,
        )
