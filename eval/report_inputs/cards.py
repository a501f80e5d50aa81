"""The scorecards of a report and what stands beside them, read and checked: no file is believed that fits no other."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from architectures.errors import UserError
from eval.acceptance.estimates import Resampling
from eval.records.files import CARD_NAME, read_scorecard
from eval.records.scorecard import Scorecard
from eval.records.scorecard_speeds import Live
from eval.rounds.examples import Example, read_examples
from eval.rounds.round_trace import RoundTrace, TracedRound, read_round_trace
from eval.scorecard.sidecars import EXAMPLES_NAME, ROUNDS_NAME
from eval.training_curve.curves import JSON_NAME, Curve, read_curves


@dataclass(frozen=True)
class Card:
    """One scorecard.

    Attributes:
        path: The file.
        name: Of the run it belongs to; no two cards of a report share one.
        record: What it holds.
        rounds: Those of live decoding; None where no trace is beside it.
        examples: Texts of live decoding; None where none are beside it.
        curves: Of the checkpoints its draft is one of; None where none were scored.
    """

    path: Path
    name: str
    record: Scorecard
    rounds: tuple[TracedRound, ...] | None = None
    examples: tuple[Example, ...] | None = None
    curves: tuple[Curve, ...] | None = None

    @property
    def resampling(self) -> Resampling:
        """How its intervals were made."""
        return self.record.settings.resampling

    @property
    def draft(self) -> str:
        """The draft the scorecard is about: the last one, which was decoded live."""
        return self.record.primary


def read_cards(runs: Sequence[Path]) -> list[Card]:
    """The scorecards of some runs.

    Args:
        runs: Each a run's folder, the folder of a scorecard, or the file.

    Raises:
        UserError: If one is missing, foreign, of another version or damaged, named twice, or of another target.
    """
    paths = [card_path(run) for run in runs]
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise UserError(f"{path}: is named {count} times. Name every run once.")
    cards = [read_card(path) for path in paths]
    require_one_target(cards)
    return named_apart(cards)


def card_path(run: Path) -> Path:
    """Where the scorecard of a run lies."""
    paths = [run] if run.is_file() else [run / "eval" / CARD_NAME, run / CARD_NAME]
    for path in paths:
        if path.is_file():
            return path
    raise UserError(
        f"{run}: no {CARD_NAME} there, nor in a folder eval of it. `widedraft eval` writes one: name the run's folder, "
        "the scorecard's or the file."
    )


def read_card(path: Path) -> Card:
    """One scorecard and what stands beside it."""
    record = read_scorecard(path)
    folder = path.resolve().parent
    card = Card(path, folder.parent.name if folder.name == "eval" else folder.name, record)
    card = replace(card, curves=curves_of(card))
    if record.live is None:
        return card
    return replace(card, rounds=live_rounds_of(card, record.live), examples=examples_of(card))


def live_rounds_of(card: Card, live: Live) -> tuple[TracedRound, ...] | None:
    """The rounds of live decoding, if their trace is there and is of this scorecard."""
    path = card.path.with_name(ROUNDS_NAME)
    if not path.is_file():
        return None
    trace = read_round_trace(path)
    require_same_models(card, path, (trace.header.target.fingerprint, trace.header.draft.fingerprint))
    require_same_rounds(card, path, trace, live)
    return trace.rounds


def require_same_rounds(card: Card, path: Path, trace: RoundTrace, live: Live) -> None:
    """Raise UserError unless the trace has as many rounds as the scorecard counted."""
    counted = live.agreement.loop.rounds
    if len(trace.rounds) != counted:
        raise UserError(
            f"{path}: holds {len(trace.rounds)} rounds, but {card.path} counted {counted:g}. They are of two scorings: "
            f"run `widedraft eval` again, or take {path.name} away."
        )


def examples_of(card: Card) -> tuple[Example, ...] | None:
    """Texts of live decoding, if they are there and are of this scorecard."""
    path = card.path.with_name(EXAMPLES_NAME)
    if not path.is_file():
        return None
    record = read_examples(path)
    require_same_models(card, path, (record.target, record.draft))
    return record.examples


def curves_of(card: Card) -> tuple[Curve, ...] | None:
    """Checkpoints of the draft's training, if they were scored with this scorecard."""
    path = card.path.with_name(JSON_NAME)
    if not path.is_file():
        return None
    record = read_curves(path)
    require_same_models(card, path, (record.target, record.draft))
    return record.curves


def require_same_models(card: Card, path: Path, fingerprints: tuple[str, str]) -> None:
    """Raise UserError unless a file is of the scorecard's target and last draft."""
    own = (card.record.target.fingerprint, card.record.drafts[-1].fingerprint)
    for role, ours, theirs in zip(("target", "draft"), own, fingerprints, strict=True):
        if ours != theirs:
            raise UserError(
                f"{path}: is of the {role} {theirs[:12]}, but {card.path} of {ours[:12]}. They are of two scorings: "
                f"run `widedraft eval` again, or take {path.name} away."
            )


def require_one_target(cards: Sequence[Card]) -> None:
    """Raise UserError unless all drafts are of one target."""
    first, *others = cards
    for card in others:
        ours, theirs = first.record.target, card.record.target
        if ours.fingerprint != theirs.fingerprint:
            raise UserError(
                f"{card.path}: its target is {theirs.path} ({theirs.fingerprint[:12]}), that of {first.path} is "
                f"{ours.path} ({ours.fingerprint[:12]}). Drafts of different targets need a report each. "
                "If it is one target, score again: an older widedraft knew models by samples of their weights."
            )


def named_apart(cards: Sequence[Card]) -> list[Card]:
    """The cards, those of one name told apart by their paths."""
    count = Counter(card.name for card in cards)
    return [card if count[card.name] == 1 else replace(card, name=str(card.path.parent)) for card in cards]
