"""Step time against coverage: what candidates with small output heads cost, and how much they cover. No torch."""

from collections import Counter
from collections.abc import Mapping, Sequence

from architectures.pages.blocks import Section, Sentence, Table
from architectures.settings.recipe_command import command_of
from distill.choose.shapes.candidates import Candidate
from distill.choose.shapes.vocabularies import ALL, WHOLE
from distill.vocabulary.coverage import IdCounts
from eval.speedup import Prospect

TITLE = "Step time against coverage"
RANKED_OTHERWISE = "Ids are not ranked by answers here, so what they cover of them is not told."


def vocabulary_page(
    candidates: Sequence[Candidate], prospects: Mapping[str, Prospect], id_counts: IdCounts | None
) -> list[Section]:
    """One row for each size of the head; nothing where every candidate can output everything.

    Args:
        candidates: Some of which may have small heads.
        prospects: Of each, by name.
        id_counts: Of the answers that rank the ids; None where there are none.
    """
    if not any(candidate.recipe.architecture.vocabulary for candidate in candidates):
        return []
    domains = {} if id_counts is None else domains_of(id_counts)
    sizes = dict.fromkeys(
        candidate.shape.head_vocab for candidate in sorted(candidates, key=lambda candidate: candidate.shape.head_rows)
    )
    columns = ["ids said", "cost of a step", *(f"{name} ({counts.total():,})" for name, counts in domains.items())]
    rows: list[list[str]] = []
    for size in sizes:
        covered = [coverage_words(size, id_counts, counts) for counts in domains.values()]
        rows.append([ids_words(size), cost_of(size, candidates, prospects), *covered])
    return [Section(TITLE, [Table(columns, rows), Sentence(explanation(id_counts, candidates))])]


def domains_of(id_counts: IdCounts) -> dict[str, Counter[int]]:
    """Held-out answers: all of them, and those of every domain if there are several."""
    return {ALL: id_counts.all_held_out, **(id_counts.held_out if len(id_counts.held_out) > 1 else {})}


def ids_words(size: int) -> str:
    """How many, as the first column has it."""
    return ALL if size == WHOLE else f"{size:,}"


def cost_of(size: int, candidates: Sequence[Candidate], prospects: Mapping[str, Prospect]) -> str:
    """A draft step over a target step, the cheapest and the dearest with this head."""
    costs = [prospects[candidate.name].cost_ratio for candidate in candidates if candidate.shape.head_vocab == size]
    return f"{costs[0]:.3f}" if len(costs) == 1 else f"{min(costs):.3f} to {max(costs):.3f}"


def coverage_words(size: int, id_counts: IdCounts | None, counts: Mapping[int, int]) -> str:
    return f"{1.0 if id_counts is None or size == WHOLE else id_counts.covered(size, counts):.1%}"


def explanation(id_counts: IdCounts | None, candidates: Sequence[Candidate]) -> str:
    """What the coverage is of, or why none is told."""
    if id_counts is None:
        known = "How much of the target's answers these ids cover is known once there are answers"
        return f"{known}: {command_of('generate')}." if ranked_by_answers(candidates) else RANKED_OTHERWISE
    return (
        f"Covered: the share of tokens of the held-out answers, by domain (tokens), that are among the ids that "
        f"{id_counts.train.total():,} tokens of training answers say most. No draft with these ids has more accepted."
    )


def ranked_by_answers(candidates: Sequence[Candidate]) -> bool:
    """Whether small heads are of the ids that training answers hold most."""
    wanted = [candidate.recipe.architecture.vocabulary for candidate in candidates]
    return all(each is None or each.origin == "answers" for each in wanted)
