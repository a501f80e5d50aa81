"""Convert a draft with a reduced vocabulary into a form that engines load: `widedraft export --form`.

`whole`: the head has a row for every id again. Any engine loads it, without the speedup of the small head.
`own-tokenizer`: a model and a tokenizer of the kept tokens, for vLLM's `use_heterogeneous_vocab`.

Shape suffixes used in this file:
    K = ids that the draft outputs, V = vocabulary entries of its target, H = hidden width
    U = K + 1: the output ids, and the unknown token last
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from architectures.checkpoint import (
    TensorInfo,
    Weights,
    open_weights,
    require_replaceable,
    require_tensors,
    write_weights,
)
from architectures.compatibility import reject_misleading_name, without_vllm
from architectures.errors import UserError
from architectures.families import FAMILIES
from architectures.families.family import Family
from architectures.files import read_text, staged_folder, write_json, write_text
from architectures.hub import read_config
from architectures.manifest import (
    MANIFEST_NAME,
    TOKENIZER_SETTINGS,
    fingerprint_checkpoint,
    read_json_file,
    read_manifest,
    write_manifest,
)
from architectures.pruning.prune import require_numbers
from architectures.shapes import Shape, checkpoint_tensors
from architectures.target_files import (
    MAX_TOKENIZER_MIB,
    SETTINGS_NAME,
    TEMPLATES,
    carry_files,
    read_generation_settings,
    require_tokenizer,
)
from architectures.vocabulary import (
    CARD_NAME,
    CONFIG_KEY,
    TOKENIZER,
    DraftVocabulary,
    Form,
    own_tokenizer_card,
    whole_head_card,
)
from architectures.vocabulary_head import mean_of_dropped, read_head


@dataclass(frozen=True)
class SmallDraft:
    """Draft with a reduced vocabulary; its weights are read one by one."""

    folder: Path
    config: dict[str, Any]
    shape: Shape
    vocabulary: DraftVocabulary
    weights: Weights

    @property
    def family(self) -> Family:
        return FAMILIES[self.shape.family]


def read_small_draft(folder: Path) -> SmallDraft:
    """Read a draft with a reduced vocabulary; UserError if its head outputs all ids, or files mismatch."""
    config = read_config(folder)
    vocabulary = read_head(folder, config)
    if vocabulary is None:
        raise UserError(
            f"{folder}: config.json has no {CONFIG_KEY}: its output head has a row for every id, and engines load "
            "it unchanged. Pass a draft with a reduced vocabulary (architecture.vocabulary)."
        )
    shape = Shape.from_config(config, where=str(folder / "config.json"))
    family = FAMILIES[shape.family]
    weights = open_weights(folder, base_prefix=family.base_prefix)
    require_tensors(weights, checkpoint_tensors(shape), ignored=family.ignored_suffixes)
    return SmallDraft(folder, config, shape, vocabulary, weights)


Values = dict[str, Any]
CUT_KIND = "BPE"  # the only model type of the tokenizers library that can be reduced
PLAIN_FRAMES = (None, "ByteLevel")  # post-processors that name no tokens
HINT = "Use --form whole."


def cut_tokenizer(tokenizer: Values, ids: Sequence[int], *, where: str) -> Values:
    """Return a tokenizer.json of these tokens and an unknown one, whose string is the model's unk_token.

    A merge is kept if both parts and their result are. Text whose tokens are all kept may be tokenized differently
    than by the whole tokenizer, if a token was built through one that is gone; engines pass the draft ids, not text.

    Args:
        ids: Of the tokens kept, ascending.
        where: The file, for messages.
    """
    reject_uncut(tokenizer, where)
    model, new_ids = tokenizer["model"], {old: new for new, old in enumerate(ids)}

    # The unknown token needs a unique string, since vLLM maps tokens by their strings.
    taken, unknown = {*model["vocab"], *(token["content"] for token in tokenizer["added_tokens"])}, "<|unknown|>"
    while unknown in taken:
        unknown = f"<{unknown}>"
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    unknown_token = {"id": len(ids), "content": unknown, **plain, "special": True}

    # Special tokens must be in the vocabulary too, or the library would choose their ids.
    specials = [{**token, "id": new_ids[token["id"]]} for token in tokenizer["added_tokens"] if token["id"] in new_ids]
    vocab = {text: new_ids[old] for text, old in model["vocab"].items() if old in new_ids}
    vocab |= {token["content"]: token["id"] for token in [*specials, unknown_token]}
    cut = {
        **model,
        "vocab": dict(sorted(vocab.items(), key=lambda pair: pair[1])),
        "merges": kept_merges(model, vocab),
        "unk_token": unknown,
    }
    return {
        **tokenizer,
        "model": cut,
        "added_tokens": [*specials, unknown_token],
        "post_processor": cut_frame(tokenizer.get("post_processor"), vocab, unknown),
    }


def reject_uncut(tokenizer: Mapping[str, Any], where: str) -> None:
    """Raise UserError for a tokenizer that cannot be reduced."""
    kind = (tokenizer.get("model") or {}).get("type")
    if kind != CUT_KIND:
        raise UserError(f"{where}: the tokenizer is {kind}; only {CUT_KIND} can be reduced. {HINT}")
    for frame in frames(tokenizer.get("post_processor")):
        if frame not in (*PLAIN_FRAMES, "TemplateProcessing"):
            raise UserError(f"{where}: post-processor {frame} is not supported. {HINT}")


def frames(post_processor: Mapping[str, Any] | None) -> list[str | None]:
    if post_processor is None:
        return [None]
    if post_processor["type"] == "Sequence":
        return [kind for part in post_processor["processors"] for kind in frames(part)]
    return [post_processor["type"]]


def kept_merges(model: Mapping[str, Any], vocab: Mapping[str, int]) -> list[Any]:
    """Return the merges whose parts and result are kept, in order and in the file's format."""
    prefix = model.get("continuing_subword_prefix") or ""
    kept = []
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left in vocab and right in vocab and left + right.removeprefix(prefix) in vocab:
            kept.append(merge)
    return kept


