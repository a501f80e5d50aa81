"""Answers of a target that is not here, read for a draft that has its tokenizer.

They are traces as `widedraft generate` and `widedraft eval` write them, or the text of eval.recorded.ground_truth.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from transformers import PreTrainedTokenizerBase

from architectures.errors import UserError
from architectures.files.typed_file import checked
from architectures.settings.kinds import MinP, RepetitionPenalty, Temperature, TopK, TopP
from eval.answers.shards import SETTINGS_NAME, Claim, read_claims, shorten
from eval.answers.token_ids import require_known_ids
from eval.answers.traces import Trace, read_traces
from eval.config import sampling_asked
from eval.decoding.sampling import Sampling
from eval.models.loading import load_tokenizer, require_rows, text_config, tokenizer_identity
from eval.prompts import checked_text, first_field, load_rows
from eval.recorded.ground_truth import read_ground_truth
from eval.tasks import PromptSource

TRACES_NAME = "eval"  # held out of training, so never the text the draft has learned
LATER_TURN = re.compile(r"#[0-9]+$")


@dataclass(frozen=True)
class RecordedAnswer:
    """One answer of the target.

    Attributes:
        source: The row its prompt came from.
        prompt: The number of its prompt, from 0; the turns of one conversation are one prompt.
        prompt_ids: What the target continued.
        answer_ids: The continuation, at least one token.
        answer_logp: log p(y_t) of each of its tokens, of what it was drawn from; None where that was not kept.
    """

    source: str
    prompt: int
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    answer_logp: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Settings:
    """How recorded answers were decoded, as far as a scorer asks."""

    temperature: Temperature
    top_p: TopP
    target: str
    top_k: TopK = None
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0


SETTINGS = TypeAdapter(Settings)


@dataclass(frozen=True)
class Recording:
    """Recorded answers, and what is known of them.

    Attributes:
        path: A folder of traces, or a text file.
        sampling: How they were decoded; text is greedy.
        target: Fingerprint of the target, or None where the form does not carry it.
        answers: In the order of the prompts.
        unanswered: Prompts behind the last that has an answer.
    """

    path: Path
    sampling: Sampling
    target: str | None
    answers: tuple[RecordedAnswer, ...]
    unanswered: int = 0

    @property
    def temperature(self) -> float:
        return self.sampling.temperature

    @property
    def words(self) -> str:
        """How they were decoded, in words."""
        return sampling_asked(self.sampling).words_at(self.temperature)

    @property
    def num_prompts(self) -> int:
        return self.answers[-1].prompt + 1

    def first(self, num_prompts: int) -> list[RecordedAnswer]:
        """The answers to the first prompts."""
        return [answer for answer in self.answers if answer.prompt < num_prompts]


def read_recorded_traces(folder: Path, tokenizer_folder: Path) -> Recording:
    """The held-out answers in a folder of traces, made with the tokenizer of another folder.

    Raises:
        UserError: If there are none, or they were made with another tokenizer.
    """
    traces = read_held_out(folder)
    claim = read_claims(folder)[TRACES_NAME]
    require_recorded_tokenizer(claim, folder, tokenizer_folder)
    require_known_ids(
        (trace.token_ids for trace in traces),
        folder,
        TRACES_NAME,
        {tokenizer_folder: text_config(tokenizer_folder).vocab_size},
    )
    where, remedy = f"{folder / SETTINGS_NAME}: {TRACES_NAME}.settings", "Give the answers as they were written."
    settings = checked(SETTINGS, claim["settings"], where, remedy)
    sampling = Sampling.of(settings.temperature, sampling_asked(settings))
    return Recording(folder, sampling, settings.target, tuple(number_prompts(traces)))


def read_recorded_text(path: Path, prompts: str, draft: Path) -> Recording:
    """Greedy answers in a text file, to prompts in another: their text as it is, with the tokenizer's special tokens.

    No chat template is used: the form knows none. What a target was really asked, template included, is in the text.

    Args:
        path: As eval.recorded.ground_truth reads it.
        prompts: JSON lines {"prompt": text}, one a block and in their order; there may be more, which are left out, as
            of the file that was published with 145 answers and 10,003 prompts.
        draft: The folder of the draft, whose tokenizer must be that of the answers.

    Raises:
        UserError: If there are fewer prompts, one has no token, or an id is beyond the draft's vocabulary.
    """
    blocks = read_ground_truth(path, vocab_size=text_config(draft).vocab_size)
    rows = load_rows(PromptSource(path=prompts), lambda row, where: (where, prompt_text(row, where)))
    if len(blocks) > len(rows):
        raise UserError(
            f"{path}: holds {len(blocks)} blocks, but {prompts} {len(rows)} prompts. Give the prompt of every block."
        )
    tokenizer = load_tokenizer(draft)
    return Recording(
        path,
        Sampling(),
        None,
        tuple(
            RecordedAnswer(where, number, prompt_ids(tokenizer, text, where), answer_ids)
            for number, ((where, text), answer_ids) in enumerate(zip(rows[: len(blocks)], blocks, strict=True))
        ),
        unanswered=len(rows) - len(blocks),
    )


def answer_lengths(path: Path) -> list[int]:
    """Tokens of every recorded answer, of either form."""
    answers = [trace.answer_ids for trace in read_held_out(path)] if path.is_dir() else read_ground_truth(path)
    return [len(answer) for answer in answers]


def read_held_out(folder: Path) -> list[Trace]:
    """The held-out answers in a folder of traces, at least one.

    Raises:
        UserError: If there are none.
    """
    claims = read_claims(folder)
    if TRACES_NAME not in claims:
        held = f"{', '.join(claims)} answers alone" if claims else "no answers"
        raise UserError(
            f"{folder}: holds {held}, and a draft is scored on {TRACES_NAME} answers, held out of its training. Give "
            "the data folder of a run with data.num_eval_prompts above 0, or the folder answers/T0 of a scorecard."
        )
    traces = read_traces(folder, TRACES_NAME)
    if not traces:
        raise UserError(f"{folder}: its {TRACES_NAME} answers are none. Make some: raise data.num_eval_prompts.")
    return traces


def require_recorded_tokenizer(claim: Claim, folder: Path, tokenizer_folder: Path) -> None:
    """Raise UserError unless a folder's tokenizer gives token ids the meaning they have in recorded answers."""
    recorded = claim.get("tokenizer")
    if recorded is None:
        raise UserError(
            f"{folder}: does not say which tokenizer its answers are of; an earlier widedraft wrote it. Let the target "
            "answer again, into another folder."
        )
    tokenizer = load_tokenizer(tokenizer_folder)
    own = tokenizer_identity(tokenizer)
    changes = [
        f"{name} is {shorten(own[name])}, but {shorten(recorded.get(name))} there"
        for name in own
        if own[name] != recorded.get(name)
    ]
    if changes:
        raise UserError(
            f"{tokenizer_folder}: its tokenizer is not that of the answers in {folder}: {'; '.join(changes)}. Token "
            "ids are compared: use a draft made from the target that wrote them."
        )
    require_rows(tokenizer_folder, last_id=max(tokenizer.get_vocab().values()))


def number_prompts(traces: Sequence[Trace]) -> list[RecordedAnswer]:
    """The answers, each with the number of its prompt: a later turn follows another turn of its row."""
    answers: list[RecordedAnswer] = []
    number, row = -1, ""
    for trace in traces:
        is_later_turn = LATER_TURN.sub("", trace.source) == row != trace.source
        number += not is_later_turn
        row = LATER_TURN.sub("", trace.source)
        answers.append(RecordedAnswer(trace.source, number, trace.prompt_ids, trace.answer_ids, trace.answer_logp))
    return answers


def prompt_text(row: Any, where: str) -> str:
    """The text of a {"prompt": text} row."""
    field = first_field(row, ("prompt",), where, example='{"prompt": "Two girls are sailing on a lake. they"}')
    return checked_text(row[field], field, where)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str, where: str) -> tuple[int, ...]:
    """A text as token ids, with the tokenizer's own special tokens and without its chat template."""
    ids = tuple(tokenizer(text)["input_ids"])
    if not ids:
        raise UserError(f"{where}: the tokenizer makes no token of this prompt. Delete its row and block.")
    return ids
