"""What plan.json holds: where every part of a draft comes from, and what makes such a plan valid. No torch."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from architectures.checkpoints.fingerprint import fingerprint_checkpoint
from architectures.errors import UserError
from architectures.files.reading import parsed, read_text
from architectures.shapes.requested_shape import WIDTHS
from architectures.shapes.shape import Shape
from architectures.vocabulary import broken_law

PLAN_NAME = "plan.json"
PLAN_MIB = 256  # a plan that names each neuron of 80 layers has some 10 MB
REMEDY = "Name a plan.json as `widedraft prune` wrote it."
Kept = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PruningPlan:
    """Where every part of the draft comes from; all counts from 0.

    Attributes:
        source_layers: The target's layer that becomes each draft layer, in order.
        merged_layers: For each draft layer, the target's layers merged into it; mostly none.
        neurons: For each draft layer, the feed-forward neurons kept; None keeps all.
        heads: For each draft layer, the query heads kept; None keeps all.
        kv_heads: For each draft layer, the key/value heads kept; None keeps all.
        channels: Of the residual stream, kept everywhere; None keeps all.
        vocabulary: Token ids that the output head keeps a row for, ascending; None keeps all.
        encoder_layers: The target's block that becomes each one of the draft's encoder; empty where there is none.
        target: Fingerprint of the checkpoint this plan was made for; None if it fits any of this shape.
    """

    source_layers: Kept
    source: Shape
    draft: Shape
    method: str
    merged_layers: tuple[Kept, ...] = ()
    neurons: tuple[Kept, ...] | None = None
    heads: tuple[Kept, ...] | None = None
    kv_heads: tuple[Kept, ...] | None = None
    channels: Kept | None = None
    vocabulary: Kept | None = None
    target: str | None = None
    encoder_layers: Kept = ()

    def with_vocab(self, vocab: int) -> "PruningPlan":
        """The same for a target with another vocab_size than the source's."""
        return replace(self, draft=replace(self.draft, vocab=vocab))

    def with_vocabulary(self, ids: Kept) -> "PruningPlan":
        """The same with an output head that outputs these ids alone; what was tied to the embedding no longer is."""
        return replace(self, vocabulary=ids, draft=self.draft.with_head_of(len(ids)))

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    def summary(self) -> str:
        """What is kept, in one line."""
        merged = " (others merged in)" if self.merged_layers else ""
        parts = [f"keeps {listed(self.source_layers, self.source.layers)}{merged}"]
        if self.encoder_layers:
            whole = len(self.encoder_layers) == self.source.encoder_layers
            parts.append(
                "the whole encoder" if whole else f"encoder {listed(self.encoder_layers, self.source.encoder_layers)}"
            )
        for name in WIDTHS:
            kept, of = getattr(self.draft, name), getattr(self.source, name)
            parts += [f"{name} {kept} of {of}"] if kept != of else []
        if self.vocabulary is not None:
            parts.append(f"output ids {self.draft.head_vocab} of {self.draft.vocab}")
        return ", ".join(parts)

    @classmethod
    def from_json(cls, text: str, *, where: str = PLAN_NAME) -> "PruningPlan":
        """The plan that to_json wrote; UserErrors begin with `where`."""
        return parsed(TypeAdapter(cls), text, f"{where}: not a plan.json that widedraft wrote", REMEDY)


def listed(layers: Kept, num_source: int) -> str:
    """(0, 3) of 4: "layers 0, 3 of 0 to 3"."""
    return f"layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, layers))} of 0 to {num_source - 1}"


def load_plan(file: Path, source: Shape, *, target: Path | None) -> PruningPlan:
    """A plan from a file, made for this very target.

    Args:
        file: A plan.json.
        source: The target's shape.
        target: The target's folder, whose fingerprint is compared; None compares shapes alone.

    Raises:
        UserError: If it cannot be read, or was made for another target.
    """
    plan = PruningPlan.from_json(read_text(file, remedy=REMEDY, most_mib=PLAN_MIB), where=str(file))
    fingerprint = plan.target if target is None else fingerprint_checkpoint(target)
    if plan.source != source or plan.target != fingerprint:
        made_for, this = (str(each)[:12] for each in (plan.target, fingerprint))
        raise UserError(
            f"{file}: made for another target (fingerprint {made_for}, {plan.source.layers} layers) than this one "
            f"({this}, {source.layers} layers). Make a plan for this target, or name the other one."
        )
    for mistake in broken_laws(plan):
        raise UserError(f"{file}: {mistake}. {REMEDY}")
    return plan


