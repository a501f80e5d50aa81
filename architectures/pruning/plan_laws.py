"""What every pruning plan keeps to, so that one from a file cuts its target or is refused. Pure; no torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite

from architectures.pruning.plan_record import PruningPlan
from architectures.shapes.shape import Shape
from architectures.vocabulary import broken_law

SIZES = ("layers", "hidden", "intermediate", "heads", "kv_heads")


def broken_laws(plan: PruningPlan) -> Iterator[str]:
    """What a plan says that no target can be cut by, in words."""
    source, draft = plan.source, plan.draft
    depth = ("encoder_layers",) if source.encoder_layers else ()
    sizes = {name: (getattr(draft, name), getattr(source, name)) for name in (*SIZES, *depth)}
    wrong = [name for name, (kept, of) in sizes.items() if not 0 < kept <= of]
    if wrong:
        kept, of = sizes[wrong[0]]
        yield f"draft.{wrong[0]} must be > 0 and at most the source's {of}, got {kept}"
    elif draft.vocab < 1:  # that of the target, which may have more rows than the source, or fewer
        yield f"draft.vocab must be > 0, got {draft.vocab}"
    elif replace(uncut(plan), vocab=source.vocab, **{name: of for name, (_, of) in sizes.items()}) != source:
        yield "draft must differ from source in its sizes alone"
    elif (mistake := broken_vocabulary(plan)) is not None:
        yield mistake
    else:
        yield from broken_lists(plan)
        yield from broken_scales(plan)


def uncut(plan: PruningPlan) -> Shape:
    """The draft's shape with the source's output head, where the plan cuts it."""
    if plan.vocabulary is None:
        return plan.draft
    return replace(plan.draft, head_vocab=plan.source.head_vocab, tied=plan.source.tied)


def broken_vocabulary(plan: PruningPlan) -> str | None:
    """What is wrong with the ids that the head keeps, in words."""
    if plan.vocabulary is None:
        return None
    if plan.source.head_vocab:
        return f"vocabulary must be left out: the source's head says {plan.source.head_vocab} ids alone"
    if plan.draft.tied or plan.draft.head_vocab != len(plan.vocabulary):
        return f"draft must be untied, with a head_vocab of the {len(plan.vocabulary)} ids in vocabulary"
    mistake = broken_law(plan.vocabulary, plan.draft.vocab)
    return None if mistake is None else f"vocabulary: {mistake}"


def broken_lists(plan: PruningPlan) -> Iterator[str]:
    """The same of the parts that are kept."""
    source, draft = plan.source, plan.draft
    yield from broken_choice("source_layers", plan.source_layers, draft.layers, source.layers)
    yield from broken_choice("encoder_layers", plan.encoder_layers, draft.encoder_layers, source.encoder_layers)
    if plan.merged_layers and len(plan.merged_layers) != draft.layers:
        yield f"merged_layers must have one list for each of {draft.layers} layers, got {len(plan.merged_layers)}"
    for index, others in enumerate(plan.merged_layers):
        yield from broken_choice(f"merged_layers.{index}", others, len(others), source.layers)
    for name, size in (("neurons", "intermediate"), ("heads", "heads"), ("kv_heads", "kv_heads")):
        yield from broken_choices(name, getattr(plan, name), draft.layers, getattr(draft, size), getattr(source, size))
    if (plan.channels is None) != (draft.hidden == source.hidden):
        yield f"channels must be given where {draft.hidden} of {source.hidden} are kept, and only there"
    elif plan.channels is not None:
        yield from broken_choice("channels", plan.channels, draft.hidden, source.hidden)


def broken_choices(
    name: str, choices: Sequence[Sequence[int]] | None, num_layers: int, kept: int, of: int
) -> Iterator[str]:
    """The same of a list with the parts that each layer keeps."""
    if choices is None:
        if kept != of:
            yield f"{name} must be given where {kept} of {of} are kept"
        return
    if len(choices) != num_layers:
        yield f"{name} must have one list for each of {num_layers} layers, got {len(choices)}"
    for index, choice in enumerate(choices):
        yield from broken_choice(f"{name}.{index}", choice, kept, of)


def broken_choice(name: str, choice: Sequence[int], kept: int, of: int) -> Iterator[str]:
    """The same of one list of parts."""
    if len(choice) != kept or len(set(choice)) != kept:
        yield f"{name} must hold {kept} different numbers, got {len(choice)}, {len(set(choice))} of them different"
    elif outside := [number for number in choice if not 0 <= number < of]:
        yield f"{name} must be from 0 to {of - 1}, got {outside[0]}"


def broken_scales(plan: PruningPlan) -> Iterator[str]:
    """The same of the rescaling."""
    for index, cut in enumerate(plan.cuts):
        if not 0 <= cut.layer <= plan.draft.layers:
            yield f"cuts.{index}.layer must be from 0 to {plan.draft.layers}, got {cut.layer}"
        if len(cut.scale) != plan.source.hidden or not all_positive(cut.scale):
            yield f"cuts.{index}.scale must hold {plan.source.hidden} numbers > 0"
    due = plan.draft.layers + 1 if plan.cuts else 0
    if len(plan.read_gains) != due or not all_positive(plan.read_gains):
        yield f"read_gains must hold {due} numbers > 0, got {len(plan.read_gains)} numbers"


def all_positive(values: Iterable[float]) -> bool:
    """Whether all are finite and above 0."""
    return all(isfinite(value) and value > 0 for value in values)