def cut_frame(frame: Values | None, vocab: Mapping[str, int], unknown: str) -> Values | None:
    """Return a post-processor with new ids; a special token that is not kept becomes the unknown token."""
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
    """Return tokenizer_config.json or special_tokens_map.json for the tokens of a vocabulary.

    A special token that is not kept becomes the unknown one; lists and tables omit it.
    """

    def is_kept(token: str | Mapping[str, Any]) -> bool:
        return (token if isinstance(token, str) else token["content"]) in vocab

    cut = dict(settings)
    for name, token in settings.items():
        if name.endswith("_token") and isinstance(token, str | dict) and not is_kept(token):
            cut[name] = unknown
    for name in ("additional_special_tokens", "extra_special_tokens"):
        if isinstance(cut.get(name), list):
            cut[name] = [token for token in cut[name] if is_kept(token)]
    if "added_tokens_decoder" in cut:
        tokens = [token for token in cut["added_tokens_decoder"].values() if is_kept(token)]
        cut["added_tokens_decoder"] = {str(vocab[token["content"]]): token for token in tokens}
    return cut


def cut_ids(settings: Values, ids: Sequence[int]) -> Values:
    """Return config.json or generation_config.json with every token id renumbered.

    An id that is not kept becomes the unknown token's, which is never proposed; suppression lists omit it.
    """
    new_ids = {old: new for new, old in enumerate(ids)}

    def renumbered(value: Any) -> Any:
        if isinstance(value, list):
            return list(dict.fromkeys(renumbered(old) for old in value))
        return new_ids.get(value, len(ids)) if isinstance(value, int) and value >= 0 else value

    cut = dict(settings)
    for name, value in settings.items():
        if name.endswith(("token_id", "token_ids")):
            cut[name] = renumbered(value)
        elif name in ("suppress_tokens", "begin_suppress_tokens") and value is not None:
            cut[name] = [new_ids[old] for old in value if old in new_ids]
    return cut


