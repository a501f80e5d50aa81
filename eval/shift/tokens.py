"""Which tokens a draft learns: precision and recall of the commonest ones. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eval.acceptance.estimates import Estimate, Resampling, pooled_ratio
from eval.records.request import RequestRecord
from eval.shift.reading import Arm

Counts = Callable[[RequestRecord], Iterable[int]]


def accepted_ids(record: RequestRecord) -> list[int]:
    """The proposals of a request that were kept."""
    pairs = zip(record.proposals, record.kept, strict=bool(record.proposals))  # none where sampled answers are replayed
    return [token_id for proposal, kept in pairs for token_id in proposal[:kept]]


def proposed_ids(record: RequestRecord) -> list[int]:
    """The proposals of a request, up to the first of each round that was rejected."""
    return [token_id for proposal in record.proposals for token_id in proposal]


def answer_ids(record: RequestRecord) -> tuple[int, ...]:
    """The tokens of a request's answer."""
    return record.answer_ids


@dataclass(frozen=True)
class TokenScore:
    """How a draft does on one token.

    Source: Liu et al. 2023, "Online Speculative Decoding" (arXiv 2310.07177): precision is what was right of what was
    proposed, recall of what was generated.

    Attributes:
        token_id: Of the token.
        accepted: Proposals of it that were kept.
        proposed: Proposals of it.
        occurrences: How often answers hold it.
    """

    token_id: int
    accepted: int
    proposed: int
    occurrences: int

    @property
    def precision(self) -> float | None:
        """None where it was never proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def recall(self) -> float | None:
        """None where no answer of this arm holds it."""
        return self.accepted / self.occurrences if self.occurrences else None


def commonest(records: Sequence[RequestRecord], most: int) -> list[int]:
    """The token ids that answers hold most often, those most often first; of equal ones the lowest id."""
    counts = counted(records, answer_ids)
    return sorted(counts, key=lambda token_id: (-counts[token_id], token_id))[:most]


def token_scores(arm: Arm, token_ids: Sequence[int]) -> list[TokenScore]:
    """How an arm does on each of some tokens."""
    accepted, proposed, occurrences = (counted(arm.records, ids) for ids in (accepted_ids, proposed_ids, answer_ids))
    return [TokenScore(each, accepted[each], proposed[each], occurrences[each]) for each in token_ids]


def pooled(arm: Arm, token_ids: Sequence[int], below: Counts, resampling: Resampling) -> Estimate | None:
    """Accepted proposals of some tokens over what `below` counts of them; None where that is nothing."""
    wanted = frozenset(token_ids)
    columns = [
        [float(sum(token_id in wanted for token_id in ids(record))) for record in arm.records]
        for ids in (accepted_ids, below)
    ]
    return pooled_ratio(columns[0], columns[1], resampling) if sum(columns[1]) else None


def counted(records: Iterable[RequestRecord], ids: Counts) -> Counter[int]:
    """How often each token id is met."""
    return Counter(token_id for record in records for token_id in ids(record))
