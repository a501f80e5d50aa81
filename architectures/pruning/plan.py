"""What plan.json holds: where every part of a draft comes from, and what makes such a plan valid. No torch."""

import json
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
    if (name := wrong_field(plan)) is not None:
        raise UserError(f"{file}: {name} does not fit the sizes of source and draft. {REMEDY}")
    return plan


def wrong_field(plan: PruningPlan) -> str | None:
    """The first field that does not fit the sizes of source and draft, by which no target can be pruned."""
    source, draft, ids = plan.source, plan.draft, plan.vocabulary
    sizes = {name: getattr(source, name) for name in ("layers", "encoder_layers", *WIDTHS)}
    head = {} if ids is None else {"head_vocab": source.head_vocab, "tied": source.tied}
    fits = all(0 < getattr(draft, name) <= of for name, of in sizes.items() if of)
    if not fits or draft.vocab < 1 or replace(draft, vocab=source.vocab, **sizes, **head) != source:
        return "draft"
    if ids is not None and (
        source.head_vocab or draft.tied or draft.head_vocab != len(ids) or broken_law(ids, draft.vocab) is not None
    ):
        return "vocabulary"
    merged = {layer for each in plan.merged_layers for layer in each}
    if len(plan.merged_layers) not in (0, draft.layers) or not merged <= {*range(source.layers)}:
        return "merged_layers"
    lists = {  # how many, of which size each, out of how many
        "source_layers": ((plan.source_layers,), 1, draft.layers, source.layers),
        "encoder_layers": ((plan.encoder_layers,), 1, draft.encoder_layers, source.encoder_layers),
        "neurons": (plan.neurons, draft.layers, draft.intermediate, source.intermediate),
        "heads": (plan.heads, draft.layers, draft.heads, source.heads),
        "kv_heads": (plan.kv_heads, draft.layers, draft.kv_heads, source.kv_heads),
        "channels": (plan.channels and (plan.channels,), 1, draft.hidden, source.hidden),
    }
    for name, (choices, count, kept, of) in lists.items():
        given = () if choices is None else choices
        chosen = all(len(each) == kept == len({*each} & {*range(of)}) for each in given)
        if not chosen or (kept != of if choices is None else len(given) != count):
            return name
    return None
