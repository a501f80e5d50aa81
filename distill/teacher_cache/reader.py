"""A finished cache, read answer by answer through memory maps.

Shape suffixes used in this file:
    A = answer tokens, one row each
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor
from typing_extensions import TypedDict

from architectures.checkpoints.manifest import read_manifest
from architectures.errors import UserError
from architectures.files.typed_file import checked
from architectures.settings.recipe_command import command_of
from distill.teacher_cache.contents import widen
from distill.teacher_cache.index import fingerprint_examples, load_index
from distill.teacher_cache.record import refuse_ill_sized, remedy

if TYPE_CHECKING:
    from distill.data.batches import Example


class Split(TypedDict):
    """What a manifest says of a split."""

    contents: str
    examples: str
    shards: list[str]


SPLITS = TypeAdapter(dict[str, Split])


class TeacherCache:
    """What the teacher said of the answers of one split. Pickles, forks and is shared among threads freely.

    Opening reads the manifest and the index and looks at the files' sizes; `rows` maps a file for the moment it needs
    it (55 µs), so a process keeps none open and any number of shards will do.

    Args:
        folder: Of a finished cache.
        name: Of the split, "train" or "eval".

    Raises:
        UserError: If the cache is not finished, a file of it is missing or cut short, or it has no such split.
    """

    def __init__(self, folder: Path, name: str):
        refuse_ill_sized(folder)
        splits = checked(SPLITS, (read_manifest(folder) or {}).get("splits"), f"{folder}: splits", remedy())
        if name not in splits:
            raise UserError(
                f"{folder}: holds no {name} answers, but {', '.join(splits)}. Delete it, and make it again."
            )
        self.folder = folder
        self.name = name
        self.contents = splits[name]["contents"]
        self.examples = splits[name]["examples"]
        self.files = splits[name]["shards"]
        self.index = load_index(folder, name)

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, answer: int) -> dict[str, Tensor]:
        """What was kept of one answer: one row for each of its answer tokens, in their order.

        Returns:
            hidden_AH; or ids_AK (int64), log_probs_AK and log_tail_A (float32); or ids_AS (int64).

        Raises:
            IndexError: If there is no such answer.
            UserError: If its file was damaged after the cache was opened.
        """
        if not 0 <= answer < len(self):
            raise IndexError(f"answer must be from 0 to {len(self) - 1}, got {answer}.")
        shard, rows = self.index.locate(answer)
        path = self.folder / self.files[shard]
        try:
            with safe_open(path, framework="pt") as shard_file:
                return widen({name: shard_file.get_slice(name)[rows] for name in shard_file.keys()})  # noqa: SIM118 - no dict
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path}: damaged ({error}). Delete it and run {command_of('cache')}: it is written again."
            ) from error

    def require_examples(self, examples: Sequence["Example"]) -> None:
        """Refuse a cache whose rows belong to other tokens than these examples.

        Raises:
            UserError: If one token, answer or cut differs.
        """
        if fingerprint_examples(examples) != self.examples:
            raise UserError(
                f"{self.folder}: its {self.name} rows belong to other answers than those in the data folder. "
                f"Delete {self.folder} and run {command_of('cache')}."
            )
