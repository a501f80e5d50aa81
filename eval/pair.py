"""A target and a draft loaded together for decoding, and their prompts."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from architectures.hub import resolve_checkpoint
from architectures.manifest import fingerprint_checkpoint
from architectures.settings import WHOLE, Holding
from eval.chat import render_prompt, user_turn
from eval.large_targets import load_target
from eval.models import load_model, load_tokenizer, require_positions, require_same_tokenizer, stop_token_ids
from eval.prompts import Prompt, load_in_turn, load_prompts
from eval.scorecard_schema import ModelIdentity
from eval.tasks import prompt_sources

# Default prompts: of many kinds, and none of those in recipes/prompts, which the quickstart trains on.
PROMPTS = tuple(Path(__file__).with_name("built_in_prompts.txt").read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True)
class LoadedPair:
    """A target and a draft with the same tokenizer."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    folders: tuple[Path, Path]
    bits: int | None = None  # per weight of the target's linear layers, if quantised

    @property
    def stop_ids(self) -> AbstractSet[int]:
        return stop_token_ids(self.target)

    def target_identity(self) -> ModelIdentity:
        target = identity_of(self.folders[0], self.target)
        return target if self.bits is None else replace(target, dtype=f"{self.bits} bits")

    def draft_identity(self) -> ModelIdentity:
        return identity_of(self.folders[1], self.draft)

    def rendered(self, prompt: Prompt) -> list[int]:
        return render_prompt(self.tokenizer, prompt)

    def require_context(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        longest = max(map(len, prompts)) + max_new_tokens
        for folder in self.folders:
            require_positions(folder, longest)


def identity_of(folder: Path, model: PreTrainedModel) -> ModelIdentity:
    """Return a model's identity; hashes all its weights unless a hash is cached and the files are unchanged."""
    return ModelIdentity(str(folder), fingerprint_checkpoint(folder), str(model.dtype).removeprefix("torch."))


def load_pair(target: str, draft: str, *, dtype: str, holding: Holding = WHOLE) -> LoadedPair:
    """Load both models, from directories or hub ids.

    Raises:
        UserError: If one cannot be read, or their tokenizers differ.
    """
    [pair] = load_pairs(target, [draft], dtype=dtype, holding=holding)
    return pair


def load_pairs(target: str, drafts: Sequence[str], *, dtype: str, holding: Holding = WHOLE) -> list[LoadedPair]:
    """Load a target once, and several drafts of it; errors as for `load_pair`."""
    first, *others = (resolve_checkpoint(each) for each in (target, *drafts))
    for folder in others:
        require_same_tokenizer(first, folder)
    model = load_target(first, dtype=dtype, holding=holding, encoder_decoder=True)
    tokenizer, bits = load_tokenizer(first), holding.bits
    return [
        LoadedPair(model, load_model(folder, dtype=dtype, encoder_decoder=True), tokenizer, (first, folder), bits)
        for folder in others
    ]


def prompts_of(
    words: Sequence[str] | None, count: int | None, chat_template_kwargs: Mapping[str, Any] | None = None
) -> list[Prompt]:
    """Load the prompts of named files and tasks, or PROMPTS if none is named.

    With a count, the first `count` prompts, interleaved over the sources; without one all, source after source.
    """
    if words:
        sources = prompt_sources(words)
        kwargs = [chat_template_kwargs or {}]
        if count is None:
            return load_prompts(sources, chat_template_kwargs=kwargs)
        return load_in_turn(sources, most=count, chat_template_kwargs=kwargs)[:count]
    return [
        Prompt(f"built-in:{number}", (user_turn(text),), chat_template_kwargs=chat_template_kwargs or {})
        for number, text in enumerate(PROMPTS[:count], start=1)
    ]
