"""The trace of every round, as JSON lines: a header, then a line a round. Written whole or not at all.

The header names the pair, the machine, and the runs: texts decoded with one set of settings. Rounds of a text stand in
their order. No rate is stored: eval/report_inputs/round_figures.py makes every figure of the raw counts and times.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import ConfigDict, Field, TypeAdapter

from architectures.checkpoints.manifest import provenance
from architectures.files.reading import read_text
from architectures.files.typed_file import parsed
from eval.answers.shards import write_shard
from eval.decoding.sampling import Sampling
from eval.decoding.texts import Decoded, Seeds, Speculation
from eval.models.execution import How, flags_of

Schema = Literal["widedraft.rounds/1"]
[SCHEMA] = get_args(Schema)
REMEDY = "A trace is whole as it was written: take the original, or decode again with --rounds."

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Drafter = Literal["draft", "target"]


@dataclass(frozen=True)
class Run:
    """Texts decoded with a draft and one set of settings.

    Attributes:
        label: What for; no other run of a trace has it.
        prompt_indices: Of each text, the index of its prompt among the names given to `write_round_trace`.
        decoded: The texts, in the same order.
        max_new_tokens: Length of a text at most.
        speculation: How the draft was used.
        sampling: How tokens were chosen.
        seeds: Of random numbers.
        drafter: Which model proposed: "target" where it drafted for itself.
    """

    label: str
    prompt_indices: Sequence[int]
    decoded: Sequence[Decoded]
    max_new_tokens: int
    speculation: Speculation
    sampling: Sampling
    seeds: Seeds
    drafter: Drafter = "draft"


@dataclass(frozen=True, kw_only=True)
class TracedRound:
    """One line: a round, as eval.decoding.texts.Round has it, and whose it is.

    Attributes:
        run: Label of its run.
        prompt: Where the prompt came from, as "file.jsonl:12".
        sample: Which of the texts that continue this prompt, from 0.
        rule: How tokens were accepted.
        emitted: Tokens added to the text: those accepted and the target's own.
        stopped: Whether a stop token or string ended the text with this round.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    run: str
    prompt: str
    sample: Count
    rule: str
    start: Count
    lookahead: Positive
    proposed: Count
    accepted: Count
    emitted: Positive
    stopped: bool
    rows: Positive
    draft_s: Seconds
    verify_s: Seconds
    looked_up: bool = False


@dataclass(frozen=True)
class ModelIdentity:
    """Which model it was: its folder, fingerprint_checkpoint of that, and its number type."""

    path: str
    fingerprint: str
    dtype: str


@dataclass(frozen=True)
class RunSettings:
    """What the header says of a run; `texts` and `rounds` count what follows."""

    label: str
    drafter: Drafter
    texts: Count
    rounds: Count
    max_new_tokens: Positive
    lookahead: Positive
    adaptive: bool
    sampling: Sampling
    seeds: Seeds


@dataclass(frozen=True)
class Header:
    """The first line."""

    schema: Schema
    target: ModelIdentity
    draft: ModelIdentity
    device: str
    threads: Positive
    compiled: bool
    runs: tuple[RunSettings, ...]
    provenance: Mapping[str, Any]
    captured: bool = False


@dataclass(frozen=True)
class RoundTrace:
    """A trace as it was read."""

    header: Header
    rounds: tuple[TracedRound, ...]

    def rounds_of(self, label: str) -> list[TracedRound]:
        """The rounds of one run."""
        return [round_ for round_ in self.rounds if round_.run == label]


HEADER, LINE = TypeAdapter(Header), TypeAdapter(TracedRound)


def write_round_trace(
    path: Path,
    runs: Sequence[Run],
    prompts: Sequence[str],
    *,
    target: ModelIdentity,
    draft: ModelIdentity,
    device: str,
    how: How = "eager",
) -> None:
    """Write every round of some runs, whole or not at all.

    Args:
        path: The file, replaced if it is there.
        runs: What was decoded, while torch's number of threads is still what it was.
        prompts: The name of each prompt.
        target: The model that decided.
        draft: The model that proposed, unless a run says otherwise.
        device: Where both were.
        how: Their steps were run.
    """
    rounds = [traced_rounds(run, prompts) for run in runs]
    settings = tuple(settings_of(run, len(lines)) for run, lines in zip(runs, rounds, strict=True))
    header = Header(
        schema=SCHEMA,
        target=target,
        draft=draft,
        device=device,
        threads=torch.get_num_threads(),
        runs=settings,
        provenance=provenance(),
        **flags_of(how),
    )
    write_shard(path, [asdict(header), *(asdict(round_) for lines in rounds for round_ in lines)])


def traced_rounds(run: Run, prompts: Sequence[str]) -> list[TracedRound]:
    """The rounds of a run, text by text."""
    samples: Counter[int] = Counter()
    traced = []
    for index, text in zip(run.prompt_indices, run.decoded, strict=True):
        assert text.rule is not None, "only what was decoded with a draft has rounds"
        for number, round_ in enumerate(text.rounds, start=1):
            traced.append(
                TracedRound(
                    run=run.label,
                    prompt=prompts[index],
                    sample=samples[index],
                    rule=text.rule,
                    emitted=round_.accepted + 1,
                    stopped=text.stopped and number == len(text.rounds),
                    **asdict(round_),
                )
            )
        samples[index] += 1
    return traced


def settings_of(run: Run, num_rounds: int) -> RunSettings:
    """What the header says of a run."""
    return RunSettings(
        label=run.label,
        drafter=run.drafter,
        texts=len(run.decoded),
        rounds=num_rounds,
        max_new_tokens=run.max_new_tokens,
        lookahead=run.speculation.lookahead,
        adaptive=run.speculation.adaptive,
        sampling=run.sampling,
        seeds=run.seeds,
    )


def read_round_trace(path: Path) -> RoundTrace:
    """The trace of a file.

    Raises:
        UserError: If a line is malformed; names file and line.
    """
    first, *rest = read_text(path).rstrip("\n").split("\n")  # splitlines would cut at characters JSON need not escape
    header = parsed(HEADER, first, f"{path}:1", REMEDY)
    rounds = [parsed(LINE, line, f"{path}:{number}", REMEDY) for number, line in enumerate(rest, start=2)]
    return RoundTrace(header, tuple(rounds))


def texts_of(rounds: Iterable[TracedRound]) -> list[tuple[str, list[TracedRound]]]:
    """The prompt and the verification steps of each text."""
    texts: dict[tuple[str, int], list[TracedRound]] = {}
    for round_ in rounds:
        texts.setdefault((round_.prompt, round_.sample), []).append(round_)
    return [(prompt, text) for (prompt, _), text in texts.items()]
