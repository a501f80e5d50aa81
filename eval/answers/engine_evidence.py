"""Who wrote a shard of answers and what was found of them: a file beside each shard that an engine wrote.

    train-00000.jsonl          the answers
    train-00000.engine.json    their engine, and what the target here says of a sample of them

It is written before the answers: where those are, it is. A shard that widedraft decoded itself has none.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter

from architectures.checkpoints.manifest import AnsweredBy
from architectures.files.atomic import write_json
from architectures.files.typed_file import read_typed
from eval.answers.shards import read_claims, shard_paths

Count = Annotated[int, Field(ge=0)]
OWN = "widedraft"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of the answers of a shard, or of several.

    Attributes:
        engine: And its version, as "vllm 0.32.0".
        answers: That it wrote.
        checked: Of these the ones that the target here read.
        differing: Of those the ones in which the target takes another token somewhere; 0 of sampled ones.
        tokens: Of the checked ones.
        largest_gap: Logits between the target's token and the engine's, where a text first differs.
        sigmas: Of sampled ones, how far their surprise is from what is expected; 0 of greedy ones.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    engine: str
    answers: Count
    checked: Count
    differing: Count
    tokens: Count
    largest_gap: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    sigmas: Annotated[float, Field(allow_inf_nan=False)] = 0.0


FORM = TypeAdapter(Evidence)


def evidence_path(shard: Path) -> Path:
    """Where it is: "train-00000.engine.json"."""
    return shard.with_suffix(".engine.json")


def write_evidence(shard: Path, evidence: Evidence) -> None:
    write_json(asdict(evidence), evidence_path(shard))


def written_shards(folder: Path, name: str) -> list[tuple[Path, Evidence | None]]:
    """The shards of a name that are there, each with what is known of its engine; None of our own.

    Raises:
        UserError: If a file is damaged.
    """
    claims = read_claims(folder)
    paths = shard_paths(folder, name, claims[name]["num_shards"]) if name in claims else []
    return [(path, evidence_of(path)) for path in paths if path.is_file()]


def evidence_of(shard: Path) -> Evidence | None:
    """What is known of a shard's engine; None of our own."""
    path = evidence_path(shard)
    return read_typed(path, FORM, f"Delete it and {shard.name}: it is asked again.") if path.is_file() else None


def writers(folder: Path, name: str) -> list[str]:
    """Who wrote the shards of a name that are there, each once."""
    return list(dict.fromkeys(OWN if one is None else one.engine for _, one in written_shards(folder, name)))


def pooled(each: Sequence[Evidence]) -> list[Evidence]:
    """One for each engine, in the order in which they first wrote."""
    engines = dict.fromkeys(one.engine for one in each)
    return [together([one for one in each if one.engine == engine]) for engine in engines]


def together(of_one: Sequence[Evidence]) -> Evidence:
    """What is known of several shards of one engine."""
    return Evidence(
        engine=of_one[0].engine,
        answers=sum(one.answers for one in of_one),
        checked=sum(one.checked for one in of_one),
        differing=sum(one.differing for one in of_one),
        tokens=sum(one.tokens for one in of_one),
        largest_gap=max(one.largest_gap for one in of_one),
        sigmas=max((one.sigmas for one in of_one), key=abs),
    )


def answered_by(folder: Path, name: str, *, of: str | None = None) -> list[AnsweredBy]:
    """The engines of some answers, as a manifest names them; empty where widedraft decoded all of them.

    Args:
        folder: Of the answers.
        name: Of their shards.
        of: What the manifest calls them; their name where left out.
    """
    evidence = [one for _, one in written_shards(folder, name) if one is not None]
    return [
        {
            "engine": one.engine,
            "of": of or name,
            "answers": one.answers,
            "checked": one.checked,
            "differing": one.differing,
            "largest_gap": one.largest_gap,
            "sigmas": one.sigmas,
        }
        for one in pooled(evidence)
    ]
