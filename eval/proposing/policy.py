"""Who proposes at each position, the text itself, by its own record, or a draft that is sure enough. Pure; no torch.

What followed the last tokens of a text where they stood before costs nothing to propose, and is right often in texts
that repeat themselves and hardly ever in others. A text shows which it is: at each of its tokens it is known whether
what could have been looked up came, whoever proposed there. So the record of a text depends on the text alone, and
where a policy looks up follows from the text alone too: that keeps decoding lossless by any rule, and lets the policy
be scored on recorded texts exactly (eval/policies/policy_replay.py).

    rate(n) = (weight x prior(n) + hits(n)) / (weight + tries(n))

with n the tokens of the longest run at the end of the text that stands earlier in it, tries the tokens of this text
before which that was n, and hits how often what followed the run at its latest occurrence came next. The policy looks
up where the rate is at least `least`, and leaves the rest to the draft.

Beside that, a draft's own doubt may end its rounds (eval/proposing/stopping.py), by `confidence`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProposalPolicy:
    """When to look up, and when the draft proposes where nothing is.

    Attributes:
        lookahead: Tokens proposed where it looks up, >= 1; fewer where fewer followed.
        least: Rate from which it does; above 1 never.
        prior: Rate of a run of 1, 2, ... tokens in texts at large, each in [0, 1]; longer runs are not looked for.
        weight: Of the prior, in tokens of the text, above 0.
        confidence: Least probability that the draft gives the token it finds likeliest, at temperature 1 and without
            penalties, where it proposes; 0 for anywhere.
    """

    lookahead: int
    least: float
    prior: tuple[float, ...]
    weight: float
    confidence: float = 0.0

    def __post_init__(self) -> None:
        if self.lookahead < 1:
            raise ValueError(f"lookahead must be at least 1, got {self.lookahead}.")
        if not self.prior or not all(0 <= rate <= 1 for rate in self.prior):
            raise ValueError(f"prior must be rates in [0, 1], one at least, got {self.prior}.")
        if not self.least >= 0:
            raise ValueError(f"least must be 0 or more, got {self.least:g}.")
        if not self.weight > 0:
            raise ValueError(f"weight must be above 0, got {self.weight:g}.")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence must be in [0, 1], got {self.confidence:g}.")

    @property
    def longest(self) -> int:
        """Tokens of the longest run it looks for."""
        return len(self.prior)


@dataclass
class TextRecord:
    """A text, its runs, and how often what could be looked up came.

    Attributes:
        longest: Tokens of the longest run.
        token_ids: The text so far.
        tries: Tokens before which a run of so many tokens was found.
        hits: Of these, those that followed it at its latest occurrence.
        run: Tokens of the longest run at the end of the text that stands earlier; 0 for none.
        after: Where what followed it begins.
    """

    longest: int
    token_ids: list[int] = field(default_factory=list)
    tries: dict[int, int] = field(default_factory=dict)
    hits: dict[int, int] = field(default_factory=dict)
    run: int = 0
    after: int = 0
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)  # of every run: what follows its latest occurrence

    def extend(self, token_ids: Iterable[int]) -> None:
        for token in token_ids:
            self.add(token)

    def add(self, token: int) -> None:
        """Add a token: note whether it could have been looked up, then find the run it ends."""
        if self.run:
            self.tries[self.run] = self.tries.get(self.run, 0) + 1
            self.hits[self.run] = self.hits.get(self.run, 0) + int(self.token_ids[self.after] == token)
        self.token_ids.append(token)
        length = len(self.token_ids)
        runs = [tuple(self.token_ids[length - size :]) for size in range(1, min(self.longest, length) + 1)]
        self.run = 0
        for size, run in enumerate(runs, start=1):
            after = self.ends.get(run)
            if after is None:
                break  # no longer run stands earlier either
            self.run, self.after = size, after
        self.ends.update(dict.fromkeys(runs, length))

    def rate(self, policy: ProposalPolicy) -> float:
        """How often what would be looked up now is expected to come; 0 where there is nothing."""
        if not self.run:
            return 0.0
        tries, hits = self.tries.get(self.run, 0), self.hits.get(self.run, 0)
        return (policy.weight * policy.prior[self.run - 1] + hits) / (policy.weight + tries)

    def proposal(self, policy: ProposalPolicy, limit: int) -> list[int]:
        """What the policy looks up: at most so many tokens, none where the draft is to propose."""
        if self.run == 0 or self.rate(policy) < policy.least:
            return []
        return self.token_ids[self.after : self.after + min(policy.lookahead, limit)]


def new_record(policy: ProposalPolicy, token_ids: Sequence[int]) -> TextRecord:
    """The record of a prompt."""
    record = TextRecord(policy.longest)
    record.extend(token_ids)
    return record


def hit_rates(texts: Iterable[tuple[Sequence[int], Sequence[int]]], longest: int) -> tuple[float, ...]:
    """The prior: of each run of 1, 2, ... tokens, how often what followed it came; (hits + 1) / (tries + 2).

    Args:
        texts: Prompts and answers; tokens of answers count, whose runs may stand in the prompt.
        longest: Run.
    """
    tries, hits = dict.fromkeys(range(1, longest + 1), 0), dict.fromkeys(range(1, longest + 1), 0)
    for prompt, answer in texts:
        record = TextRecord(longest)
        record.extend(prompt)
        before = dict(record.tries), dict(record.hits)
        record.extend(answer)
        for size in tries:
            tries[size] += gained(record.tries, before[0], size)
            hits[size] += gained(record.hits, before[1], size)
    return tuple((hits[size] + 1) / (tries[size] + 2) for size in sorted(tries))


def gained(counts: Mapping[int, int], before: Mapping[int, int], size: int) -> int:
    """How much a count has grown."""
    return counts.get(size, 0) - before.get(size, 0)
