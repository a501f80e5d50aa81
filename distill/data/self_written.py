"""Prompts the target writes itself: sampled in the user's place, after the opening of its own chat template.

A chat model has seen what follows "<|im_start|>user" in its template; sampled there, it asks questions as its users do.

Source: Xu et al. 2024, "Magpie: Alignment Data Synthesis from Scratch by Prompting Aligned LLMs with Nothing", sec. 2.1
(arXiv 2406.08464).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from architectures.errors import UserError
from architectures.hashes import fingerprint_checkpoint
from architectures.progress import track
from architectures.settings import WHOLE, Holding
from architectures.sharing import ALONE, Share
from eval.decoding.cuda_graphs import answer_opener
from eval.decoding.generate import claimed_draws, derive_seed
from eval.decoding.kv_cache import Opener
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import plain_decode
from eval.decoding.texts import Limits
from eval.large_targets import load_target
from eval.models import context_length_of, load_tokenizer, stop_token_ids
from eval.prompts import Prompt, chat_text, template_hash, user_turn
from eval.responses import claim_shards, read_shard, write_shard

NAME = "self-written"
SENTINEL = "widedraftusertext"
CANDIDATES_PER_PROMPT = 4  # at most so many are sampled for each one asked for, and what fills the last shard
MIN_CHARACTERS = 10


@dataclass(frozen=True)
class SelfWriting:
    """How the target writes prompts.

    Attributes:
        seed: Of the random draws.
        dtype: Number type of the target while it writes.
        batch_size: Prompts written together.
        shard_size: Candidates per shard, the unit a rerun continues from.
        max_new_tokens: Candidates that are longer are dropped.
        temperature: Divides the logits.
        top_p: Probability mass sampled from.
        holding: How the target is held; its bits are claimed.
    """

    seed: int
    dtype: str
    batch_size: int
    shard_size: int
    max_new_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 0.95
    holding: Holding = WHOLE

    @property
    def claimed(self) -> dict[str, Any]:
        """As a folder of prompts claims them."""
        values = {name: value for name, value in asdict(self).items() if name != "holding"}
        return values | self.holding.claimed


@dataclass(frozen=True)
class UserTurn:
    """How a chat template frames what the user says.

    Attributes:
        opening_ids: Everything before the user's text, a default system prompt included.
        stop_ids: Tokens that end the user's text.
        stop_text: How the text after it begins, for templates that end a turn in plain words.
    """

    opening_ids: list[int]
    stop_ids: frozenset[int]
    stop_text: str


def write_own_prompts(target: Path, count: int, out: Path, settings: SelfWriting, share: Share = ALONE) -> list[Prompt]:
    """Let the target write `count` distinct prompts, into out/self-written-00000.jsonl and so on.

    Of several processes each writes its share of the shards, and none that a single process would not have written.

    Raises:
        UserError: If the target has no chat template, says too little that is new, was made for texts too short to
            hold a prompt, or out holds prompts made otherwise.
    """
    tokenizer = load_tokenizer(target)
    turn = find_user_turn(tokenizer, target)
    settings = within_context(target, settings, opening=len(turn.opening_ids))
    writer = Writer(target, tokenizer, turn, settings)
    record = {
        "target": fingerprint_checkpoint(target),
        "template": template_hash(tokenizer),
        **settings.claimed,
        **claimed_draws(settings.temperature),
    }
    num_shards = -(-count * CANDIDATES_PER_PROMPT // settings.shard_size)
    paths = share.lead(lambda: claim_shards(out, NAME, record, num_shards=num_shards))
    texts = distinct_texts(writer, paths, count, share)
    prompts = [
        Prompt(f"{NAME}:{number}", (user_turn(text),))
        for number, text in enumerate(track(texts, description=f"{NAME} prompts", total=count), start=1)
    ]
    if len(prompts) < count:
        attempts = len(paths) * settings.shard_size
        raise UserError(
            f"{target}: wrote only {len(prompts)} distinct prompts in {attempts} attempts, fewer than "
            f"data.self_written_prompts={count}. Ask for fewer, or name data.prompts."
        )
    return prompts


def within_context(target: Path, settings: SelfWriting, *, opening: int) -> SelfWriting:
    """The settings, with prompts no longer than what the target was made for leaves space for after an opening.

    Raises:
        UserError: If that is nothing.
    """
    limit = context_length_of(target)
    if limit is None:
        return settings
    if limit.tokens <= opening:
        raise UserError(
            f"{target}: {limit.origin}, and its chat template opens a prompt with {opening} tokens. "
            "Set data.self_written_prompts to 0 and name data.prompts."
        )
    return replace(settings, max_new_tokens=min(settings.max_new_tokens, limit.tokens - opening))


def find_user_turn(tokenizer: PreTrainedTokenizerBase, target: Path) -> UserTurn:
    """How the chat template frames the user's text, seen by rendering a word that stands for it.

    Raises:
        UserError: If there is no template, or none that shows where the user's text begins and ends.
    """
    if not tokenizer.chat_template:
        raise UserError(
            f"{target}: has no chat template, so it cannot write prompts in the user's place. "
            "Set data.self_written_prompts to 0 and name data.prompts, or take a chat model as target."
        )
    rendered = chat_text(tokenizer, [user_turn(SENTINEL)], add_generation_prompt=True)  # with its end
    opening, *others = rendered.split(SENTINEL)
    if not opening or len(others) != 1 or not others[0].strip():
        raise UserError(
            f"{target}: its chat template does not show where the user's text begins and ends: {rendered!r}. "
            "Set data.self_written_prompts to 0 and name data.prompts."
        )
    ending = others[0].strip().splitlines()[0]
    first_id = tokenizer(ending, add_special_tokens=False)["input_ids"][0]
    return UserTurn(
        opening_ids=tokenizer(opening.rstrip(" "), add_special_tokens=False)[
            "input_ids"
        ],  # a word brings its own space
        stop_ids=frozenset({first_id} & special_ids(tokenizer)),
        stop_text=ending,
    )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of tokens that are no text."""
    return {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}


