"""Where the numbers come from: models, prompts, method, machine, code and command."""

import shlex
from collections.abc import Sequence

from architectures.pages.blocks import Block, Facts, Section, Sentence, Table
from architectures.pages.counts import number_of
from eval.pages.tables import with_head_size
from eval.pages.verdict import agreement_sentence
from eval.records.origin import ScoredModel
from eval.records.scorecard import Scorecard
from eval.records.scorecard_speeds import Live
from eval.report_inputs.cards import Card


def origin_section(cards: Sequence[Card]) -> Section:
    """Models of all scorecards, then the facts of each."""
    blocks: list[Block] = [models_table(cards)]
    for card in cards:
        blocks += [Sentence(f"{card.name}: {card.path}"), Facts(facts(card))]
    return Section("Where the numbers come from", blocks, name="origin")


def models_table(cards: Sequence[Card]) -> Table:
    """The target once, and every scorecard's drafts."""
    rows: list[tuple[str, ScoredModel]] = [("target", cards[0].record.target)]
    for card in cards:
        prefix = f"{card.name}: " if len(cards) > 1 else ""
        rows += [(f"{prefix}{model.draft}", model) for model in card.record.drafts]
    cells = [
        (
            name,
            model.path,
            str(model.layers),
            str(model.hidden),
            f"{model.parameters:,}",
            model.dtype,
            model.fingerprint[:12],
        )
        for name, model in rows
    ]
    columns = ("model", "folder", "layers", "hidden", "parameters", "number type", "fingerprint")
    return with_head_size(Table(columns, cells, "Models"), [model.head_vocab_size for _, model in rows])


def facts(card: Card) -> list[tuple[str, str]]:
    """One scorecard's prompts, method, machine, versions and command."""
    record = card.record
    origin, settings = record.provenance, record.settings
    hardware = origin.hardware
    cores = "a number of cores that is not known" if hardware.cores is None else number_of(hardware.cores, "core")
    return [
        ("prompts", prompts_words(record)),
        (
            "intervals",
            (
                f"{100 * settings.confidence:g} % {settings.intervals} over prompts, "
                f"{settings.num_resamples} resamples, seed {settings.seed}"
            ),
        ),
        ("live decoding", "not run" if record.live is None else live_words(record.live)),
        (
            "machine",
            f"{record.machine}, {cores}, {hardware.memory_gib:g} GiB of memory",
        ),
        ("number type", settings.dtype),
        ("versions", origin.versions_words),
        ("commit", origin.git_commit or "unknown: git did not track the code"),
        ("scored", origin.created),
        ("command", shlex.join(origin.argv)),
    ]


def prompts_words(record: Scorecard) -> str:
    prompts, settings = record.prompts, record.settings
    return (
        f"{prompts.given} given, {prompts.taken} taken, {prompts.too_long} too long, "
        f"{prompts.scored} scored (token ids {prompts.ids_sha256[:12]}); "
        f"answers of at most {settings.max_new_tokens} tokens"
    )


def live_words(live: Live) -> str:
    """What was decoded live, and whether it obeyed the replay."""
    plain, ours = live.plain, live.speculative
    return (
        f"{plain.ms_per_token:.2f} ms a token by the target alone, {ours.ms_per_token:.2f} with {live.draft}, "
        f"the reading of the prompt left out. {agreement_sentence(live)}"
    )
