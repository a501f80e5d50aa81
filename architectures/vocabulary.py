"""Reduced vocabulary: the ids of a draft's output head, its file, its model cards, and coverage. No torch.

The input embedding stays whole: a draft reads every token. Only rows of the output head are pruned, to the ids that
the target outputs most. Every other id has probability zero, which costs the draft only that token: rejection sampling
stays lossless whatever the draft cannot output.

Source: FR-Spec, Zhao et al. 2025 (arXiv 2502.14856), and VocabTrim, Goel et al. 2025 (arXiv 2506.22694).
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, WithJsonSchema, model_validator

from architectures.errors import UserError
from architectures.files import looked_for, parsed, read_json_object, read_text, shown, write_text
from architectures.manifest import TOKENIZER_SETTINGS
from architectures.settings import Section
from architectures.shapes import CONFIG_KEY, Shape
from architectures.target_files import SPECIAL_IDS, read_generation_settings

COUNTED = ("responses", "text")  # sources of token counts; any other origin is the path of a list
Origin = Annotated[
    str,
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": list(COUNTED)},
                {"type": "string", "pattern": ".", "title": "the path of a list", "examples": ["ids.json"]},
            ]
        }
    ),
]


class VocabularyConfig(Section):
    """Which token ids the draft can say: its output head has a row for each of these and no other."""

    size: int | None = Field(
        default=None,
        ge=1,
        description="Number of output ids, including special and single-byte tokens; null: the whole list.",
    )
    origin: Origin = Field(
        default="responses",
        alias="from",
        description="Rank ids by frequency in the training responses or in section text; or the path of a JSON list of "
        "ids, or of a draft whose ids to use.",
    )

    @model_validator(mode="after")
    def _counts_need_an_end(self) -> "VocabularyConfig":
        if self.size is None and self.origin in COUNTED:
            raise ValueError(f"must contain size with from: {self.origin}; only a list has its own length.")
        return self


DRAFT_VOCABULARY_NAME = "draft_vocabulary.json"
UNUSED_IDS = "never_said"  # of origin: ids that are always kept but never occurred in the counted data
MOST_MIB = 64
VOCABULARY_HINT = "Copy it from the original draft, or create the draft again."


@dataclass(frozen=True, kw_only=True)
class DraftVocabulary:
    """Vocabulary of an output head: row k outputs token ids[k].

    Attributes:
        ids: Ascending, so that the ids below any bound are the first rows.
        vocab_size: Of the target, and of the input embedding.
        origin: Provenance: the counted data, its size, and the ids that never occurred in it.
        unknown_id: Id that is not output, whose row of the input embedding was trained to represent all such ids (see
            distill.unknown_inputs); None if none was.
    """

    ids: tuple[int, ...]
    vocab_size: int
    origin: Mapping[str, Any] = field(default_factory=dict)
    unknown_id: int | None = None

    @property
    def unused_ids(self) -> tuple[int, ...]:
        """Ids that never occurred in the counted data, which training only pushes down; empty if not counted."""
        return tuple(self.origin.get(UNUSED_IDS, ()))

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def broken_law(ids: tuple[int, ...], vocab_size: int) -> str | None:
    if not ids:
        return "ids must contain at least one id, got none"
    if any(a >= b for a, b in pairwise(ids)):
        return "ids must be strictly ascending"
    if ids[0] < 0 or ids[-1] >= vocab_size:
        return f"ids must be from 0 to {vocab_size - 1}, got {ids[0] if ids[0] < 0 else ids[-1]}"
    return None


def read_draft_vocabulary(folder: Path) -> DraftVocabulary:
    """Read the ids of a draft with a reduced head; UserError if the file is missing, damaged or invalid."""
    path = folder / DRAFT_VOCABULARY_NAME
    return parse_draft_vocabulary(read_text(path, hint=VOCABULARY_HINT, most_mib=MOST_MIB), path)


def parse_draft_vocabulary(text: str, path: Path) -> DraftVocabulary:
    """Parse draft_vocabulary.json; raises as `read_draft_vocabulary`."""
    vocabulary = parsed(TypeAdapter(DraftVocabulary), text, f"{path}: not a list of output ids", VOCABULARY_HINT)
    mistake, unknown = broken_law(vocabulary.ids, vocabulary.vocab_size), vocabulary.unknown_id
    if unknown is not None and (unknown not in range(vocabulary.vocab_size) or unknown in vocabulary.ids):
        mistake = f"unknown_id must be below {vocabulary.vocab_size} and not an output id, got {unknown}"
    unused = vocabulary.origin.get(UNUSED_IDS, [])
    are_ids = isinstance(unused, list) and all(type(id_) is int for id_ in unused)
    if not are_ids or not set(unused) <= set(vocabulary.ids):
        mistake = f"origin.{UNUSED_IDS} must be a subset of ids, got {shown(unused)}"
    if mistake is not None:
        raise UserError(f"{path}: {mistake}. {VOCABULARY_HINT}")
    return vocabulary


def reject_small_head(config: Mapping[str, Any], where: str) -> None:
    """Raise UserError if a model has a reduced vocabulary; targets, which verify and teach, need every id."""
    if CONFIG_KEY in config:
        raise UserError(
            f"{where}: {CONFIG_KEY} is {config[CONFIG_KEY]}: a draft with a reduced vocabulary cannot be a target. "
            "Use the draft's target."
        )


def write_draft_vocabulary(vocabulary: DraftVocabulary, folder: Path) -> None:
    write_text(vocabulary.to_json(), folder / DRAFT_VOCABULARY_NAME)


def coverage(ids: Collection[int], counts: Mapping[int, int]) -> float:
    """Return the share of counted tokens that are among `ids`, in [0, 1]; NaN if there are no tokens."""
    total = sum(counts.values())
    return sum(counts.get(id_, 0) for id_ in ids) / total if total else float("nan")


Form = Literal["whole", "own-tokenizer"]
TOKENIZER = "tokenizer.json"
TOKENS_HINT = "Download the checkpoint again."
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTED = ("additional_special_tokens", "extra_special_tokens")
# GPT-2's byte alphabet: printable bytes map to themselves, the remaining 68 to the characters from 256 on.
BYTE_SIGNS = frozenset(map(chr, [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]))
BYTE_NAMES = frozenset(f"<0x{byte:02X}>" for byte in range(256))  # sentencepiece byte fallback


@dataclass(frozen=True)
class Tokens:
    """Token ids of a tokenizer that have a row in its model.

    Attributes:
        special: Includes BOS, EOS and padding.
        single_bytes: Tokens of one byte.
        ends: Stop tokens of the generation config.
    """

    ids: frozenset[int]
    special: frozenset[int]
    single_bytes: frozenset[int]
    ends: frozenset[int]

    @property
    def always(self) -> frozenset[int]:
        """Ids that are kept whatever their count."""
        return self.special | self.single_bytes


def read_tokens(folder: Path, vocab_size: int) -> Tokens:
    """Read the tokens of a checkpoint directory with a tokenizer.json; UserError if a file is damaged."""
    return tokens_of(read_json_object(folder / TOKENIZER, TOKENS_HINT), folder, vocab_size)


def tokens_of(tokenizer: Mapping[str, Any], folder: Path, vocab_size: int) -> Tokens:
    """Return the tokens of a parsed tokenizer.json.

    Args:
        folder: Of the checkpoint, whose settings name special tokens too.
        vocab_size: Ids from here on have no row.
    """
    settings = folder / TOKENIZER_SETTINGS
    config = read_json_object(settings, TOKENS_HINT) if settings.is_file() else {}
    try:
        by_text = {
            **vocabulary(tokenizer["model"]),
            **{token["content"]: token["id"] for token in tokenizer["added_tokens"]},
        }
        special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
        special |= {by_text[text] for text in named_special(config) if text in by_text}
        signs = BYTE_NAMES | (BYTE_SIGNS if splits_into_bytes(tokenizer) else frozenset())
        single_bytes = {by_text[sign] for sign in signs if sign in by_text}
        ids = frozenset(number for number in by_text.values() if number < vocab_size)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"{folder / TOKENIZER}: not a tokenizer ({type(error).__name__}: {error}). {TOKENS_HINT}"
        ) from error
    generation, model = read_generation_settings(folder), read_json_object(folder / "config.json", TOKENS_HINT)
    special |= {number for values in (generation, model) for key in SPECIAL_IDS for number in listed(values.get(key))}
    ends = frozenset(listed(generation.get("eos_token_id")))
    return Tokens(ids, ids & special, ids & single_bytes, ids & ends)


def vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """Return ids by token string; a unigram model lists its tokens with their scores, in order of their ids."""
    entries = model["vocab"]
    return dict(entries) if isinstance(entries, dict) else {text: number for number, (text, _) in enumerate(entries)}


def named_special(config: Mapping[str, Any]) -> Iterator[str]:
    named = [config.get(name) for name in NAMED]
    for name in LISTED:
        entries = config.get(name) or ()
        named += entries.values() if isinstance(entries, dict) else entries
    for entry in named:
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            yield text


def splits_into_bytes(tokenizer: Mapping[str, Any]) -> bool:
    """Return True if tokens are written in GPT-2's byte alphabet."""
    return '"type": "ByteLevel"' in json.dumps([tokenizer.get("pre_tokenizer"), tokenizer.get("decoder")])