def broken_laws(plan: PruningPlan) -> list[str]:
    """Reasons why no target can be pruned by a plan."""
    mistake = broken_sizes(plan) or broken_vocabulary(plan)
    return list(broken_lists(plan)) if mistake is None else [mistake]


def broken_sizes(plan: PruningPlan) -> str | None:
    """Sizes of the draft are at most the source's, and nothing else differs."""
    source, draft = plan.source, plan.draft
    names = ("layers", *WIDTHS, *(("encoder_layers",) if source.encoder_layers else ()))
    for name in names:
        kept, of = getattr(draft, name), getattr(source, name)
        if not 0 < kept <= of:
            return f"draft.{name} must be > 0 and at most the source's {of}, got {kept}"
    if draft.vocab < 1:  # that of the target, which may have more rows than the source, or fewer
        return f"draft.vocab must be > 0, got {draft.vocab}"
    uncut = draft if plan.vocabulary is None else replace(draft, head_vocab=source.head_vocab, tied=source.tied)
    if replace(uncut, vocab=source.vocab, **{name: getattr(source, name) for name in names}) != source:
        return "draft must differ from source in its sizes alone"
    return None


def broken_vocabulary(plan: PruningPlan) -> str | None:
    """The ids that the output head keeps are as many as its rows."""
    if plan.vocabulary is None:
        return None
    if plan.source.head_vocab:
        return f"vocabulary must be left out: the source's head outputs {plan.source.head_vocab} ids only"
    if plan.draft.tied or plan.draft.head_vocab != len(plan.vocabulary):
        return f"draft must be untied, with a head_vocab of the {len(plan.vocabulary)} ids in vocabulary"
    mistake = broken_law(plan.vocabulary, plan.draft.vocab)
    return None if mistake is None else f"vocabulary: {mistake}"


def broken_lists(plan: PruningPlan) -> Iterator[str]:
    """Lists of parts hold as many different numbers as the draft has, all of them the source's."""
    source, draft = plan.source, plan.draft
    lists = [
        ("source_layers", plan.source_layers, draft.layers, source.layers),
        ("encoder_layers", plan.encoder_layers, draft.encoder_layers, source.encoder_layers),
    ]
    if plan.merged_layers and len(plan.merged_layers) != draft.layers:
        yield f"merged_layers must have one list for each of {draft.layers} layers, got {len(plan.merged_layers)}"
    lists += [(f"merged_layers.{i}", each, len(each), source.layers) for i, each in enumerate(plan.merged_layers)]
    for name, size in (("neurons", "intermediate"), ("heads", "heads"), ("kv_heads", "kv_heads")):
        choices, kept, of = getattr(plan, name), getattr(draft, size), getattr(source, size)
        if choices is None and kept != of:
            yield f"{name} must be given where {kept} of {of} are kept"
        if choices is not None and len(choices) != draft.layers:
            yield f"{name} must have one list for each of {draft.layers} layers, got {len(choices)}"
        lists += [(f"{name}.{index}", choice, kept, of) for index, choice in enumerate(choices or ())]
    if (plan.channels is None) != (draft.hidden == source.hidden):
        yield f"channels must be given where {draft.hidden} of {source.hidden} are kept, and only there"
    elif plan.channels is not None:
        lists.append(("channels", plan.channels, draft.hidden, source.hidden))
    for name, choice, kept, of in lists:
        if len(choice) != kept or len(set(choice)) != kept:
            yield f"{name} must hold {kept} different numbers, got {len(choice)}, {len(set(choice))} of them different"
        elif outside := [number for number in choice if not 0 <= number < of]:
            yield f"{name} must be from 0 to {of - 1}, got {outside[0]}"
