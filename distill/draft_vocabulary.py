"""The token ids that a recipe's draft outputs: counted in its run's answers or text, or listed; and their coverage.

Imports torch and Composer only where text is counted or a tokenizer is in other files than tokenizer.json.
"""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, TypeAdapter

from architectures.errors import UserError
from architectures.families.config_entries import TokenId
from architectures.files import parsed
from architectures.pruning.plan import PruningPlan
from architectures.vocabulary import (
    COUNTED,
    KEY,
    TOKENIZER,
    UNUSED_IDS,
    Tokens,
    VocabularyConfig,
    asked_size,
    broken_law,
    coverage,
    ids_by_count,
    list_file,
    read_draft_vocabulary,
    read_list,
    read_tokens,
    require_fitting,
    tokens_of,
)
from distill.recipe.sections import TextConfig
from eval.responses import REWRITTEN, shard_lines

if TYPE_CHECKING:
    from torch import Tensor

TEXT_TOKENS = 1_000_000  # counted: a token that occurs once in 100 thousand is then seen ten times
IdCounts = dict[str, Counter[int]]  # of each domain, by token id


@dataclass(frozen=True)
class OutputIds:
    """The ids of a head, ascending, and where they come from, for who opens the draft.

    The origin has "from"; of counts also tokens counted, and the share that the ids cover of what was counted and of
    held-out answers, by domain, and the ids that were not there to be counted.
    """

    ids: tuple[int, ...]
    origin: dict[str, Any]


def choose_output_ids(
    wanted: VocabularyConfig, target: Path, vocab_size: int, *, answers: Path, text: TextConfig | None, seed: int
) -> OutputIds:
    """The output ids of a draft.

    Args:
        wanted: Section architecture.vocabulary.
        target: The target's folder.
        vocab_size: Of the target.
        answers: The folder of answers to count in, <run>/data.
        text: The text to count in; None where the recipe has none.
        seed: Of the text's order.

    Raises:
        UserError: If the list is none of this target's, or the size cannot be had.
    """
    size, tokens = asked_size(wanted, vocab_size), tokens_in(target, vocab_size)
    if wanted.origin not in COUNTED:
        return OutputIds(listed_ids(wanted, tokens, target), {"from": wanted.origin})
    if wanted.origin == "answers":
        counts = id_counts_in(answers, "train")
    else:
        assert text is not None  # the recipe's own check
        counts = id_counts_in_text(text, target, seed=seed)
    total = pooled(counts)
    ids = ids_by_count(total, tokens, size)
    covered = {"counted": shares(ids, counts)}
    if wanted.origin == "answers":
        covered["held out"] = shares(ids, id_counts_in(answers, "eval"))
    unused_ids = [id_ for id_ in ids if not total[id_]]
    origin = {"from": wanted.origin, "tokens": total.total(), "coverage": covered, UNUSED_IDS: unused_ids}
    return OutputIds(ids, origin)


def with_output_ids(
    plan: PruningPlan, wanted: OutputIds | None, weights: Path, plan_file: str | None
) -> tuple[PruningPlan, dict[str, Any]]:
    """The plan with the ids that a recipe chose, and their origin.

    A plan or a source whose head is small already keeps its ids.

    Args:
        plan: With the target's vocabulary.
        wanted: None where the recipe asks for none.
        weights: The folder it cuts.
        plan_file: Where the plan was read from; None where it was made.

    Raises:
        UserError: If the recipe asks for other ids than are there, or these are none of the target's.
    """
    small_source = bool(plan.source.head_vocab)
    given = read_draft_vocabulary(weights).ids if small_source else plan.vocabulary
    named = weights if small_source else plan_file
    if given is not None and (mistake := broken_law(given, plan.draft.vocab)) is not None:
        raise UserError(f"{named}: {mistake}, as the target has them. Name one that was made for this target.")
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
            f"{named}: outputs {len(given)} ids, and {KEY} asks for {len(wanted.ids)}, of which it lacks {others}. "
            f"Leave {KEY} out to keep these, or name a source or a plan that outputs every id."
        )
    return plan, wanted.origin


def listed_ids(wanted: VocabularyConfig, tokens: Tokens, target: Path) -> tuple[int, ...]:
    """The ids of the list that a recipe names, ascending; errors as for `read_list` and `require_fitting`."""
    ids = read_list(wanted.origin, wanted.size)
    require_fitting(ids, tokens, list_file(wanted.origin), target)
    return tuple(sorted(ids))


def tokens_in(folder: Path, vocab_size: int) -> Tokens:
    """The tokens of a checkpoint folder, whatever files its tokenizer is in.

    Raises:
        UserError: If the files are damaged, or of a kind that says nothing of bytes and special tokens.
    """
    if (folder / TOKENIZER).is_file():
        return read_tokens(folder, vocab_size)
    from eval.models import load_tokenizer

    backend = getattr(load_tokenizer(folder), "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            f"{folder}: its tokenizer is none that a {TOKENIZER} can hold, so that its special tokens and bytes are "
            f"not known. Save it as {TOKENIZER}, or leave {KEY} out."
        )
    return tokens_of(json.loads(backend.to_str()), folder, vocab_size)


@dataclass(frozen=True)
class CountedAnswer:
    """What counts of an answer; eval.responses has the whole of it."""

    answer_ids: Annotated[list[TokenId], Field(min_length=1)]
    source: str
    task: str | None = None


COUNTED_ANSWER = TypeAdapter(CountedAnswer)


def id_counts_in(folder: Path, name: str, *, most_tokens: int | None = None) -> IdCounts:
    """How often the answers of one name hold each id; their prompts do not count.

    A domain is the task of a prompt, or else the file or data set it came from.

    Args:
        folder: Of answers.
        name: "train" or "eval".
        most_tokens: Read no further answer once so many tokens are counted; None reads all.

    Raises:
        UserError: If answers are missing or damaged.
    """
    counts: IdCounts = {}
    num_tokens = 0
    for where, line in shard_lines(folder, name):
        if most_tokens is not None and num_tokens >= most_tokens:
            break
        answer = parsed(COUNTED_ANSWER, line, where, REWRITTEN)
        domain = answer.task or answer.source.rpartition(":")[0] or answer.source
        counts.setdefault(domain, Counter()).update(answer.answer_ids)
        num_tokens += len(answer.answer_ids)
    return counts


def id_counts_in_text(text: TextConfig, target: Path, *, seed: int) -> IdCounts:
    """The counts of the first TEXT_TOKENS that a training on section text reads, in the mixture it begins with.

    The same sequences in the same order, held-out ones left out; fewer where every domain was read once before that.

    Args:
        text: What is read.
        target: Folder of the tokenizer.
        seed: Of the order.

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
    """The counts of all domains together."""
    return sum(counts.values(), Counter())


def shares(ids: Collection[int], counts: IdCounts) -> dict[str, float]:
    """The share of each domain's tokens that ids cover, to six digits."""
    return {domain: round(coverage(ids, count), 6) for domain, count in counts.items()}
