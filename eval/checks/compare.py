"""`widedraft compare`: a prompt answered with and without the draft, side by side, each token coloured by its writer.

In a terminal both answers grow as they are written. Elsewhere they are printed when they are done, and marks stand for
the colours, as they do in a terminal without colour: [corrected] by the target, {bonus} of the target, all else is the
draft's.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eval.checks.loaded_pair import LoadedPair
from eval.decoding.sampling import Sampling
from eval.decoding.speculative import decode_steps
from eval.decoding.texts import Decoded, Limits, Seeds, Speculation, row_seed
from eval.decoding.wanted import Wanted
from eval.prompts import Prompt, user_turn
from eval.rounds.race import Runner, Writer, race, spans
from eval.rounds.round_trace import Run
from eval.steps.sequencer import Opener, open_sequencer

STYLES: dict[Writer, str] = {"target": "", "accepted": "cyan", "corrected": "bold yellow", "bonus": "underline magenta"}
MARKS: dict[Writer, tuple[str, str]] = {
    "target": ("", ""),
    "accepted": ("", ""),
    "corrected": ("[", "]"),
    "bonus": ("{", "}"),
}
LEGEND = (
    ("the draft's, accepted", "accepted"),
    ("the target's correction", "corrected"),
    ("the target's bonus", "bonus"),
)
REFRESHES_PER_S = 12


@dataclass(frozen=True)
class Comparison:
    """How to decode.

    Attributes:
        limits: When an answer ends.
        speculation: How the draft is used.
        sampling: How tokens are chosen.
        seeds: Of random numbers.
        opener: How the models are run.
    """

    limits: Limits
    speculation: Speculation
    sampling: Sampling
    seeds: Seeds
    opener: Opener = open_sequencer


def compare(
    pair: LoadedPair, prompts: Iterable[Prompt], wanted: Comparison, console: Console
) -> list[tuple[str, Decoded]]:
    """Answer each prompt twice and show it.

    Args:
        pair: Target and draft.
        prompts: As they come.
        wanted: How to decode.
        console: Where to show it.

    Returns:
        The source of each prompt, and its answer with the draft.
    """
    answered = []
    for index, prompt in enumerate(prompts):
        ids, seed = pair.rendered(prompt), row_seed(index)
        pair.require_context([ids], wanted.limits.max_new_tokens)
        if wanted.opener is not open_sequencer:
            make_steps(pair, ids, wanted, seed)
        plain, speculative = runners(pair, ids, wanted, seed)
        console.print(Text(f"> {prompt.messages[-1]['content']}", style="bold"))
        if console.is_terminal:
            with Live(console=console, refresh_per_second=REFRESHES_PER_S) as live:
                for _ in race(plain, speculative):
                    live.update(side_by_side(pair, plain, speculative, console))
        else:
            for _ in race(plain, speculative):
                pass
            console.print(one_below_the_other(pair, plain, speculative))
        assert speculative.decoded is not None
        answered.append((prompt.source, speculative.decoded))
    return answered


def compared_run(wanted: Comparison, decoded: Sequence[Decoded]) -> Run:
    """What was decoded with the draft, for the trace of its rounds; one text of each prompt, in their order."""
    return Run(
        label="compare",
        prompt_indices=range(len(decoded)),
        decoded=decoded,
        max_new_tokens=wanted.limits.max_new_tokens,
        speculation=wanted.speculation,
        sampling=wanted.sampling,
        seeds=wanted.seeds,
    )


def make_steps(pair: LoadedPair, ids: Sequence[int], wanted: Comparison, seed: int) -> None:
    """Decode the first tokens of a prompt unseen, so that no answer's clock counts the making of steps."""
    for runner in runners(pair, ids, wanted, seed):
        runner.advance()


def runners(pair: LoadedPair, ids: Sequence[int], wanted: Comparison, seed: int) -> tuple[Runner, Runner]:
    """Plain and speculative decoding of one prompt, neither begun; both draw by one seed."""
    alone = Wanted([ids], wanted.limits, wanted.sampling)
    together = Wanted([ids], wanted.limits, wanted.sampling, wanted.speculation)
    how: dict[str, Any] = {"seeds": wanted.seeds, "row_seeds": [seed], "opener": wanted.opener}
    return (
        Runner(decode_steps([pair.target], alone, **how), drafts=False),
        Runner(decode_steps([pair.target, pair.draft], together, **how), drafts=True),
    )


def side_by_side(pair: LoadedPair, plain: Runner, speculative: Runner, console: Console) -> Group:
    """Both answers as far as they are, for a terminal."""
    table = Table.grid(expand=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    coloured = console.color_system is not None
    table.add_row(
        *(Panel(answer(pair, runner, coloured=coloured), title=words(runner)) for runner in (plain, speculative))
    )
    return Group(table, legend(coloured=coloured), Text(ratio_words(plain, speculative)))


def one_below_the_other(pair: LoadedPair, plain: Runner, speculative: Runner) -> Text:
    """Both answers for a file or a pipe."""
    parts: list[Text | str] = []
    for runner in (plain, speculative):
        parts += [f"-- {words(runner)}\n", answer(pair, runner, coloured=False), "\n"]
    return Text.assemble(*parts, legend(coloured=False), "\n", ratio_words(plain, speculative), "\n")


def answer(pair: LoadedPair, runner: Runner, *, coloured: bool) -> Text:
    """A text in the colours of its writers, or between their marks."""
    text = Text()
    for piece, writer in spans(pair.tokenizer, runner.token_ids, runner.writers):
        text.append_text(marked(piece, writer, coloured=coloured))
    return text


def marked(piece: str, writer: Writer, *, coloured: bool) -> Text:
    """One piece of text in the colour of its writer, or between its marks."""
    before, after = MARKS[writer]
    return Text(piece, style=STYLES[writer]) if coloured else Text(f"{before}{piece}{after}")


def legend(*, coloured: bool) -> Text:
    """What the colours or marks say."""
    return Text("  ").join(marked(words_, writer, coloured=coloured) for words_, writer in LEGEND)  # pyright: ignore[reportArgumentType]


def words(runner: Runner) -> str:
    """What a runner did so far, in a line."""
    count = f"{len(runner.token_ids)} tokens, {runner.rate:.1f} tokens/s"
    if not runner.drafts:
        return f"target alone: {count}"
    accepted = runner.writers.count("accepted")
    return f"with the draft: {count}, {runner.tau:.2f} tokens a round, {accepted} by the draft"


def ratio_words(plain: Runner, speculative: Runner) -> str:
    """How the rates compare; nothing before both have one."""
    return (
        f"{speculative.rate / plain.rate:.2f}x the speed of the target alone" if plain.rate and speculative.rate else ""
    )


def typed_prompts(console: Console) -> Iterator[Prompt]:
    """Prompts from the keyboard, or lines of standard input, until it ends or an empty one."""
    number = 0
    while True:
        try:
            line = console.input("prompt> ") if sys.stdin.isatty() else input()
        except EOFError:
            return
        if not line.strip():
            return
        number += 1
        yield Prompt(f"standard input:{number}", (user_turn(line),))
