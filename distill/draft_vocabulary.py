"""Reduced vocabulary of a draft: token ids counted in responses or text, or listed in a file; and their coverage.

Imports torch and Composer only if text is counted or a tokenizer is not in tokenizer.json.
"""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, TypeAdapter

from architectures import vocabulary
from architectures.errors import UserError
from architectures.families.config_entries import TokenId
from architectures.files import parsed
from architectures.pruning.plan import PruningPlan
from architectures.vocabulary import KEY, TOKENIZER, Tokens, VocabularyConfig
from distill.recipe.sections import TextConfig
from eval.responses import REWRITTEN, shard_lines

if TYPE_CHECKING:
    from torch import Tensor

TEXT_TOKENS = 1_000_000  # counted: a token of frequency 1e-5 then occurs ten times
IdCounts = dict[str, Counter[int]]  # by domain, then token id


@dataclass(frozen=True)
class OutputIds:
    """Token ids of a head, ascending, and their origin, for users of the draft.

    The origin has "from"; for counted ids also the number of tokens counted, the share that the ids cover of these and
    of held-out responses, by domain, and the ids that never occurred.
    """

    ids: tuple[int, ...]
    origin: dict[str, Any]


def choose_output_ids(
    wanted: VocabularyConfig, target: Path, vocab_size: int, *, responses: Path, text: TextConfig | None, seed: int
) -> OutputIds:
    """Choose the output ids of a draft, counted in the responses of <run>/data or in text, or listed.

    Raises:
        UserError: If the list does not fit the target, or the size is impossible.
    """
    size, tokens = vocabulary.requested_size(wanted, vocab_size), tokens_in(target, vocab_size)
    if wanted.origin not in vocabulary.COUNTED:
        return OutputIds(listed_ids(wanted, tokens, target), {"from": wanted.origin})
    if wanted.origin == "responses":
        counts = id_counts_in(responses, "train")
    else:
        assert text is not None  # guaranteed by the validation of recipes
        counts = id_counts_in_text(text, target, seed=seed)
    total = pooled(counts)
    ids = vocabulary.ids_by_count(total, tokens, size)
    covered = {"counted": shares(ids, counts)}
    if wanted.origin == "responses":
        covered["held out"] = shares(ids, id_counts_in(responses, "eval"))
    unused_ids = [id_ for id_ in ids if not total[id_]]
    origin = {"from": wanted.origin, "tokens": total.total(), "coverage": covered, vocabulary.UNUSED_IDS: unused_ids}
    return OutputIds(ids, origin)


def with_output_ids(
    plan: PruningPlan, wanted: OutputIds | None, weights: Path, plan_file: str | None
) -> tuple[PruningPlan, dict[str, Any]]:
    """Return the plan with the ids of a recipe, and their origin; a reduced vocabulary of plan or source is kept.

    Args:
        weights: Directory of the source model.
        plan_file: Path the plan was read from, if any.

    Raises:
        UserError: If the recipe's ids differ from those of the plan or source, or these do not fit the target.
    """
    small_source = bool(plan.source.head_vocab)
    given = vocabulary.read_draft_vocabulary(weights).ids if small_source else plan.vocabulary
    named = weights if small_source else plan_file
    if given is not None and (mistake := vocabulary.broken_law(given, plan.draft.vocab)) is not None:
        raise UserError(f"{named}: {mistake} of the target. Use a draft of this target.")
    if wanted is None:
        return plan, {} if plan.vocabulary is None else {"from": plan_file}
    if given is None:
        covered = [
            f"{share:.4f} of {domain} ({name})"
            for name, domains in wanted.origin.get("coverage", {}).items()
            for domain, share in domains.items()
        ]
        line = f"{len(wanted.ids):,} of {plan.draft.vocab:,} ids, from {wanted.origin['from']}"
        print(f"   {line}{', which cover ' if covered else ''}{', '.join(covered)}", flush=True)
        return plan.with_vocabulary(wanted.ids), wanted.origin
    if given != wanted.ids:
        others = len(set(wanted.ids) - set(given))
        raise UserError(
            f"{named}: outputs {len(given)} ids and lacks {others} of the {len(wanted.ids)} that {KEY} requests. "
            f"Remove {KEY} to keep these, or use a source or a plan that outputs every id."
        )
    return plan, wanted.origin


