"""The facts that preflight looks at. One that is not known is None, and a rule that needs it says so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from architectures.shapes.context_length import ContextLength
from architectures.shapes.shape import Shape

DEFAULT_LOOKAHEAD = 3  # llama.cpp's, SGLang's and TensorRT-LLM's own


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A folder's tokenizer.json with the settings beside it.

    Attributes:
        template: The chat template as JSON: a text, several by name, or null.
        ids: Id of every text, as transformers' get_vocab.
        kind: Of its model, as BPE or Unigram.
        adds: add_bos_token and add_eos_token as tokenizer_config.json has them, and its post-processor.
        special: Ids of bos and eos.
    """

    template: str
    ids: Mapping[str, int]
    kind: str
    adds: tuple[bool | None, bool | None, str]
    special: tuple[int | None, int | None]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A draft or a target, as far as engines look.

    Attributes:
        name: As a serve line names it.
        path: By which an engine may guess a method: absolute of a folder, else the hub id.
        model_type: Of the part that outputs tokens.
        vocab_size: By its config.
        small_head: Rows of an output head that outputs some ids alone; 0 where it outputs all.
        shape: None of a family that widedraft does not know.
        explicit_head_dim: Whether its config states how wide a head is.
        context: None where its config names no length.
        dtype: Of its weights, by its config.
        quantisation: Method of its weights; None where they are plain numbers.
        custom_code: Whether its config names code of its own (auto_map).
        multimodal: Whether it reads more than text.
        eagle_entry: Whether its config has draft_vocab_size, by which llama.cpp knows EAGLE-3.
        rotary_layers: Of each layer 1 if it has rotary positions, else 0; None where all have, or none is cut yet.
        window: Tokens that layers with a sliding window look back; None where no layer has one.
        tokenizer: None where it cannot be read, for the reason in without_tokenizer.
        settings: generation_config.json; None where it cannot be read, empty where there is none.
        form: Of `widedraft export --form`, where it was made so.
        planned: Whether it is the shape of a recipe, of which nothing is written yet.
    """

    name: str
    path: str
    model_type: str
    vocab_size: int | None
    small_head: int = 0
    shape: Shape | None = None
    explicit_head_dim: bool = True
    context: ContextLength | None = None
    dtype: str | None = None
    quantisation: str | None = None
    custom_code: bool = False
    multimodal: bool = False
    eagle_entry: bool = False
    rotary_layers: tuple[int, ...] | None = None
    window: int | None = None
    tokenizer: Tokenizer | None = None
    without_tokenizer: str = "its files are not on this machine"
    settings: Mapping[str, Any] | None = None
    form: Literal["whole", "own-tokenizer"] | None = None
    planned: bool = False


@dataclass(frozen=True)
class Drafting:
    """How an engine has a draft propose.

    Attributes:
        lookahead: Tokens a round at most.
        confidence: Least probability of what the draft finds likeliest, below which a round ends; 0 for none.
    """

    lookahead: int
    confidence: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What is to be served.

    Attributes:
        revision: Of a target on the hub.
        tensor_parallel: Devices that share the target's tensors.
        lookahead: Tokens proposed a round.
        drafting: By engine, how it drafts otherwise than by rounds of so many tokens.
    """

    draft: Model
    target: Model
    revision: str = "main"
    tensor_parallel: int = 1
    lookahead: int = DEFAULT_LOOKAHEAD
    drafting: Mapping[str, Drafting] = field(default_factory=dict)

    def drafting_of(self, engine: str) -> Drafting:
        """How one engine drafts."""
        return self.drafting.get(engine, Drafting(self.lookahead))

    @property
    def unread_tokenizer(self) -> str | None:
        """Which of the two tokenizers is not known and why, in words; None if both are."""
        for role, model in (("draft", self.draft), ("target", self.target)):
            if model.tokenizer is None:
                return f"the tokenizer of the {role} ({model.name}): {model.without_tokenizer}"
        return None

    @property
    def own_tokenizer(self) -> bool:
        """Whether the draft is known to have other tokens than its target."""
        if self.draft.form == "own-tokenizer":
            return True
        ours, theirs = self.draft.tokenizer, self.target.tokenizer
        return ours is not None and theirs is not None and ours.ids != theirs.ids

    @property
    def own_vocabulary(self) -> bool:
        """Whether it can be served as a model of a vocabulary of its own alone."""
        return self.own_tokenizer and self.draft.vocab_size != self.target.vocab_size
