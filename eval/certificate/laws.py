"""What must hold of an engine's run with a draft, decided from its texts, its counters and our replay. Pure.

    files       the draft's tokenizer and chat template are the target's, byte for byte
    prompts     the engine reads the tokens that widedraft reads: same tokenizer, same chat template
    own draft   the target as its own draft keeps everything it proposes
    same text   with the draft the engine writes the text it writes without, but for near-ties in fewer than 32 bits
    counts      what the engine accepted by position is what exact replay says of the same texts

Engines count otherwise than we do near a text's end. Our rounds propose as many tokens as the text has room for, and
its last token is always the target's. vLLM and llama.cpp propose past a stop token, and count what they accept there:
at most one round a text, which TOLERANCE leaves room for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from eval.engine_runs.record import Counted, EngineRun, Finding, pooled
from eval.lossless import MIN_OWN_ACCEPTANCE

TOLERANCE = 0.02  # of a rate by position
LEAST_PROMPTS, LEAST_TOKENS = 24, 64


@dataclass(frozen=True)
class Known:
    """What is known of a pair before anything is run.

    Attributes:
        same_tokenizer: Whether the draft's tokenizer is the target's, file by file.
        same_template: Whether its chat template is.
        draft_context: Tokens of a text that the draft is made for; None where there is no end.
        quantised: Formats of files that hold fewer bits than 16, such as "Q4_1".
    """

    same_tokenizer: bool
    same_template: bool
    draft_context: int | None
    quantised: Sequence[str] = ()


def find(
    run: EngineRun, prompts: Sequence[Sequence[int]], replay: Counted, known: Known, ties: Collection[int] = ()
) -> list[Finding]:
    """Every law.

    Args:
        run: Of the engine.
        prompts: As the target's own tokenizer and template render them.
        replay: Exact counts over the engine's plain texts.
        known: Of the pair.
        ties: Numbers of the prompts whose texts part at a near-tie that rounding explains.
    """
    return [
        enough(run),
        same_files(known),
        same_prompts(run, prompts),
        own_draft(run),
        same_text(run, ties),
        same_counts(run, replay),
    ]


def enough(run: EngineRun) -> Finding:
    """Whether so much was decoded that the other laws say something."""
    tokens = max(len(text.plain_ids) for text in run.texts)
    holds = len(run.texts) >= LEAST_PROMPTS and run.max_new_tokens >= LEAST_TOKENS
    detail = f"{len(run.texts)} prompts of at most {run.max_new_tokens} tokens, the longest text {tokens}"
    return Finding(law="enough", holds=holds, detail=f"{detail} (asked: {LEAST_PROMPTS} of {LEAST_TOKENS})")


def same_files(known: Known) -> Finding:
    """Whether the draft is of this target: counts would agree with a replay that misreads tokens the same way."""
    wrong = [
        name for name, same in (("tokenizer", known.same_tokenizer), ("chat template", known.same_template)) if not same
    ]
    verb = ("are", "differs from", "differ from")[len(wrong)]
    detail = f"the draft's {' and '.join(wrong) or 'tokenizer and chat template'} {verb}"
    return Finding(law="files", holds=not wrong, detail=f"{detail} the target's")


def same_prompts(run: EngineRun, prompts: Sequence[Sequence[int]]) -> Finding:
    """Whether the engine read what widedraft reads."""
    for number, (text, ours) in enumerate(zip(run.texts, prompts, strict=True), start=1):
        index = first_difference(text.prompt_ids, ours)
        if index is not None:
            detail = (
                f"prompt {number} is read differently from its token {index + 1} on: {id_at(text.prompt_ids, index)} "
                f"there, {id_at(ours, index)} here"
            )
            return Finding(law="prompts", holds=False, detail=detail)
    return Finding(law="prompts", holds=True, detail=f"{len(run.texts)} prompts are read token for token as here")


def own_draft(run: EngineRun) -> Finding:
    """Whether the target keeps what it proposes to itself."""
    own = run.own
    share = own.accepted / own.proposed if own.proposed else 0.0
    tau = 1 + own.accepted / own.rounds if own.rounds else 1.0
    detail = f"{own.accepted} of {own.proposed} proposals kept, tau {tau:.2f} of {run.lookahead + 1}"
    return Finding(law="own draft", holds=share >= MIN_OWN_ACCEPTANCE, detail=detail)


def same_text(run: EngineRun, ties: Collection[int]) -> Finding:
    """Whether the draft changed a text; near-ties that rounding explains are counted, and are no change.

    Args:
        run: Of the engine.
        ties: Numbers of the prompts whose texts part at such a near-tie.
    """
    total = len(run.texts)
    parted = [number for number, text in enumerate(run.texts, start=1) if text.plain_ids != text.drafted_ids]
    wrong = [number for number in parted if number not in ties]
    if not wrong:
        near = f", {len(parted)} part at a near-tie that {run.dtype} explains" if parted else ""
        return Finding(law="same text", holds=True, detail=f"{total - len(parted)} of {total} texts are equal{near}")
    first = run.texts[wrong[0] - 1]
    index = first_difference(first.plain_ids, first.drafted_ids)
    assert index is not None
    detail = (
        f"{len(wrong)} of {total} texts differ, the first at prompt {wrong[0]}, token {index + 1}: "
        f"{id_at(first.plain_ids, index)} without the draft, {id_at(first.drafted_ids, index)} with it"
    )
    return Finding(law="same text", holds=False, detail=detail)


def same_counts(run: EngineRun, replay: Counted) -> Finding:
    """Whether the engine accepted what exact replay says."""
    counted = pooled([text.counted for text in run.texts])
    ours, theirs = rates(replay, counted), rates(counted, counted)
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    kind = "by position" if counted.by_position is not None else "a round"
    detail = (
        f"accepted {kind} {shown(counted)} in {counted.rounds} rounds, replay {shown(replay, like=counted)} in "
        f"{replay.rounds}; rates differ by {worst:.3f} at most (allowed: {TOLERANCE})"
    )
    return Finding(law="counts", holds=worst <= TOLERANCE * scale(counted, run.lookahead), detail=detail)


def scale(counted: Counted, lookahead: int) -> int:
    """How many positions one rate stands for."""
    return lookahead if counted.by_position is None else 1


def rates(counted: Counted, like: Counted) -> list[float]:
    """Accepted tokens a round: by position where the engine tells, else all together."""
    rounds = max(counted.rounds, 1)
    if like.by_position is None or counted.by_position is None:
        return [counted.accepted / rounds]
    return [accepted / rounds for accepted in counted.by_position]


def shown(counted: Counted, like: Counted | None = None) -> str:
    if counted.by_position is None or (like is not None and like.by_position is None):
        return str(counted.accepted)
    return ", ".join(map(str, counted.by_position))


def first_difference(some: Sequence[int], others: Sequence[int]) -> int | None:
    """The first index at which two texts differ; None where they are equal."""
    pairs = zip_longest(some, others)
    return next((index for index, (token, other) in enumerate(pairs) if token != other), None)


def id_at(ids: Sequence[int], index: int) -> str:
    """A token of a text, or that it has ended."""
    return f"id {ids[index]}" if index < len(ids) else "the end"
