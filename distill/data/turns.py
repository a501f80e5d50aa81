"""Which tokens of a conversation are the assistant's, as a target's chat template renders it.

They are known from renderings, each a prefix of the next: up to a turn and opened for it, and up to its end. No text is
searched for markers.
"""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from architectures.checkpoints.generation_settings import stop_ids
from architectures.errors import UserError
from distill.data.conversations import WRITTEN_INSTEAD, assistant_turn
from eval.answers.shards import require_rows_for_row
from eval.answers.traces import continues
from eval.models.loading import load_tokenizer, text_config
from eval.prompts import Message, render_chat, user_turn

SHOWN = 12  # last tokens of a rendering in messages


class Renderer:
    """Finds the assistant's tokens in conversations, as one target's template renders them.

    Args:
        target: The target's folder; its tokenizer and its stop tokens are read, not its weights.

    Raises:
        UserError: If its template cannot tell an answer from what is around it.
    """

    def __init__(self, target: Path):
        self.target = target
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(target)
        if not self.tokenizer.chat_template:
            raise UserError(
                f"{target}: its tokenizer has no chat template, which must say where an answer begins and ends. "
                f"Take a chat model as target, {WRITTEN_INSTEAD}"
            )
        self.stop_ids = stop_ids(target)
        self.vocab_size = text_config(target).vocab_size
        self.lead_ids = self.find_lead()

    def find_lead(self) -> tuple[int, ...]:
        """What the template itself writes between the opening of a turn and the answer: for Qwen3, empty thinking."""
        asked = user_turn("?")
        opening = render_chat(self.tokenizer, [asked], add_generation_prompt=True)
        x, y = (
            render_chat(self.tokenizer, [asked, assistant_turn(text)], add_generation_prompt=False) for text in "xy"
        )
        if not continues(opening, x):
            raise UserError(
                f"{self.target}: its chat template opens the assistant's turn with {self.ending(opening)} but shows a "
                f"finished one as {self.ending(x)}: nothing says what of that is the answer. "
                f"Mend the template, {WRITTEN_INSTEAD}"
            )
        shared = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(x, y, strict=False))]
        return tuple(shared[len(opening) :])

    def opening_ids(self, messages: Sequence[Message], where: str) -> list[int]:
        """A conversation as the target reads it before it answers."""
        return self.render(messages, where, add_generation_prompt=True)

    def answered(self, messages: Sequence[Message], where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the target reads before the last message, and that message up to and with the token that ends it.

        Raises:
            UserError: If the template refuses the conversation, or shows the last message not as its answer.
        """
        opening = self.opening_ids(messages[:-1], where)
        whole = self.render(messages, where, add_generation_prompt=False)
        location = f"{where}: messages[{len(messages) - 1}]"
        self.refuse_stop_within(messages[-1]["content"], location)
        if not continues(opening, whole):
            raise UserError(
                f"{location}: the chat template does not continue its opening of this turn, it ends "
                f"{self.ending(whole)}. Mend the row or the template, {WRITTEN_INSTEAD}"
            )
        start = len(opening) + (len(self.lead_ids) if continues(self.lead_ids, whole[len(opening) :]) else 0)
        end = self.end_of_answer(whole, start, location)
        return tuple(whole[:start]), tuple(whole[start:end])

    def end_of_answer(self, whole: Sequence[int], start: int, location: str) -> int:
        """Where the answer that begins at start has ended, its stop token included."""
        for position in range(start, len(whole)):
            if whole[position] in self.stop_ids:
                return position + 1
        stops = ", ".join(repr(self.tokenizer.decode([each])) for each in sorted(self.stop_ids)) or "none"
        raise UserError(
            f"{location}: the chat template ends it with {self.ending(whole)}, without a stop token of the target "
            f"({stops}). "
            f"Name the right ones as eos_token_id in {self.target / 'generation_config.json'}, {WRITTEN_INSTEAD}"
        )

    def render(self, messages: Sequence[Message], where: str, *, add_generation_prompt: bool) -> list[int]:
        """The conversation in the template's words; UserErrors name the row."""
        try:
            ids = render_chat(self.tokenizer, messages, add_generation_prompt=add_generation_prompt)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        require_rows_for_row(ids, self.target, self.vocab_size, where)
        return ids

    def refuse_stop_within(self, answer: str, location: str) -> None:
        """Refuse an answer with a stop token's text in it: the target would have ended there."""
        ids = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        within = [each for each in ids if each in self.stop_ids]
        if within:
            raise UserError(
                f"{location}.content holds {self.tokenizer.decode(within[:1])!r}, which ends an answer of this target. "
                "Mend or delete this row."
            )

    def ending(self, ids: Sequence[int]) -> str:
        """The last tokens of a rendering, quoted."""
        return repr(self.tokenizer.decode(list(ids[-SHOWN:])))