def listed(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


KEY = "architecture.vocabulary"
LIST_HINT = f"Set {KEY}.from to responses, to text, or to the path of a JSON list of token ids."


def list_file(origin: str) -> Path:
    """Return the file that a recipe's `from` names, directly or by the directory of a draft."""
    path = Path(origin).expanduser()
    if path.is_dir():
        if not (path / DRAFT_VOCABULARY_NAME).is_file():
            raise UserError(
                f"{origin}: is a directory without {DRAFT_VOCABULARY_NAME}, so not a draft with output ids. {LIST_HINT}"
            )
        return path / DRAFT_VOCABULARY_NAME
    if not path.exists():
        raise UserError(f"{origin}: no such file, for {KEY}.from.{looked_for(path)} {LIST_HINT}")
    return path


def read_list(origin: str, size: int | None) -> tuple[int, ...]:
    """Read the first `size` ids of a list, in its order; of a draft all ids, ascending.

    Args:
        origin: A file, or the directory of a draft.
        size: None returns all.

    Raises:
        UserError: If it is not a list of unique ids, or has fewer than `size`.
    """
    path = list_file(origin)
    text = read_text(path, hint=LIST_HINT, most_mib=MOST_MIB)
    if text.lstrip().startswith("{"):
        ids = parse_draft_vocabulary(text, path).ids
        if size not in (None, len(ids)):
            raise UserError(
                f"{path}: contains {len(ids)} ids in ascending order, not ranked, and {KEY}.size is "
                f"{size}. Remove size, or use a list that starts with the ids to keep."
            )
        return ids
    ids = parsed(TypeAdapter(tuple[int, ...]), text, f"{path}: not a JSON list of token ids", LIST_HINT)
    if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
        raise UserError(f"{path}: must contain distinct ids >= 0, got {shown(list(ids))}. {LIST_HINT}")
    if size is not None and size > len(ids):
        raise UserError(f"{path}: contains {len(ids)} ids, but {KEY}.size is {size}. Lower or remove it.")
    return ids if size is None else ids[:size]


def require_fitting(ids: tuple[int, ...], tokens: Tokens, path: Path, target: Path) -> None:
    """Check that all ids exist in the target's tokenizer and include its end tokens."""
    if unknown := sorted(set(ids) - tokens.ids):
        raise UserError(
            f"{path}: contains {shown(unknown)}, which the tokenizer of {target} does not have. Its ids are from "
            f"{min(tokens.ids)} to {max(tokens.ids)}: use a list created with this tokenizer."
        )
    if missing := sorted(tokens.ends - set(ids)):
        raise UserError(
            f"{path}: its first {len(ids)} ids lack {shown(missing)}, stop tokens of {target}. "
            "Move all stop tokens to the beginning of the list."
        )


def with_requested_head(draft: Shape, wanted: VocabularyConfig | None) -> Shape:
    """Return the draft's shape with the untied output head of a recipe; None keeps the head.

    Raises:
        UserError: As `requested_size`, or if the source's head is already reduced to another number of ids.
    """
    if wanted is None:
        return draft
    size = requested_size(wanted, draft.vocab)
    if draft.head_vocab not in (0, size):
        raise UserError(
            f"{KEY} requests {size} ids, but the source outputs only {draft.head_vocab}. Removed rows cannot be "
            f"restored: remove {KEY} to keep its ids, or prune a model with a full head."
        )
    return draft.with_head_of(size)


def requested_size(wanted: VocabularyConfig, vocab_size: int) -> int:
    """Return the number of ids the draft outputs; UserError if it is not below the target's."""
    size = wanted.size if wanted.origin in COUNTED else len(read_list(wanted.origin, wanted.size))
    assert size is not None  # counts require a size
    if size >= vocab_size:
        raise UserError(
            f"{KEY}.size must be below the target's vocab_size {vocab_size}, got {size}. Remove {KEY} for all ids."
        )
    return size


def ids_by_count(counts: Mapping[int, int], tokens: Tokens, size: int) -> tuple[int, ...]:
    """Return `size` ids, ascending: special tokens and bytes, then the most frequent, then the lowest unused ids."""
    if size < len(tokens.always):
        raise UserError(
            f"{KEY}.size must be at least {len(tokens.always)}, got {size}: {len(tokens.special)} special tokens and "
            f"{len(tokens.single_bytes)} single bytes are always kept. Raise it, or set {KEY}.from to a list."
        )
    if size > len(tokens.ids):
        raise UserError(
            f"{KEY}.size must be at most {len(tokens.ids)}, the size of the target's tokenizer, got {size}: "
            f"larger ids are padding. Lower it, or remove {KEY}."
        )
    frequent = sorted(
        (id_ for id_ in tokens.ids - tokens.always if counts.get(id_, 0) > 0), key=lambda id_: (-counts[id_], id_)
    )
    # BPE merges and sentencepiece pieces are numbered by falling frequency, so among ids that never occurred the
    # lowest is the most likely to occur later.
    unsaid = sorted(tokens.ids - tokens.always - set(frequent))
    return tuple(sorted([*tokens.always, *[*frequent, *unsaid][: size - len(tokens.always)]]))


CARD_NAME = "README.md"


def small_head_card(vocabulary: DraftVocabulary, head: str) -> str:
    """Return the model card of a draft as widedraft trains and decodes it; `head` is the name of the head's tensor."""
    return f"""# A draft with a reduced output head

It reads every token of its target and proposes only {len(vocabulary.ids):,} of the {vocabulary.vocab_size:,} ids: row k
of `{head}` is token `ids[k]` of `draft_vocabulary.json`. widedraft loads this directory unchanged. transformers, vLLM,
SGLang and llama.cpp expect a row for every id; export a form that they load:

    widedraft export THIS_DIR --to DIR --form whole          # any engine; full head, so no faster
    widedraft export THIS_DIR --to DIR --form own-tokenizer  # vLLM with use_heterogeneous_vocab; as fast as here
"""


def whole_head_card(vocabulary: DraftVocabulary, *, tied_in: Sequence[str]) -> str:
    """Return the model card of a draft with an expanded head; engines in `tied_in` always tie the head."""
    warning = f"\n**Not for {', '.join(tied_in)}**, which ties the output head of this family.\n"
    return f"""# A draft with its output head expanded

A regular checkpoint for transformers, vLLM, SGLang and llama.cpp, trained to propose {len(vocabulary.ids):,} of
{vocabulary.vocab_size:,} ids. The row of every other id is their mean, so greedy proposals equal those of the
reduced head. **This form is no faster**: the head has as many rows as the target's.
{warning if tied_in else ""}"""


def own_tokenizer_card(vocabulary: DraftVocabulary, unknown: str) -> str:
    """Return the model card of a draft with its own tokenizer and the string of its unknown token."""
    known, how = len(vocabulary.ids), "is a mean" if vocabulary.unknown_id is None else "was trained"
    return f"""# A draft with its own vocabulary

For vLLM's `use_heterogeneous_vocab`, which maps tokens by their strings (arXiv 2502.05202). It has {known:,} of its
target's {vocabulary.vocab_size:,} tokens, with ids 0 to {known - 1}, and reads every other token as `{unknown}`,
id {known}, whose row {how} (distill.unknown_inputs).

    vllm serve TARGET --speculative-config '{{"method": "draft_model", "model": "THIS_DIR", \
"num_speculative_tokens": 3, "use_heterogeneous_vocab": true}}'
"""
