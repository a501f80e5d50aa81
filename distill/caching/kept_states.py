"""The teacher's states of the answers it wrote, kept beside them: what a cache is made of without the teacher.

Shape suffixes used in this file:
    A = answer tokens, one row each; H = width of the last hidden state
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from architectures.errors import UserError
from architectures.shapes.shape import Shape
from architectures.targets.target import read_config
from distill.caching.capture import Split
from distill.losses.chunked import Head
from distill.teacher_cache.contents import load_head
from eval.answers.hidden_files import read_states, require_states
from eval.answers.shards import WITHOUT_STATES, read_claims, read_shard, shard_paths
from eval.models.loading import default_device


@dataclass(frozen=True)
class Location:
    """Where the states of an answer are: beside which shard, and under what id."""

    shard: Path
    id: int


class KeptStates:
    """The states beside a run's answers, as a StateSource.

    An answer that data.max_seq_len cuts has more of them than are asked for: those of its first tokens are given.

    Args:
        data: Folder of the answers.
        target: That wrote them; its output head is read from here if it is asked for, and nothing else.
        dtype: Of the states, by name.
        max_seq_len: Tokens of prompt and answer that are learned; where a prompt has as many, its answer is none.
        names: Of the splits that are there.

    Raises:
        UserError: If the answers were written without states, or those of one are missing, damaged, or of others.
    """

    def __init__(self, data: Path, target: Path, *, dtype: str, max_seq_len: int, names: Iterable[str]):
        self.target, self.dtype = target, dtype
        width = Shape.from_config(read_config(target), where=str(target / "config.json")).hidden
        self.locations = {
            name: locations_of(data, name, width=width, dtype=dtype, max_seq_len=max_seq_len) for name in names
        }

    def head(self) -> Head:
        """See StateSource."""
        return load_head(self.target, dtype=self.dtype, device=default_device())

    def states(self, split: Split, answers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """See StateSource; in the order in which they are asked for."""
        locations = self.locations[split.name]
        assert len(locations) == len(split.examples), "an answer that is learned for every one that leaves room"
        for answer in answers:
            location = locations[answer]
            yield answer, read_states(location.shard, location.id, split.examples[answer].num_kept)


def locations_of(data: Path, name: str, *, width: int, dtype: str, max_seq_len: int) -> list[Location]:
    """Where the states of the answers of one name are, in their order; none of an answer without room.

    Raises:
        UserError: As KeptStates.
    """
    claim, locations = read_claims(data)[name], []
    if not claim.get("hidden_states"):
        raise UserError(f"{data}: its {name} answers {WITHOUT_STATES}")
    for shard in shard_paths(data, name, claim["num_shards"]):
        rows = list(read_shard(shard))
        require_states(shard, {row["id"]: len(row["answer_ids"]) for row in rows}, width=width, dtype=dtype)
        locations += [Location(shard, row["id"]) for row in rows if len(row["prompt_ids"]) < max_seq_len]
    return locations