SHARE_OF_ALL = 1 / 16  # of the plain mean: the losing row stays below the largest logit even if pushed rows tie for it


def losing_row(head_KH: Tensor, pushed_K: Tensor) -> Tensor:
    """Return row_H for an id that the draft must never propose, in the head's dtype.

    A mean of the head's rows, each with a weight above zero. Its logit is the same mean of the K logits whatever the
    hidden state, since a head has no bias: at most the largest, and equal to it only if all K are equal. A softcap
    keeps the order. So greedy proposals are those of the small head, except if all its logits are equal (a hidden
    state of zeros), where argmax returns the lowest id of all.

    Most of the weight is on rows that training only pushed down: those of ids that never occur in the training
    responses. So with sampling, ids that are not output get little probability (docs/deploy.md).

    Rounding shifts the logit by at most half a unit in the last place of each weight, summed over H: far less than the
    distance of the largest logit from the mean, unless all are nearly equal.

    Args:
        pushed_K: True for ids that never occur in the training responses; all False gives the plain mean.
    """
    rows_KH = head_KH.double()
    mean_H = rows_KH.mean(dim=0)
    if pushed_K.any():
        mean_H = torch.lerp(rows_KH[pushed_K].mean(dim=0), mean_H, SHARE_OF_ALL)
    return mean_H.to(head_KH.dtype)


def grown_head(head_KH: Tensor, ids_K: Tensor, vocab_size: int, pushed_K: Tensor) -> Tensor:
    """Return head_VH: each row at its id, the losing row at every other id."""
    head_VH = losing_row(head_KH, pushed_K).expand(vocab_size, -1).clone()
    return head_VH.index_copy_(0, ids_K, head_KH)


COPY_TOKENIZER = "Copy the target's tokenizer files there, or use --form whole."


def convert_draft(folder: Path, out: Path, form: Form) -> None:
    """Write a draft with a reduced head in another form.

    Args:
        out: An earlier conversion there is replaced.

    Raises:
        UserError: If the draft has no reduced head or is damaged, does not support the form, or out contains something
            else.
    """
    draft = read_small_draft(folder)
    require_tokenizer(folder)
    reject_misleading_name(str(out.absolute()))
    require_replaceable(out, MANIFEST_NAME, reading=folder, stage="convert")
    write = {"whole": write_whole, "own-tokenizer": write_own_tokenizer}[form]
    with staged_folder(out) as staged:
        write(draft, staged)
        inputs = {"draft": fingerprint_checkpoint(folder)}
        kwargs = (read_manifest(folder) or {}).get("chat_template_kwargs", [])
        write_manifest(
            staged, stage="convert", inputs=inputs, form=form, draft=str(folder), chat_template_kwargs=kwargs
        )


def write_whole(draft: SmallDraft, folder: Path) -> None:
    vocabulary, head = draft.vocabulary, draft.family.weight("head")
    ids_K, pushed_K = ids_and_pushed(draft)
    write_changed(draft, folder, {head: lambda head_KH: grown_head(head_KH, ids_K, vocabulary.vocab_size, pushed_K)})
    config = {name: value for name, value in draft.config.items() if name != CONFIG_KEY}
    write_json(config, folder / "config.json")
    carry_files(draft.folder, folder)
    write_text(whole_head_card(vocabulary, tied_in=draft.family.head_is_embedding), folder / CARD_NAME)


