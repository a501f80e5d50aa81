"""A prompt decoded with and without the draft, side by side, each token coloured by who proposed it.

In a terminal both texts grow as they are generated. Elsewhere they are printed when finished, and marks replace the
colours, as in a terminal without colour: [corrected] by the target, {bonus} of the target, everything else from the
draft. Only one side runs at a time, the one whose clock is behind. So neither slows the other, and at any moment both
show their output after the same time.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from architectures.files import read_typed
from eval.chat import user_turn
from eval.decoding.kv_cache import open_sequencer
from eval.decoding.sampling import Decoded, Seeds, row_seed
from eval.decoding.speculative import DecodingRequest, Emitted, decode_steps
from eval.lossless import Verification
from eval.pair import LoadedPair
from eval.prompts import Prompt
from eval.responses import Trace
from eval.scorecard_schema import Record, write_record

Writer = Literal["target", "accepted", "corrected", "bonus"]
NUM_EXAMPLES = 4
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # how a tokenizer decodes the first bytes of a character


class DecodedExample(Record):
    """One text: source of its prompt, the last message, and the response in pieces, each with its writer."""

    source: str
    category: str | None
    prompt: str
    pieces: tuple[tuple[str, Writer], ...]


class Examples(Record):
    """examples.json; fingerprints identify its models."""

    format: Literal["widedraft.examples/2"] = "widedraft.examples/2"
    target: str
    draft: str
    examples: tuple[DecodedExample, ...]


def write_examples(
    path: Path,
    traces: Sequence[Trace],
    decoded: Sequence[Decoded],
    tokenizer: PreTrainedTokenizerBase,
    *,
    target: str,
    draft: str,
) -> None:
    """Write some of the texts that were decoded with a draft."""
    examples = []
    for index in chosen_indices([trace.category for trace in traces], NUM_EXAMPLES):
        trace, text = traces[index], decoded[index]
        pieces = spans(tokenizer, text.token_ids, writers_of_steps(text))
        prompt = trace.messages[-1]["content"] if trace.messages else ""
        examples.append(
            DecodedExample(source=trace.source, category=trace.category, prompt=prompt, pieces=tuple(pieces))
        )
    write_record(Examples(target=target, draft=draft, examples=tuple(examples)), path)


def read_examples(path: Path) -> Examples:
    """Read examples.json; a UserError names the file and the field."""
    return read_typed(path, TypeAdapter(Examples), "Delete the file, or run `widedraft eval` again.")


def chosen_indices(categories: Sequence[str | None], most: int) -> list[int]:
    """Return at most `most` indices: of the first prompt of every category, then of the second of each, and so on."""
    seen: Counter[str | None] = Counter()
    turns = []
    for index, category in enumerate(categories):
        turns.append((seen[category], index))
        seen[category] += 1
    return sorted(index for _, index in sorted(turns)[:most])


def writers_of_steps(text: Decoded) -> list[Writer]:
    """Return the writer of each token from the verification steps; a stop token at the end counts as the target's."""
    writers: list[Writer] = []
    for number, step in enumerate(text.steps, start=1):
        ends = text.stopped and number == len(text.steps)
        own: Writer = "target" if ends else "corrected" if step.accepted < step.proposed else "bonus"
        accepted: list[Writer] = ["accepted"] * step.accepted
        writers += accepted
        writers.append(own)
    return writers


def spans(
    tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], writers: Sequence[Writer]
) -> list[tuple[str, Writer]]:
    """Split a text into pieces by writer; a character of several tokens belongs to its last."""
    pieces: list[tuple[str, Writer]] = []
    shown = ""
    for count, writer in enumerate(writers, start=1):
        text = str(tokenizer.decode(list(token_ids[:count]), clean_up_tokenization_spaces=False))
        if text.endswith(UNFINISHED) and count < len(writers):
            continue
        pieces.append((text[len(shown) :], writer))
        shown = text
    return pieces


STYLES: dict[Writer, str] = {"target": "", "accepted": "cyan", "corrected": "bold yellow", "bonus": "underline magenta"}
MARKS: dict[Writer, tuple[str, str]] = {"corrected": ("[", "]"), "bonus": ("{", "}")}
LEGEND: dict[Writer, str] = {
    "accepted": "accepted token of the draft",
    "corrected": "correction by the target",
    "bonus": "bonus token of the target",
}
REFRESHES_PER_S = 12


def show(pair: LoadedPair, prompts: Iterable[Prompt], wanted: Verification, console: Console) -> None:
    """Decode each prompt both ways and show the texts; `wanted.samples` is not used."""
    for index, prompt in enumerate(prompts):
        ids, seed = pair.rendered(prompt), row_seed(index)
        pair.require_context([ids], wanted.limits.max_new_tokens)
        if wanted.opener is not open_sequencer:
            make_steps(pair, ids, wanted, seed)
        both = runners(pair, ids, wanted, seed)
        console.print(Text(f"> {prompt.messages[-1]['content']}", style="bold"))
        if console.is_terminal:
            with Live(console=console, refresh_per_second=REFRESHES_PER_S) as live:
                for _ in race(*both):
                    live.update(columns(pair, *both, console))
        else:
            for _ in race(*both):
                pass
            for runner in both:
                console.print(Text.assemble(f"-- {runner.summary}\n", coloured(pair, runner, colour=False)))
            console.print(Text.assemble(legend(colour=False), "\n", speedup(*both), "\n"))


