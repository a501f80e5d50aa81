"""Replays on the disk, answer by answer, until the scorecard that they are for is written."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from architectures.checkpoints.fingerprint import fingerprint_value
from architectures.kept import Arrays, Kept
from eval.acceptance.counts import Array
from eval.acceptance.replay import Accepts, Replay
from eval.answers.traces import Trace

OF_EACH_RULE = tuple(field.name for field in fields(Accepts))
OF_ALL_RULES = tuple(field.name for field in fields(Replay) if field.name != "rules")


@dataclass(frozen=True)
class Keeping:
    """Where the replays of some models are kept.

    Attributes:
        folder: Of all of them.
        inputs: What they depend on beside the answers, by name.
    """

    folder: Path
    inputs: Mapping[str, str]

    def of(self, name: str, traces: Sequence[Trace]) -> Kept:
        """The replays along some answers."""
        ids = fingerprint_value([[list(trace.prompt_ids), list(trace.answer_ids)] for trace in traces])
        return Kept(self.folder / name, {**self.inputs, "answers": ids})


def keep_replays(kept: Kept, number: int, replays: Mapping[str, Replay]) -> None:
    """Keep what every draft does along one answer."""
    kept.write(part_name(number), {key: values for name in replays for key, values in arrays_of(name, replays[name])})


def arrays_of(draft: str, replay: Replay) -> list[tuple[str, Array]]:
    """The arrays of a replay, each under a name that `replay_in` understands."""
    rules = replay.rules.items()
    of_rules = [((rule, name), getattr(accepts, name)) for rule, accepts in rules for name in OF_EACH_RULE]
    others = [((name,), getattr(replay, name)) for name in OF_ALL_RULES]
    return [(json.dumps([draft, *key]), values) for key, values in [*of_rules, *others]]


def replays_there(kept: Kept, count: int) -> dict[int, dict[str, Replay]]:
    """Those of so many answers that are there, by number."""
    parts = {number: kept.read(part_name(number)) for number in range(count)}
    return {number: replays_in(arrays) for number, arrays in parts.items() if arrays is not None}


def replays_in(arrays: Arrays) -> dict[str, Replay]:
    """What every draft does along one answer, of a part that was kept."""
    by_draft: dict[str, dict[tuple[str, ...], Array]] = {}
    for key, values in arrays.items():
        draft, *name = json.loads(key)
        by_draft.setdefault(draft, {})[tuple(name)] = values
    return {draft: replay_in(named) for draft, named in by_draft.items()}


def replay_in(named: Mapping[tuple[str, ...], Array]) -> Replay:
    """A replay of its arrays."""
    rules = {key[0]: Accepts(**{name: named[key[0], name] for name in OF_EACH_RULE}) for key in named if len(key) == 2}
    return Replay(rules, **{name: named[name,] for name in OF_ALL_RULES})


def part_name(number: int) -> str:
    return f"{number:05d}"
