"""tokenizer.json and the files beside it for some tokens of a tokenizer, under new ids. Pure; no torch.

Token ids[k] gets id k, and the last id, len(ids), is the unknown token's. Each token keeps its text, by which vLLM
finds it in the target's vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from architectures.errors import UserError

Values = dict[str, Any]
CUT_KIND = "BPE"  # the one model of the tokenizers library whose parts are known to come apart
PLAIN_FRAMES = (None, "ByteLevel")  # post-processors that name no token
REMEDY = "Use --form whole."


def cut_tokenizer(tokenizer: Values, ids: Sequence[int], *, where: str) -> Values:
    """A tokenizer.json of these tokens and an unknown one, whose text is the model's unk_token.

    A merge stays where both parts and their sum do. Text whose tokens are all kept may be cut otherwise than by the
    whole tokenizer, where a token was built by way of one that is gone; what reads it in an engine are ids.

    Args:
        tokenizer: A tokenizer.json.
        ids: Of the tokens kept, ascending.
        where: The file, for messages.

    Raises:
        UserError: If it is of a kind that is not cut.
    """
    refuse_uncut(tokenizer, where)
    unknown = unknown_text(tokenizer)
    new_ids = {old: new for new, old in enumerate(ids)}
    model = tokenizer["model"]
    specials = [{**token, "id": new_ids[token["id"]]} for token in tokenizer["added_tokens"] if token["id"] in new_ids]
    vocab = {text: new_ids[old] for text, old in model["vocab"].items() if old in new_ids}
    vocab |= {token["content"]: token["id"] for token in specials}  # or the library would choose their ids itself
    vocab[unknown] = len(ids)
    cut = {
        **model,
        "vocab": dict(sorted(vocab.items(), key=lambda pair: pair[1])),
        "merges": kept_merges(model, vocab),
        "unk_token": unknown,
    }
    return {
        **tokenizer,
        "model": cut,
        "added_tokens": [*specials, unknown_entry(unknown, len(ids))],
        "post_processor": cut_frame(tokenizer.get("post_processor"), vocab, unknown),
    }


def refuse_uncut(tokenizer: Mapping[str, Any], where: str) -> None:
    """Raise UserError for a tokenizer of which no part makes a tokenizer."""
    kind = (tokenizer.get("model") or {}).get("type")
    if kind != CUT_KIND:
        raise UserError(f"{where}: a tokenizer of kind {kind}; only {CUT_KIND} can be cut to some tokens. {REMEDY}")
    for frame in frames(tokenizer.get("post_processor")):
        if frame not in (*PLAIN_FRAMES, "TemplateProcessing"):
            raise UserError(f"{where}: its post-processor {frame} names tokens in a way that is not known. {REMEDY}")


def frames(post_processor: Mapping[str, Any] | None) -> list[str | None]:
    """The kinds of a tokenizer's post-processors."""
    if post_processor is None:
        return [None]
    if post_processor["type"] == "Sequence":
        return [kind for part in post_processor["processors"] for kind in frames(part)]
    return [post_processor["type"]]


def kept_merges(model: Mapping[str, Any], vocab: Mapping[str, int]) -> list[Any]:
    """The merges whose parts and sum are kept, in their order; each as the file writes it."""
    prefix = model.get("continuing_subword_prefix") or ""
    kept = []
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left in vocab and right in vocab and left + right.removeprefix(prefix) in vocab:
            kept.append(merge)
    return kept


def unknown_entry(text: str, id_: int) -> Values:
    """The unknown token as tokenizer.json lists added ones."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id_, "content": text, **plain, "special": True}


def unknown_text(tokenizer: Mapping[str, Any]) -> str:
    """A text for the unknown token that no token of a tokenizer.json has: vLLM would take one for the other."""
    taken = {*tokenizer["model"]["vocab"], *(token["content"] for token in tokenizer["added_tokens"])}
    text = "<|unknown|>"
    while text in taken:
        text = f"<{text}>"
    return text


def cut_frame(frame: Values | None, vocab: Mapping[str, int], unknown: str) -> Values | None:
    """A post-processor whose special tokens have their new ids; one that is gone is the unknown token."""
    if frame is None or frame["type"] in PLAIN_FRAMES:
        return frame
    if frame["type"] == "Sequence":
        return {**frame, "processors": [cut_frame(part, vocab, unknown) for part in frame["processors"]]}
    tokens = {}
    for name, token in frame["special_tokens"].items():
        texts = [text if text in vocab else unknown for text in token["tokens"]]
        tokens[name] = {**token, "tokens": texts, "ids": [vocab[text] for text in texts]}
    return {**frame, "special_tokens": tokens}


def cut_settings(settings: Values, vocab: Mapping[str, int], unknown: str) -> Values:
    """tokenizer_config.json or special_tokens_map.json for the tokens of a vocabulary.

    A special token that is not kept is the unknown one; of lists and tables it is left out.
    """
    cut = {
        name: special(value, vocab, unknown) if name.endswith("_token") else value for name, value in settings.items()
    }
    for name in ("additional_special_tokens", "extra_special_tokens"):
        if isinstance(cut.get(name), list):
            cut[name] = [token for token in cut[name] if text_of(token) in vocab]
    if "added_tokens_decoder" in cut:
        tokens = cut["added_tokens_decoder"].values()
        cut["added_tokens_decoder"] = {str(vocab[text_of(token)]): token for token in tokens if text_of(token) in vocab}
    return cut


def special(token: Any, vocab: Mapping[str, int], unknown: str) -> Any:
    """A special token as settings name it; flags such as add_bos_token are no tokens."""
    if isinstance(token, str | dict) and text_of(token) not in vocab:
        return unknown
    return token


def text_of(token: str | Mapping[str, Any]) -> str:
    """Its text, where settings may describe it too."""
    return token if isinstance(token, str) else token["content"]


def cut_ids(settings: Values, ids: Sequence[int]) -> Values:
    """config.json or generation_config.json with every token id replaced by the new one.

    An id that is not kept is the unknown token's, which is never proposed; of ids to suppress it is left out.
    """
    new_ids = {old: new for new, old in enumerate(ids)}
    cut = dict(settings)
    for name, value in settings.items():
        if name.endswith(("token_id", "token_ids")):
            cut[name] = renumbered(value, new_ids)
        elif name in ("suppress_tokens", "begin_suppress_tokens") and value is not None:
            cut[name] = [new_ids[old] for old in value if old in new_ids]
    return cut


def renumbered(value: Any, new_ids: Mapping[int, int]) -> Any:
    """One id, several, or none, as new ids; those that are the same then stand there once."""
    if isinstance(value, list):
        return list(dict.fromkeys(renumbered(old, new_ids) for old in value))
    return new_ids.get(value, len(new_ids)) if isinstance(value, int) and value >= 0 else value
