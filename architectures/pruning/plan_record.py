"""What plan.json holds: where every part of a draft comes from. No torch."""

import json
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from architectures.files.typed_file import parsed
from architectures.pruning.width import Kept
from architectures.shapes.requested_shape import WIDTHS
from architectures.shapes.shape import Shape

PLAN_NAME = "plan.json"
REMEDY = "Name a plan.json as `widedraft prune` wrote it."


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A rescaling of the residual stream where layers were taken out: channel k times scale[k], from `layer` on."""

    layer: int  # the first draft layer behind the cut
    scale: tuple[float, ...]


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
        cuts: Rescalings of the residual stream.
        encoder_layers: The target's block that becomes each one of the draft's encoder; empty where there is none.
        read_gains: For each draft layer and the final norm, what its norm is multiplied by to undo the cuts' change
            of the stream's mean square; empty without cuts.
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
    cuts: tuple[Cut, ...] = ()
    read_gains: tuple[float, ...] = ()
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
        kept = f"layer{'' if len(self.source_layers) == 1 else 's'} {', '.join(map(str, self.source_layers))}"
        text = f"keeps {kept} of 0 to {self.source.layers - 1}{merged}{self.encoder_words()}"
        sizes = {name: (getattr(self.draft, name), getattr(self.source, name)) for name in WIDTHS}
        cut = [f"{name} {kept} of {of}" for name, (kept, of) in sizes.items() if kept != of]
        head = [] if self.vocabulary is None else [f"ids said {self.draft.head_vocab} of {self.draft.vocab}"]
        return ", ".join([text, *cut, *head])

    def encoder_words(self) -> str:
        """What is kept of the encoder; nothing where there is none."""
        if not self.encoder_layers:
            return ""
        kept, of = len(self.encoder_layers), self.source.encoder_layers
        if kept == of:
            return ", the whole encoder"
        return f", encoder layer{'' if kept == 1 else 's'} {', '.join(map(str, self.encoder_layers))} of 0 to {of - 1}"

    @classmethod
    def from_json(cls, text: str, *, where: str = PLAN_NAME) -> "PruningPlan":
        """The plan that to_json wrote; UserErrors begin with `where`."""
        return parsed(TypeAdapter(cls), text, f"{where}: not a plan.json that widedraft wrote", REMEDY)