def listed_ids(wanted: VocabularyConfig, tokens: Tokens, target: Path) -> tuple[int, ...]:
    """Read the recipe's list, ascending; errors as for `read_list` and `require_fitting`."""
    ids = vocabulary.read_list(wanted.origin, wanted.size)
    vocabulary.require_fitting(ids, tokens, vocabulary.list_file(wanted.origin), target)
    return tuple(sorted(ids))


def tokens_in(folder: Path, vocab_size: int) -> Tokens:
    """Read the tokens of a checkpoint directory, for tokenizers of any file format.

    Raises:
        UserError: If the files are damaged, or have no information about bytes and special tokens.
    """
    if (folder / TOKENIZER).is_file():
        return vocabulary.read_tokens(folder, vocab_size)
    from eval.models import load_tokenizer

    backend = getattr(load_tokenizer(folder), "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            f"{folder}: its tokenizer cannot be converted to {TOKENIZER}, so its special tokens and bytes are "
            f"unknown. Save it as {TOKENIZER}, or remove {KEY}."
        )
    return vocabulary.tokens_of(json.loads(backend.to_str()), folder, vocab_size)


def require_possible_ids(wanted: VocabularyConfig, target: Path, vocab_size: int) -> None:
    """Raise UserError if a list or a size does not fit the target's tokenizer, whose special tokens are always kept."""
    tokens = tokens_in(target, vocab_size)
    if wanted.origin in vocabulary.COUNTED:
        vocabulary.ids_by_count({}, tokens, vocabulary.requested_size(wanted, vocab_size))
    else:
        listed_ids(wanted, tokens, target)


@dataclass(frozen=True)
class CountedResponse:
    """Fields of a response that are counted; eval.responses has the full record."""

    response_ids: Annotated[list[TokenId], Field(min_length=1)]
    source: str
    task: str | None = None


COUNTED_RESPONSE = TypeAdapter(CountedResponse)


def id_counts_in(folder: Path, name: str) -> IdCounts:
    """Count the token ids of responses by domain: the task of a prompt, else the file or data set it came from.

    Args:
        name: "train" or "eval".

    Raises:
        UserError: If responses are missing or damaged.
    """
    counts: IdCounts = {}
    for where, line in shard_lines(folder, name):
        response = parsed(COUNTED_RESPONSE, line, where, REWRITTEN)
        domain = response.task or response.source.rpartition(":")[0] or response.source
        counts.setdefault(domain, Counter()).update(response.response_ids)
    return counts


def id_counts_in_text(text: TextConfig, target: Path, *, seed: int) -> IdCounts:
    """Count the first TEXT_TOKENS of training on section text, in its initial mixture.

    Sequences and order are those of training, without held-out ones; fewer if every domain ends before that.

    Raises:
        UserError: If a text cannot be read, or is too short.
    """
    from distill.text_data import text_loader
    from eval.models import load_tokenizer

    _, sequences = text_loader(text, load_tokenizer(target), batch_size=1, seed=seed)
    counts: IdCounts = {name: Counter() for name in sequences.names}
    for number, sample in enumerate(sequences, start=1):
        counts[sequences.names[int(sample["domain"])]].update(cast("Tensor", sample["input_ids"]).tolist())
        read_once = all(stream.epoch for stream in sequences.streams.values())
        if read_once or number == ceil(TEXT_TOKENS / text.max_seq_len):
            break
    return {name: count for name, count in counts.items() if count}


def pooled(counts: IdCounts) -> Counter[int]:
    return sum(counts.values(), Counter())


def shares(ids: Collection[int], counts: IdCounts) -> dict[str, float]:
    """Return the share of each domain's tokens that the ids cover, rounded to six digits."""
    return {domain: round(vocabulary.coverage(ids, count), 6) for domain, count in counts.items()}
