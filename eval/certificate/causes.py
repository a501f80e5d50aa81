"""Why an engine accepts less than a draft earned: what is known of the models beside what the engine counted. Pure."""

from collections.abc import Collection, Sequence

from eval.certificate.laws import Known, find, same_prompts
from eval.engine_runs.record import Counted, EngineRun, pooled
from eval.lossless import MIN_OWN_ACCEPTANCE


def likely_causes(
    run: EngineRun,
    prompts: Sequence[Sequence[int]],
    replayed: Sequence[Counted],
    known: Known,
    ties: Collection[int] = (),
) -> list[str]:
    """What probably went wrong, the most telling first; nothing where every law holds.

    Args:
        run: Of the engine.
        prompts: As the target's own tokenizer and template render them.
        replayed: Exact counts of every text.
        known: Of the pair.
        ties: As `laws.find` takes them.
    """
    if all(finding.holds for finding in find(run, prompts, pooled(replayed), known, ties)):
        return []
    causes = [
        template_cause(run, prompts),
        tokenizer_cause(known),
        length_cause(run, replayed, known),
        own_draft_cause(run),
        quantisation_cause(known),
        dtype_cause(run),
    ]
    told = [cause for cause in causes if cause is not None]
    return told or [least_accepted(run, replayed)]


def template_cause(run: EngineRun, prompts: Sequence[Sequence[int]]) -> str | None:
    """The engine frames prompts otherwise."""
    finding = same_prompts(run, prompts)
    if finding.holds:
        return None
    return (
        f"chat template or tokenizer: {finding.detail}. The draft was trained behind the target's own template; serve "
        "that one."
    )


def tokenizer_cause(known: Known) -> str | None:
    """The draft's files disagree with the target's."""
    if known.same_tokenizer:
        return (
            None if known.same_template else "chat template: the draft's is not the target's. Export the draft again."
        )
    return "tokenizer: the draft's is not the target's, so its ids mean other tokens. Export it for this target."


def length_cause(run: EngineRun, replayed: Sequence[Counted], known: Known) -> str | None:
    """Nothing is accepted in long texts alone, where the replay accepts."""
    silent = [
        len(text.prompt_ids)
        for text, ours in zip(run.texts, replayed, strict=True)
        if ours.accepted and not text.counted.accepted
    ]
    heard = [len(text.prompt_ids) for text in run.texts if text.counted.accepted]
    if not silent or (heard and min(silent) <= max(heard)):
        return None
    length = f"; the draft says that it takes {known.draft_context}" if known.draft_context is not None else ""
    return (
        f"length gate: nothing is accepted behind prompts of {min(silent)} tokens or more{length}. Set the draft's "
        "max_position_embeddings to the target's, or raise the engine's limit for the draft."
    )


def own_draft_cause(run: EngineRun) -> str | None:
    """The engine loses tokens of the target itself."""
    if not run.own.proposed or run.own.accepted >= MIN_OWN_ACCEPTANCE * run.own.proposed:
        return None
    return (
        f"the engine: it keeps {run.own.accepted} of {run.own.proposed} tokens that the target proposes to itself, so "
        "no draft can do well there. Look for its issue, or another version."
    )


def quantisation_cause(known: Known) -> str | None:
    """A model that was rounded is another model."""
    if not known.quantised:
        return None
    return f"quantisation: {' and '.join(known.quantised)} are not the weights that were scored. Try 16 bits."


def dtype_cause(run: EngineRun) -> str | None:
    """Numbers of 16 bits round otherwise for one token than for several."""
    if run.dtype not in ("bfloat16", "float16"):
        return None
    return f"number type: in {run.dtype} near-ties fall otherwise for several tokens at once. Certify in float32."


def least_accepted(run: EngineRun, replayed: Sequence[Counted]) -> str:
    """Where the engine and the replay are furthest apart."""
    gaps = [
        (abs(ours.accepted - text.counted.accepted), number)
        for number, (text, ours) in enumerate(zip(run.texts, replayed, strict=True), start=1)
    ]
    _, number = max(gaps)
    theirs, ours = run.texts[number - 1].counted.accepted, replayed[number - 1].accepted
    return f"unknown: they are furthest apart at prompt {number}, {theirs} accepted there and {ours} by replay."