def make_steps(pair: LoadedPair, ids: Sequence[int], wanted: Verification, seed: int) -> None:
    """Capture steps by decoding the first tokens unseen, before any clock runs; the caches are free on return."""
    for runner in runners(pair, ids, wanted, seed):
        runner.advance()


def runners(pair: LoadedPair, ids: Sequence[int], wanted: Verification, seed: int) -> "tuple[Runner, Runner]":
    """Return plain and speculative decoding of one prompt, not started, with the same seeds."""
    plain = DecodingRequest([ids], wanted.limits, wanted.sampling)
    drafted = DecodingRequest([ids], wanted.limits, wanted.sampling, wanted.speculation)
    how: dict[str, Any] = {"seeds": Seeds.of(wanted.seed), "row_seeds": [seed], "opener": wanted.opener}
    return (
        Runner(decode_steps([pair.target], plain, **how), drafts=False),
        Runner(decode_steps([pair.target, pair.draft], drafted, **how), drafts=True),
    )


def columns(pair: LoadedPair, plain: "Runner", drafted: "Runner", console: Console) -> Group:
    table = Table.grid(expand=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    colour = console.color_system is not None
    table.add_row(*(Panel(coloured(pair, each, colour=colour), title=each.summary) for each in (plain, drafted)))
    return Group(table, legend(colour=colour), Text(speedup(plain, drafted)))


def coloured(pair: LoadedPair, runner: "Runner", *, colour: bool) -> Text:
    text = Text()
    for piece, writer in spans(pair.tokenizer, runner.token_ids, runner.writers):
        text.append_text(marked(piece, writer, colour=colour))
    return text


def marked(piece: str, writer: Writer, *, colour: bool) -> Text:
    before, after = MARKS.get(writer, ("", ""))
    return Text(piece, style=STYLES[writer]) if colour else Text(f"{before}{piece}{after}")


def legend(*, colour: bool) -> Text:
    return Text("  ").join([marked(meaning, writer, colour=colour) for writer, meaning in LEGEND.items()])


def speedup(plain: "Runner", drafted: "Runner") -> str:
    return f"speedup {drafted.rate / plain.rate:.2f}x" if plain.rate and drafted.rate else ""


def typed_prompts(console: Console, chat_template_kwargs: Mapping[str, Any]) -> Iterator[Prompt]:
    """Yield prompts from the keyboard or standard input until it ends or a line is empty."""
    number = 0
    while True:
        try:
            line = console.input("prompt> ") if sys.stdin.isatty() else input()
        except EOFError:
            return
        if not line.strip():
            return
        number += 1
        yield Prompt(f"standard input:{number}", (user_turn(line),), chat_template_kwargs=chat_template_kwargs)


@dataclass
class Runner:
    """One way of decoding in progress.

    Attributes:
        steps: From eval.decoding.speculative.decode_steps, for one prompt.
        drafts: True if a draft takes part.
        steps_done: Verification steps so far.
        spent_s: Seconds of its own steps.
    """

    steps: Iterator[Emitted | tuple[int, Decoded]]
    drafts: bool
    token_ids: list[int] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    steps_done: int = 0
    spent_s: float = 0.0
    is_done: bool = False

    @property
    def rate(self) -> float:
        """Tokens per second so far, prefill included; 0 before the first."""
        return len(self.token_ids) / self.spent_s if self.spent_s else 0.0

    @property
    def summary(self) -> str:
        text = f"{len(self.token_ids)} tokens, {self.rate:.1f} tokens/s"
        if not self.drafts:
            return f"without draft: {text}"
        length = len(self.token_ids) / self.steps_done if self.steps_done else 0.0
        return f"with draft: {text}, acceptance length {length:.2f}, accepted {self.writers.count('accepted')}"

    def advance(self) -> None:
        start_s = time.perf_counter()
        step = next(self.steps)
        self.spent_s += time.perf_counter() - start_s
        if not isinstance(step, Emitted):
            self.is_done = True
            return
        self.steps_done += 1
        self.token_ids += step.token_ids
        self.writers += writers_of(step, drafts=self.drafts)


def race(*runners: Runner) -> Iterator[None]:
    """Advance the slower runner until all are done; yields after every step."""
    while unfinished := [runner for runner in runners if not runner.is_done]:
        min(unfinished, key=lambda runner: runner.spent_s).advance()
        yield


def writers_of(step: Emitted, *, drafts: bool) -> list[Writer]:
    """Return the writer of each token of a step: the target's own token corrects a proposed one, or is a bonus.

    A stop token inside the accepted tokens counts as the target's, not as a correction.
    """
    last: Writer = "target" if not drafts else "corrected" if step.rejected is not None else "bonus"
    accepted: list[Writer] = ["accepted"] * step.accepted
    return [*accepted, last]