class Writer:
    """The target in the user's place, loaded when it first has to write."""

    def __init__(
        self, target: Path, tokenizer: PreTrainedTokenizerBase, user_turn: UserTurn, settings: SelfWriting
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.user_turn = user_turn
        self.settings = settings
        self.special_ids = special_ids(tokenizer)

    @cached_property
    def model(self) -> PreTrainedModel:
        return load_target(self.target, dtype=self.settings.dtype, holding=self.settings.holding)

    @cached_property
    def opener(self) -> Opener:
        return answer_opener(self.model)

    def write(self, candidates: range) -> list[dict[str, int | str]]:
        """The usable ones among some numbered candidates, in their order."""
        size, rows = self.settings.batch_size, []
        for start in range(candidates.start, candidates.stop, size):
            numbers = range(start, min(start + size, candidates.stop))
            decoded = plain_decode(
                self.model,
                [self.user_turn.opening_ids] * len(numbers),
                limits=Limits(self.settings.max_new_tokens, self.user_turn.stop_ids | stop_token_ids(self.model)),
                sampling=Sampling(self.settings.temperature, self.settings.top_p),
                row_seeds=[derive_seed(self.settings.seed, NAME, number) for number in numbers],
                opener=self.opener,
            )
            for number, each in zip(numbers, decoded, strict=True):
                text = self.read(each.token_ids, stopped=each.stopped)
                rows += [] if text is None else [{"candidate": number, "prompt": text}]
        return rows

    def read(self, ids: Sequence[int], *, stopped: bool) -> str | None:
        """The text of a candidate; None unless it is finished, clean and long enough to ask something."""
        kept_ids = list(ids[:-1] if stopped else ids)
        text = str(self.tokenizer.decode(kept_ids, clean_up_tokenization_spaces=False))
        text, turn_end, _ = text.partition(self.user_turn.stop_text)
        text = text.strip()
        is_clean = self.special_ids.isdisjoint(kept_ids) and "\ufffd" not in text
        is_long_enough = len(text) >= MIN_CHARACTERS and " " in text
        return text if (stopped or turn_end) and is_clean and is_long_enough else None


def distinct_texts(writer: Writer, paths: Sequence[Path], count: int, share: Share = ALONE) -> Iterator[str]:
    """The first usable texts of all shards, so many at most, each once whatever its case and spacing.

    Shards that are missing are written first: as many at a time as there are processes, but none before it is known
    that those before it hold too few texts.
    """
    seen: set[str] = set()
    size, begun = writer.settings.shard_size, 0
    while len(seen) < count and begun < len(paths):
        needed = -(-(count - len(seen)) // size)
        numbers = range(begun, min(begun + min(needed, share.count), len(paths)))
        begun = numbers.stop
        missing = share.lead(lambda: [number for number in numbers if not paths[number].is_file()])  # noqa: B023
        for number in share.mine(missing):
            write_shard(paths[number], writer.write(range(number * size, (number + 1) * size)))
        share.meet()
        for row in (row for number in numbers for row in read_shard(paths[number])):
            key = " ".join(row["prompt"].casefold().split())
            if len(seen) < count and key not in seen:
                seen.add(key)
                yield row["prompt"]
