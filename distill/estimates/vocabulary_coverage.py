"""What `widedraft check` says of a small output head: how much of the run's answers its ids cover. No torch.

Only answers that are on the disk are read, none is made. Figures of a training answer are of the text that the ids may
be counted in; those of held-out answers and of prompts that no training saw are what to judge a size by.
"""

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from architectures.draft_vocabulary.asked import ids_by_count
from architectures.draft_vocabulary.tokens import TOKENIZER, Tokens, read_tokens
from architectures.settings.recipe_command import command_of
from architectures.shapes.shape import Shape
from architectures.small_head.config import COUNTED, VocabularyConfig
from architectures.small_head.counting import coverage
from architectures.small_head.record import DRAFT_VOCABULARY_NAME, read_draft_vocabulary
from architectures.targets.target import cached_config, is_gguf, local_path
from distill.estimates.expected_work import finished_counts
from distill.recipe.recipe import Recipe
from distill.run.run import Run
from distill.vocabulary.answer_counts import Counts, id_counts_in, pooled
from distill.vocabulary.output_ids import listed_ids

MOST_TOKENS = 2_000_000  # of one kind of answers: a second's reading
UNKNOWN = "unknown"
Row = tuple[str, str]


def vocabulary_block(recipe: Recipe, target: Shape, draft: Shape) -> dict[str, list[Row]]:
    """A title and its rows; nothing where the recipe asks for every id.

    Args:
        recipe: That is checked.
        target: Shape of its target.
        draft: Shape of its draft.

    Raises:
        UserError: If the list is none of this target's, or the size cannot be had.
    """
    wanted = recipe.architecture.vocabulary
    if wanted is None:
        return {}
    rows = list(coverage_rows(Run.of(recipe), wanted, target.vocab))
    return {f"vocabulary ({draft.head_vocab:,} of {target.vocab:,} ids, from {wanted.origin}; share covered)": rows}


def coverage_rows(run: Run, wanted: VocabularyConfig, vocab_size: int) -> Iterator[Row]:
    """Shares by kind of answer, or why they are unknown."""
    folder = target_at_hand(run)
    if folder is None:
        yield UNKNOWN, f"the target, or its {TOKENIZER}, is not on this machine"
        return
    tokens = read_tokens(folder, vocab_size)
    known = None if wanted.origin in COUNTED else listed_ids(wanted, tokens, folder)
    data = run.data.path
    if finished_counts(run.recipe) is None:
        yield UNKNOWN, f"{data} holds no answers of this recipe yet; {command_of('generate')} writes them"
        return
    read = partial(id_counts_in, data, most_tokens=MOST_TOKENS)
    trained = read("train") if run.recipe.distill.learns_answers else {}
    ids = counted_ids(run.init.path, wanted, trained, tokens) if known is None else known
    if ids is None:
        yield UNKNOWN, f"{command_of('prune')} counts the text, and leaves its ids in <run>/init"
        return
    yield from shares("training answers", trained, ids)
    yield from shares("held-out answers", read("eval"), ids)
    yield from never_seen_rows(run, ids)


def counted_ids(init: Path, wanted: VocabularyConfig, trained: Counts, tokens: Tokens) -> Collection[int] | None:
    """The ids that counts give; those of text, which takes longer than a check may, as an earlier cut left them."""
    assert wanted.size is not None  # of counts the recipe says it
    if wanted.origin == "answers":
        return ids_by_count(pooled(trained), tokens, wanted.size)
    if not (init / DRAFT_VOCABULARY_NAME).is_file():
        return None
    left = read_draft_vocabulary(init)
    return left.ids if (left.origin.get("from"), len(left.ids)) == ("text", wanted.size) else None


def never_seen_rows(run: Run, ids: Collection[int]) -> Iterator[Row]:
    """Of prompts that are scored on and not of the data: what the target answered to them, where it has."""
    if not run.recipe.eval.tasks:
        yield UNKNOWN, "other prompts than the data's: eval.tasks names none"
    elif not run.eval.is_finished:
        yield (
            UNKNOWN,
            f"answers to eval.tasks, which training never sees, until {command_of('eval')} has scored on them",
        )
    else:
        for answers in sorted((run.eval.path / "answers").iterdir()):
            kind = f"answers never trained on, temperature {answers.name.removeprefix('T')}"
            yield from shares(kind, id_counts_in(answers, "eval", most_tokens=MOST_TOKENS), ids)


def shares(kind: str, counts: Counts, ids: Collection[int]) -> Iterator[Row]:
    """A row for each domain of a kind of answers."""
    for domain, count in counts.items():
        first = f"the first {count.total():,}" if pooled(counts).total() >= MOST_TOKENS else f"{count.total():,}"
        yield f"{coverage(ids, count):.4f}", f"{kind}, {domain}: of {first} tokens"


def target_at_hand(run: Run) -> Path | None:
    """The folder with the target's tokenizer, where it can be read without fetching or importing anything."""
    path, revision = run.recipe.target.path, run.recipe.target.revision
    folder = run.imported_target if is_gguf(path) else local_path(path, revision)
    folder = folder or cached_config(path, revision)
    return folder if folder is not None and (folder / TOKENIZER).is_file() else None
