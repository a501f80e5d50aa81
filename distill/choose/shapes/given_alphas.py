"""Acceptance that is given for candidates in words of --alphas. No torch."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from architectures.errors import UserError
from architectures.pages.blocks import Sentence
from architectures.vocabulary import COUNTED, Tokens, ids_by_count
from distill.choose.shapes.candidates import Candidate
from distill.choose.shapes.vocabularies import WHOLE, head_rows, size_word
from distill.vocabulary.coverage import IdCounts
from distill.vocabulary.output_ids import listed_ids

SHORT = r"([1-9]\d{0,5})(?:x([1-9]\d{0,5}|all))?"
NAME = r"([1-9]\d{0,5})-layers(?:-[1-9]\d{0,6}-(?:hidden|intermediate|heads)){0,3}(?:-([1-9]\d{0,6})-ids)?"
ALPHA = r"\d{1,6}(?:\.\d{1,18})?|\.\d{1,18}"


class GivenAlpha(NamedTuple):
    """A word of --alphas: layers, ids that can be output (WHOLE for all) where the word names them, and acceptance.

    Where it names a candidate, as 2-layers-288-hidden, `name` is that.
    """

    layers: int
    size: int | None
    alpha: float
    name: str | None = None

    @property
    def word(self) -> str:
        shape = f"{self.layers}{'' if self.size is None else f'x{size_word(self.size)}'}"
        return f"{self.name or shape}={self.alpha:g}"

    def means(self, candidate: Candidate) -> bool:
        """Whether it is of a candidate."""
        if self.name is not None:
            return self.name == candidate.name
        return self.layers == candidate.shape.layers and self.size in (None, candidate.shape.head_vocab)

    def is_of_whole_head(self, candidate: Candidate) -> bool:
        """Whether it is of a candidate with the whole head, and says so."""
        is_said = self.size == WHOLE or self.name is not None
        return is_said and candidate.shape.head_vocab == WHOLE and self.means(candidate)


class TakenAlpha(NamedTuple):
    """Acceptance of a candidate, and the coverage it was multiplied by where it was given for the whole head."""

    alpha: float
    covered: float | None = None


def known_alpha(word: str) -> GivenAlpha:
    """Layers, ids and acceptance, of a word such as 4=0.35, 4x4096=0.35 or 4-layers-288-hidden=0.35."""
    shape, _, alpha = word.rpartition("=")
    short, named = (re.fullmatch(pattern, shape) for pattern in (SHORT, NAME))
    if (short is None and named is None) or not re.fullmatch(ALPHA, alpha):
        raise ValueError(f"must be LAYERS=ALPHA, such as 4=0.35 or 4x4096=0.35, got {word[:80]!r}.")
    if float(alpha) > 1:
        raise ValueError(f"must have an acceptance between 0 and 1, got {word!r}.")
    if named is not None:
        return GivenAlpha(int(named[1]), int(named[2]) if named[2] else None, float(alpha), shape)
    assert short is not None  # one of the two
    return GivenAlpha(int(short[1]), head_rows(short[2]) if short[2] else None, float(alpha))


def require_ids(candidates: Sequence[Candidate], target: Path, tokens: Tokens) -> None:
    """Raise UserError unless the ids of every candidate can be had, told before anything is trained."""
    for candidate in candidates:
        wanted = candidate.recipe.architecture.vocabulary
        if wanted is not None and wanted.origin not in COUNTED:
            listed_ids(wanted, tokens, target)
        elif wanted is not None:
            ids_by_count({}, tokens, candidate.shape.head_vocab)


def alphas_of(
    given: Sequence[GivenAlpha], candidates: Sequence[Candidate], id_counts: IdCounts | None = None
) -> dict[str, TakenAlpha]:
    """Acceptance of every candidate, by name.

    What is given for the whole head alone stands for smaller ones of the same body too, times what they cover: a
    token that cannot be said is lost, and the others are taken to be accepted as often as all were.

    Args:
        given: Words of --alphas.
        candidates: All.
        id_counts: Of answers; None where none are at hand.

    Raises:
        UserError: If a word means no candidate or several, or nothing is given for one.
    """
    words_by_name = {candidate.name: [each for each in given if each.means(candidate)] for candidate in candidates}
    of_whole = {each.body: word for word in given for each in candidates if word.is_of_whole_head(each)}
    meant = Counter(each for words in words_by_name.values() for each in words)
    scaled = {
        candidate.name: times_covered(of_whole[candidate.body].alpha, candidate.shape.head_vocab, id_counts)
        for candidate in candidates
        if id_counts is not None
        and not words_by_name[candidate.name]
        and candidate.shape.head_vocab != WHOLE
        and candidate.body in of_whole
    }
    once = all(len(words) == 1 for name, words in words_by_name.items() if name not in scaled)
    if not once or any(meant[each] != 1 for each in given):
        raise UserError(refusal(given, candidates, of_whole))
    return {
        name: scaled[name] if name in scaled else TakenAlpha(words[0].alpha) for name, words in words_by_name.items()
    }


def times_covered(alpha: float, size: int, id_counts: IdCounts) -> TakenAlpha:
    """Acceptance of the whole head, and what is left of it with so many ids."""
    covered = id_counts.covered(size, id_counts.all_held_out)
    return TakenAlpha(alpha * covered, covered)


def scaled_sentences(taken: Mapping[str, TakenAlpha]) -> list[Sentence]:
    """Which acceptance was not given itself; nothing if all was."""
    scaled = [
        f"{name} {each.alpha:.3f} ({each.covered:.1%} covered)"
        for name, each in taken.items()
        if each.covered is not None
    ]
    told = f"Acceptance of the whole head times what the ids cover: {', '.join(scaled)}."
    return [Sentence(told)] if scaled else []


def refusal(given: Sequence[GivenAlpha], candidates: Sequence[Candidate], of_whole: Mapping[str, GivenAlpha]) -> str:
    """Why acceptance is not known, in words."""
    names, words = ", ".join(candidate.name for candidate in candidates), ", ".join(each.word for each in given)
    answers = " What is given for the whole head counts for smaller ones only where <run>/data holds answers."
    told = answers if of_whole else ""
    return (
        f"--alphas are given for {words}, and the candidates are {names}. Give each one once, as LAYERS=ALPHA, or as "
        f"LAYERSxSIZE=ALPHA where several sizes of the vocabulary have these layers, or as NAME=ALPHA.{told}"
    )