def write_own_tokenizer(draft: SmallDraft, folder: Path) -> None:
    """Write the form for vLLM's use_heterogeneous_vocab."""
    reason = without_vllm(draft.shape.family)
    if reason is not None:
        raise UserError(f"{draft.folder}: {reason}, and no other engine loads this form. Use --form whole.")
    vocabulary, family = draft.vocabulary, draft.family
    ids_K, pushed_K = ids_and_pushed(draft)

    # One more row for all other tokens: the unknown one is read, but never proposed.
    def cut_embedding(embedding_VH: Tensor) -> Tensor:
        if vocabulary.unknown_id is None:
            unknown_H = mean_of_dropped(embedding_VH, vocabulary.ids).to(embedding_VH.dtype)
        else:
            unknown_H = embedding_VH[vocabulary.unknown_id]
        return torch.cat([embedding_VH[ids_K], unknown_H[None]])

    def with_unknown_row(head_KH: Tensor) -> Tensor:
        return torch.cat([head_KH, losing_row(head_KH, pushed_K)[None]])

    unknown = write_own_tokens(draft, folder)
    write_changed(draft, folder, {family.weight("embedding"): cut_embedding, family.weight("head"): with_unknown_row})
    config = {name: value for name, value in draft.config.items() if name != CONFIG_KEY}
    config[family.keys["vocab"]] = len(vocabulary.ids) + 1
    write_json(cut_ids(config, vocabulary.ids), folder / "config.json")
    write_json(cut_ids(read_generation_settings(draft.folder), vocabulary.ids), folder / SETTINGS_NAME)
    write_text(own_tokenizer_card(vocabulary, unknown), folder / CARD_NAME)


def ids_and_pushed(draft: SmallDraft) -> tuple[Tensor, Tensor]:
    """Return ids_K that the head outputs, and pushed_K: True for those that training only pushed down."""
    ids_K = torch.tensor(draft.vocabulary.ids)
    return ids_K, torch.isin(ids_K, torch.tensor(draft.vocabulary.unused_ids, dtype=ids_K.dtype))


def write_own_tokens(draft: SmallDraft, folder: Path) -> str:
    """Write a tokenizer of the kept tokens and return the string of its unknown token."""
    where = str(draft.folder / TOKENIZER)
    cut = cut_tokenizer(read_tokenizer(draft.folder), draft.vocabulary.ids, where=where)
    unknown = cut["model"]["unk_token"]
    write_json(cut, folder / TOKENIZER)
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": unknown}  # a class that loads the file unchanged
    settings = read_json_file(draft.folder / TOKENIZER_SETTINGS)
    write_json(cut_settings(settings, cut["model"]["vocab"], unknown) | own, folder / TOKENIZER_SETTINGS)
    carry_files(draft.folder, folder, names=TEMPLATES)
    return unknown


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Read a draft's tokenizer.json in the current format of the tokenizers library; UserError if it cannot."""
    file = folder / TOKENIZER
    if not file.is_file():
        raise UserError(f"{folder}: contains no {TOKENIZER}, the only format that can be reduced. {COPY_TOKENIZER}")
    text = read_text(file, hint=COPY_TOKENIZER, most_mib=MAX_TOKENIZER_MIB)
    try:
        return json.loads(Tokenizer.from_str(text).to_str())
    except Exception as error:  # the library raises plain Exceptions
        if type(error) is not Exception:
            raise
        raise UserError(f"{file}: could not be read ({error}). {COPY_TOKENIZER}") from error


def write_changed(draft: SmallDraft, folder: Path, changes: dict[str, Callable[[Tensor], Tensor]]) -> None:
    """Write the draft's tensors, some with other rows; UserError if one is not finite."""
    changed: dict[str, Any] = {name: change(require_numbers(draft.weights, name)) for name, change in changes.items()}
    layout = {name: draft.weights.info[name] for name in checkpoint_tensors(draft.shape)}
    layout |= {name: TensorInfo(tensor.dtype, tuple(tensor.shape)) for name, tensor in changed.items()}

    def read(name: str) -> Tensor:
        return changed[name] if name in changed else require_numbers(draft.weights, name)

    write_weights(layout, read, folder)
