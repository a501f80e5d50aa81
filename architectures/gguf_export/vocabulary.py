"""What a GGUF file says of a tokenizer: tokens, types, merges or scores, special ids, chat template."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from gguf import TokenType
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from architectures.checkpoints.generation_settings import read_generation_settings
from architectures.errors import UserError
from architectures.gguf.importing import TOKENIZER_ERRORS
from architectures.gguf_export.pieces import begins_with_space, is_sentencepiece, piece_scores
from architectures.gguf_export.splitting import flattened, merge_text, splitting_name

COPY_TOKENIZER = "Copy the target's tokenizer files there."
CONVERTER = "Convert the folder with llama.cpp's convert_hf_to_gguf.py."
SPECIAL_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "unk_token_id": "unknown", "pad_token_id": "padding"}
PROBE = "a"


@dataclass(frozen=True, kw_only=True)
class GgufVocabulary:
    """The `tokenizer.*` entries of a file.

    Attributes:
        model: "gpt2" for byte-level BPE, "llama" for SentencePiece.
        splitting: Of a byte-level one, `tokenizer.ggml.pre`.
        scores: Of a SentencePiece one, by which it merges.
        flags: `tokenizer.ggml.add_*`.
        special_ids: `tokenizer.ggml.*_token_id`.
    """

    model: str
    tokens: Sequence[str]
    types: Sequence[TokenType]
    splitting: str | None = None
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    flags: Mapping[str, bool] = field(default_factory=dict)
    special_ids: Mapping[str, int] = field(default_factory=dict)
    chat_template: str | None = None


def read_vocabulary(folder: Path, rows: int) -> GgufVocabulary:
    """The tokenizer of a checkpoint folder, for a model with so many rows of embeddings.

    Ids without a token are padding that nobody says; llama.cpp wants a text for them too.

    Raises:
        UserError: If there is no tokenizer, llama.cpp has none of its kind, or it has more tokens than the model rows.
    """
    tokenizer = load_tokenizer(folder)
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    texts = {id_: text for text, id_ in tokenizer.get_vocab().items()}
    if max(texts) >= rows:
        raise UserError(
            f"{folder}: its tokenizer has tokens up to id {max(texts)}, and its model {rows} rows. {COPY_TOKENIZER}"
        )
    tokens = [texts.get(id_, f"[PAD{id_}]") for id_ in range(rows)]
    common: dict[str, Any] = {
        "tokens": tokens,
        "special_ids": special_ids(folder, tokenizer),
        "chat_template": template_of(tokenizer),
    }
    types = token_types(tokenizer, described, texts, rows)
    flags = framing(folder, tokenizer)
    if is_sentencepiece(described):
        scores, with_space = sentencepiece_parts(folder, described, tokens)
        return GgufVocabulary(
            model="llama", types=types, scores=scores, flags=flags | {"space_prefix": with_space}, **common
        )
    splitting = require_splitting(folder, described)
    merges = [merge_text(merge) for merge in described["model"]["merges"]]
    if not merges:
        raise UserError(f"{folder}: its tokenizer has no merges, and llama.cpp loads none such. {COPY_TOKENIZER}")
    return GgufVocabulary(model="gpt2", types=types, splitting=splitting, merges=merges, flags=flags, **common)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer as transformers opens it; no code of the folder is run."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises plain Exceptions
        if not (isinstance(error, TOKENIZER_ERRORS) or type(error) is Exception):
            raise
        message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{folder}: its tokenizer could not be read ({message}). {COPY_TOKENIZER}") from error
    if not tokenizer.is_fast or not tokenizer.get_vocab():
        raise UserError(f"{folder}: holds no tokenizer.json that says what its tokenizer is. {COPY_TOKENIZER}")
    return tokenizer


def token_types(
    tokenizer: PreTrainedTokenizerBase, described: Mapping[str, Any], texts: Mapping[int, str], rows: int
) -> list[TokenType]:
    """What kind of token each id is."""
    added = tokenizer.added_tokens_decoder
    is_pieces = is_sentencepiece(described)

    def type_of(id_: int) -> TokenType:
        if id_ not in texts:
            return TokenType.UNUSED
        if is_pieces and texts[id_] == described["model"].get("unk_token"):
            return TokenType.UNKNOWN
        if id_ in added:
            return TokenType.CONTROL if added[id_].special else TokenType.USER_DEFINED
        return TokenType.BYTE if is_pieces and is_byte(texts[id_]) else TokenType.NORMAL

    return [type_of(id_) for id_ in range(rows)]


def is_byte(text: str) -> bool:
    """Whether a piece stands for one byte: <0x00> to <0xFF>."""
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def sentencepiece_parts(folder: Path, described: Mapping[str, Any], tokens: Sequence[str]) -> tuple[list[float], bool]:
    """Scores, and whether a space goes before a text."""
    scores = piece_scores(tokens, [merge_text(merge) for merge in described["model"]["merges"]])
    with_space = begins_with_space(described)
    if scores is None or with_space is None:
        reason = "merges in an order that no scores give" if scores is None else "treats spaces in an unknown way"
        raise UserError(f"{folder}: its SentencePiece tokenizer {reason}. {CONVERTER}")
    return scores, with_space


def require_splitting(folder: Path, described: Mapping[str, Any]) -> str:
    """llama.cpp's name for the way a byte-level tokenizer splits text.

    Raises:
        UserError: If it is no byte-level BPE, or llama.cpp's name for it is not known here.
    """
    kind = described["model"]["type"]
    if kind != "BPE":
        raise UserError(
            f"{folder}: a tokenizer of kind {kind}; byte-level and SentencePiece BPE are written. {CONVERTER}"
        )
    others = [part["type"] for part in flattened(described.get("normalizer")) if part["type"] != "NFC"]
    if others:  # NFC changes hardly a text, and llama.cpp leaves it out for the target too
        raise UserError(f"{folder}: its tokenizer changes texts by {others[0]}, which llama.cpp does not. {CONVERTER}")
    name = splitting_name(described)
    if name is None:
        kinds = ", ".join(part["type"] for part in flattened(described.get("pre_tokenizer"))) or "nothing"
        raise UserError(
            f"{folder}: its tokenizer splits text into words in a way ({kinds}) whose name in llama.cpp is not known "
            f"with transformers {transformers.__version__}. {CONVERTER}"
        )
    return name


def framing(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
    """Whether a text gets a beginning and an end token, as the tokenizer itself adds them.

    Raises:
        UserError: If it adds anything else.
    """
    bare = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    framed = tokenizer(PROBE)["input_ids"]
    for begins in (False, True):
        for ends in (False, True):
            before, after = [tokenizer.bos_token_id] * begins, [tokenizer.eos_token_id] * ends
            if framed == [*before, *bare, *after]:
                return {"bos_token": begins, "eos_token": ends}
    raise UserError(
        f"{folder}: its tokenizer frames {PROBE!r} as the ids {framed}; llama.cpp adds bos_token, eos_token or "
        f"neither. {COPY_TOKENIZER}"
    )


def special_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The special ids there are, by the name GGUF gives them; one more at which answers stop is the end of a turn."""
    ids = {name: getattr(tokenizer, key) for key, name in SPECIAL_IDS.items()}
    stops = read_generation_settings(folder).get("eos_token_id")
    others = [id_ for id_ in stops if id_ != ids["eos"]] if isinstance(stops, list) else []
    if len(others) == 1:  # of several, llama.cpp finds those it knows by their texts
        ids["eot"] = others[0]
    return {name: id_ for name, id_ in ids.items() if id_ is not None}


def template_of(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The chat template; of several the one that is used where none is named."""
    template = tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


def entries(vocabulary: GgufVocabulary) -> Iterator[tuple[str, Any]]:
    """The scalar entries, by their full names."""
    yield "tokenizer.ggml.model", vocabulary.model
    yield "tokenizer.ggml.pre", vocabulary.splitting or "default"
    for name, value in vocabulary.flags.items():
        yield f"tokenizer.ggml.add_{name}", value
    for name, value in vocabulary.special_ids.items():
        yield f"tokenizer.ggml.{name}_token_id", value
    if vocabulary.chat_template is not None:
        yield "tokenizer.chat_template", vocabulary.chat_template
