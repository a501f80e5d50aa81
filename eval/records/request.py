"""One answered request of a stream: a line of <run>/online/records.jsonl, or of a replay of recorded answers."""

from dataclasses import asdict, dataclass

SCHEMA = "widedraft.requests/1"


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """How a draft did on one request.

    Attributes:
        request: Its place in the stream, from 0.
        source: Whose curve it belongs to: a data set, a language, a topic.
        updates: Steps that the draft which served it had taken online.
        alpha: Mean chance of a proposal of this draft to be accepted, over all tokens of the answer.
        tau: Tokens a round: `tokens` over `rounds`.
        tokens: Of the answer.
        rounds: In which they were written.
        proposed: Tokens that the draft proposed.
        accepted: Of those.
        seconds: From the request to its last token; null where answers are replayed.
        wait_s: Of those, before its first round began; null where answers are replayed.
        answer_ids: The answer.
        proposals: The token ids proposed in each round, up to the first that was not kept; empty where sampled answers
            are replayed, which does not tell what was proposed.
        kept: How many of them each round kept.
    """

    request: int
    source: str
    updates: int
    alpha: float
    tau: float
    tokens: int
    rounds: int
    proposed: int
    accepted: int
    seconds: float | None
    wait_s: float | None
    answer_ids: tuple[int, ...]
    proposals: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]

    def to_json(self) -> dict[str, object]:
        """As a line holds it."""
        return asdict(self)
