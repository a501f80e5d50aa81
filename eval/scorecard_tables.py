"""Tables of scorecards, shared by scorecard.md, the summary at the end of a run, and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from architectures.console import Table, TableSection, facts, terminal
from eval import scorecard_schema as schema
from eval.intervals import Estimate, least_units, paired_ratio_difference, sign_flip_p
from eval.speedup import predicted_interval

if TYPE_CHECKING:
    from eval.benchmark import BenchmarkFile

OWN_LOOP = (
    "Unless an engine is named, speedups are those of widedraft's decoding loop. llama.cpp on a CPU gains less, as it "
    "verifies slowly (docs/benchmarks.md, Cost of verification)."
)
NOTE = (
    "Acceptance rate: expected acceptance of a drafted token. Acceptance length: tokens per verification step, bonus "
    "token included, at k speculative tokens. Speedups: over plain decoding of the target at batch 1; predicted ones "
    f"exclude prefill. Intervals are in brackets. {OWN_LOOP}"
)

# Step times above these limits cause the warnings below: threads that wait for each other, or for cores used by other
# programs, slow every step by factors that do not depend on the models.
DISTURBED, LOOP_MS = 1.2, 1.0  # a token of plain decoding relative to its timed step, plus milliseconds of Python


@dataclass(frozen=True)
class ScoredDraft:
    """A draft of a scorecard; `label` is its name among all drafts shown."""

    label: str
    card: schema.Scorecard
    draft: str

    @property
    def is_primary(self) -> bool:
        return self.draft == self.card.primary

    def row(self, temperature: float) -> schema.AcceptanceRow:
        return self.card.row(self.draft, temperature)

    def best_k(self, temperature: float) -> int:
        return self.card.speedup_of(self.draft, temperature).best_k


def scored_drafts(cards: Mapping[str, schema.Scorecard]) -> list[ScoredDraft]:
    """Return the primary draft and the baselines of every scorecard; a baseline shared by several is listed once."""
    drafts: list[ScoredDraft] = []
    for name, card in cards.items():
        seen = {draft.card.model(draft.draft).fingerprint for draft in drafts}
        drafts.append(ScoredDraft(card.primary if len(cards) == 1 else name, card, card.primary))
        prefix = "" if len(cards) == 1 else f"{name}: "
        baselines = [model for model in card.drafts[:-1] if model.fingerprint not in seen]
        drafts += [ScoredDraft(f"{prefix}{model.draft}", card, model.draft) for model in baselines]
    return drafts


def primaries(drafts: Sequence[ScoredDraft]) -> list[ScoredDraft]:
    return [draft for draft in drafts if draft.is_primary]


def at_temperatures(drafts: Sequence[ScoredDraft]) -> list[tuple[ScoredDraft, float]]:
    pairs = [(draft, temperature) for draft in drafts for temperature in draft.card.temperatures]
    return sorted(pairs, key=lambda pair: pair[1])


def interval(estimate: Estimate | schema.Ratio | None, digits: int = 3, unit: str = "") -> str:
    """Format as 0.512 [0.480, 0.544]; a dash if nothing was counted."""
    return "–" if estimate is None else with_bounds(estimate.value, estimate.interval, digits, unit)


def with_bounds(
    value: float | None, bounds: tuple[float | None, float | None] | None, digits: int = 3, unit: str = ""
) -> str:
    if value is None:
        return "–"
    shown = ["–" if bound is None else f"{bound:.{digits}f}" for bound in bounds or ()]
    return f"{value:.{digits}f}{unit}" + (f" [{', '.join(shown)}]" if shown else "")


def times(estimate: Estimate | schema.Ratio | None) -> str:
    """Format a speedup: 1.12x [1.05, 1.20]."""
    return interval(estimate, 2, "x")


def predicted(draft: ScoredDraft, temperature: float, num_speculative_tokens: int) -> Estimate:
    """Return the predicted speedup, with its interval from prompts and step times."""
    row, forecasts = draft.row(temperature), draft.card.speedup_of(draft.draft, temperature)
    bounds = predicted_interval(row, num_speculative_tokens, draft.card.latency, draft.card.settings.resampling)
    return Estimate(forecasts.at(num_speculative_tokens).predicted, bounds)


def decoding(drafts: Sequence[ScoredDraft], most: int | None = None) -> Table:
    """Tabulate the result at the first `most` temperatures: the target alone, n-gram lookup, the draft, and both."""
    rows, several = [], len(primaries(drafts)) > 1
    for draft in primaries(drafts):
        for live in draft.card.lives[:most]:
            row, k = draft.row(live.temperature), live.num_speculative_tokens
            rates = (interval(row.alpha), interval(row.at(k).tau))
            rows += [
                (f"{draft.label}: {name}" if several else name, f"{live.temperature:g}", *cells)
                for name, *cells in (
                    ("target alone", "–", "–", "–", per_second(live.plain), "1x"),
                    *(way_cells(way) for way in live.ways if way.way == schema.LOOKUP),
                    ("draft", k, *rates, per_second(live.speculative), times(live.speedup)),
                    *(way_cells(way) for way in live.ways if way.way != schema.LOOKUP),
                )
            ]
    [first, *_] = drafts
    columns = ("decoding", "T", "k", "acceptance rate", "acceptance length", "tokens/s", "speedup")
    return Table(
        columns, rows, f"Result at batch 1, {first.card.live.prompts} prompts, prefill included, {first.card.machine}"
    )


def way_cells(way: schema.WayRow) -> tuple[object, ...]:
    rate = "–" if way.acceptance_rate is None else f"{way.acceptance_rate:.3f}"
    length = f"{way.acceptance_length:.3f}"
    return (way.way, way.num_speculative_tokens, rate, length, per_second(way.spent), times(way.speedup))


def per_second(spent: schema.Spent) -> str:
    return f"{spent.tokens / (spent.prefill_s + spent.decode_s):.1f}"


def results(drafts: Sequence[ScoredDraft]) -> Table:
    """Tabulate acceptance by every method and the predicted speedup, at the best k of every temperature."""
    rows, coverages = [], []
    for draft, temperature in at_temperatures(drafts):
        row, k = draft.row(temperature), draft.best_k(temperature)
        for method in (row, *row.other_rules):
            length = next(entry.tau for entry in method.by_k if entry.num_speculative_tokens == k)
            cells = (draft.label, f"{temperature:g}", method.rule, interval(method.alpha), interval(length), k)
            rows.append((*cells, times(predicted(draft, temperature, k)) if method is row else "–"))
            coverages.append(row.coverage)
    columns = ("draft", "T", "acceptance method", "acceptance rate", "acceptance length", "k", "predicted speedup")
    return with_column(Table(columns, rows, "Acceptance by method"), "vocabulary coverage", coverages)


def with_column(table: Table, name: str, estimates: Sequence[Estimate | schema.Ratio | None]) -> Table:
    if not any(estimates):
        return table
    rows = [(*row, interval(estimate)) for row, estimate in zip(table.rows, estimates, strict=True)]
    return Table((*table.columns, name), rows, table.title)


def measured(drafts: Sequence[ScoredDraft]) -> Table:
    """Tabulate wall-clock decoding with each draft in detail."""
    rows = [
        (
            draft.label,
            f"{live.temperature:g}",
            times(live.decoding_speedup),
            times(next((row.speedup for row in live.over_lookup if row.way == "draft"), None)),
            f"{live.speculative.draft_s / live.speculative.decode_s:.0%}",
            f"{live.speculative.verify_s / live.speculative.decode_s:.0%}",
            f"{live.agreement.same_text} of {live.prompts}",
        )
        for draft in primaries(drafts)
        for live in draft.card.lives
    ]
    names = ("speedup without prefill", "over n-gram lookup", "time in draft", "in verification", "same text as plain")
    return Table(("draft", "T", *names), rows, "Wall-clock decoding, interleaved runs")


def speed_table(records: Sequence[tuple[str, "BenchmarkFile"]]) -> Table:
    """Tabulate every method of benchmarks with the names of their engines; leaves out columns without any value."""
    names = ("engine", "concurrency", "method", "k", "tokens/s", "speedup", "without prefill", "TTFT ms", "TPOT ms")
    names += ("acceptance length: by position", "by replay", "step ms")
    rows = [
        (
            engine,
            str(row.concurrency),
            row.key.label,
            str(row.num_speculative_tokens or ""),
            f"{row.tokens_per_s:.1f}",
            times(row.speedup),
            "" if row.decode_speedup is None else times(row.decode_speedup),
            "" if row.ttft_ms is None else f"{row.ttft_ms:.0f}",
            "" if row.tpot_ms is None else f"{row.tpot_ms:.1f}",
            by_position(row.acceptance_length, row.accepted_by_position),
            by_position(None, row.replayed_by_position),
            "" if row.step_ms is None else " + ".join(f"{ms:.1f}" for ms in vars(row.step_ms).values()),
        )
        for engine, record in records
        for row in record.rows
    ]
    used = [index for index in range(len(names)) if any(row[index] for row in rows)]
    cells = [[row[index] for index in used] for row in rows]
    return Table([names[index] for index in used], cells, "Wall clock; step ms: draft + verify + other")


def by_position(length: float | None, accepted: Sequence[float] | None) -> str:
    """Format an acceptance length, and accepted tokens per verification step by position: 2.10: 0.70 0.40."""
    if accepted is None:
        return "" if length is None else f"{length:.2f}"
    return f"{1 + sum(accepted):.2f}: {' '.join(f'{share:.2f}' for share in accepted)}"


def lengths_by_k(card: schema.Scorecard) -> Table:
    rows = [
        (row.draft, f"{row.temperature:g}", *(f"{entry.tau.value:.2f}" for entry in row.by_k))
        for row in card.acceptance
    ]
    columns = ("draft", "T", *(f"k={k}" for k in card.latency.ks))
    return Table(columns, rows, "Acceptance length by number of speculative tokens (k)")


def by_k(drafts: Sequence[ScoredDraft]) -> Table:
    rows = []
    for draft, temperature in at_temperatures(drafts):
        forecasts = draft.card.speedup_of(draft.draft, temperature)
        for entry in draft.row(temperature).by_k:
            forecast = forecasts.at(entry.num_speculative_tokens)
            needed = forecast.break_even_alpha
            head = (draft.label, f"{temperature:g}", entry.num_speculative_tokens)
            figures = (interval(entry.tau), interval(entry.utilisation), f"{forecast.predicted:.2f}x")
            rows.append((*head, *figures, "none" if needed is None else f"{needed:.3f}"))
    columns = ("draft", "T", "k", "acceptance length", "accepted / drafted", "predicted", "break-even acceptance rate")
    return Table(columns, rows, "By number of speculative tokens (k)")


def positions(drafts: Sequence[ScoredDraft]) -> Table:
    """Tabulate acceptance by position in the verification step, at the largest k; without baselines."""
    rows = [
        (draft.label, f"{temperature:g}", p.position, interval(p.conditional), interval(p.joint), f"{p.reached:.1f}")
        for draft, temperature in at_temperatures(primaries(drafts))
        for p in draft.row(temperature).by_k[-1].positions
    ]
    columns = ("draft", "T", "position", "accepted if reached", "accepted of all steps", "steps that reach it")
    return Table(columns, rows, "By position in the verification step")


def groups(drafts: Sequence[ScoredDraft]) -> Table | None:
    """Tabulate acceptance by every breakdown of the tokens; without baselines."""
    rows = []
    for draft, temperature in at_temperatures(primaries(drafts)):
        row, k = draft.row(temperature), draft.best_k(temperature)
        head = (draft.label, f"{temperature:g}")
        for part in row.bins:
            for group in part.bins:
                figures = (interval(group.alpha), interval(group.at(k).tau), k)
                rows.append((*head, part.by, group.bin, group.prompts, f"{group.alpha.tokens:g}", *figures))
    columns = ("draft", "T", "by", "group", "prompts", "tokens", "acceptance rate", "acceptance length", "k")
    return Table(columns, rows, "By group of tokens") if rows else None


def step_times(cards: Mapping[str, schema.Scorecard]) -> Table:
    rows = [
        (
            step_name if len(cards) == 1 else f"{name}: {step_name}",
            interval(step.p50_ms, 2),
            f"{step.p10_ms.value:.2f}",
            f"{step.p90_ms.value:.2f}",
            f"{step.median_ms / card.latency.target.median_ms:.3f}",
        )
        for name, card in cards.items()
        for step_name, step in card.latency.steps.items()
    ]
    [first, *_] = cards.values()
    columns = ("step", "median ms", "p10", "p90", "of a target step")
    context, repeats = first.latency.context_tokens, first.latency.repeats
    return Table(columns, rows, f"Step times: batch 1, {context} tokens of context, {repeats} repetitions")


def differences(cards: Mapping[str, schema.Scorecard]) -> Table | None:
    """Tabulate draft minus baseline on the same responses."""
    rows = []
    for name, card in cards.items():
        for row in card.differences:
            k = card.speedup_of(row.draft, row.temperature).best_k
            draft = row.draft if len(cards) == 1 else name
            head = (f"{draft} − {row.baseline}", f"{row.temperature:g}", interval(row.alpha), interval(row.at(k)), k)
            rows.append((*head, interval(row.greedy_match), f"{row.greedy_match_p:.2g}"))
    first, *others = cards
    for name in others:
        rows += between_runs(first, name, cards[first], cards[name])
    columns = ("difference", "T", "acceptance rate", "acceptance length", "k", "argmax agreement", "p over prompts")
    return Table(columns, rows, "Paired differences on the same prompts and responses") if rows else None


def on_stream(cards: Mapping[str, schema.Scorecard]) -> Table | None:
    """Tabulate online drafts and their static baselines on the requests that they served."""
    rows = [
        (
            row.source,
            row.draft if len(cards) == 1 else f"{name}: {row.draft}",
            f"{row.requests:,}",
            *map(interval, (row.alpha, row.alpha_gain, row.tau, row.tau_gain)),
        )
        for name, card in cards.items()
        for row in card.on_stream
    ]
    columns = ("source", "draft", "requests", "acceptance rate", "gain", "acceptance length", "gain")
    return Table(columns, rows, "On the last quarter of the stream's requests") if rows else None


def between_runs(first: str, name: str, baseline: schema.Scorecard, card: schema.Scorecard) -> list[tuple[object, ...]]:
    """Return rows of a run's draft minus that of the first, at temperatures at which both have the same responses."""
    rows, resampling = [], card.settings.resampling
    same_prompts = card.prompts.ids_sha256 == baseline.prompts.ids_sha256
    for temperature in card.temperatures if same_prompts else ():
        ids = {each.prompts.ids_at(temperature) for each in (card, baseline) if temperature in each.temperatures}
        if temperature not in baseline.temperatures or len(ids) > 1:
            continue
        ours, theirs = (each.row(each.primary, temperature).by_prompt for each in (card, baseline))
        k = card.speedup_of(card.primary, temperature).best_k
        lengths = "–"
        if k in baseline.latency.ks:
            of_ours, of_theirs = ((each.tokens, each.steps_at(k)) for each in (ours, theirs))
            lengths = interval(paired_ratio_difference(of_ours, of_theirs, resampling))
        rates, matches = (
            paired_ratio_difference((column(ours), ours.tokens), (column(theirs), theirs.tokens), resampling)
            for column in (lambda sums: sums.alpha, lambda sums: sums.greedy_match)
        )
        p_value = sign_flip_p(np.subtract(ours.greedy_match, theirs.greedy_match), resampling)
        head = (f"{name} − {first}", f"{temperature:g}")
        rows.append((*head, interval(rates), lengths, k, interval(matches), f"{p_value:.2g}"))
    return rows


def models(cards: Mapping[str, schema.Scorecard | schema.RecordedScorecard]) -> Table:
    named: dict[str, tuple[str, schema.ScoredModel]] = {}
    for name, card in cards.items():
        if isinstance(card, schema.Scorecard):
            named.setdefault(card.target.fingerprint, ("target", card.target))
        for model in card.drafts:
            named.setdefault(model.fingerprint, (model.draft if len(cards) == 1 else f"{name}: {model.draft}", model))
    rows = [
        (
            role,
            model.path,
            model.layers,
            model.hidden,
            f"{model.parameters:,}",
            "whole" if model.head_vocab_size is None else f"{model.head_vocab_size:,} tokens",
            ", ".join(filter(None, [model.dtype, f"{model.bits}-bit" if model.bits else None, model.placement])),
            model.fingerprint[:12],
        )
        for role, model in named.values()
    ]
    columns = ("model", "directory", "layers", "hidden", "parameters", "vocabulary", "dtype", "fingerprint")
    return Table(columns, rows, "Models")


def setup(card: schema.Scorecard | schema.RecordedScorecard) -> Table:
    settings, origin = card.settings, card.provenance
    if isinstance(card, schema.Scorecard):
        prompts = card.prompts
        tasks = ", ".join(
            f"{'no named task' if task.task is None else f'{task.task} version {task.version}'} ({task.prompts})"
            for task in prompts.tasks
        )
        inputs = [
            ("prompts", f"{prompts.scored} scored of {prompts.given}, {prompts.too_long} too long; tasks: {tasks}"),
            ("sampling", "; ".join(map(settings.sampling.words_at, card.temperatures))),
            ("max_new_tokens", card.settings.max_new_tokens),
        ]
    else:
        recording = card.recording
        inputs = [
            ("responses", f"{recording.path} ({recording.form}), {recording.tokens:,} tokens"),
            ("prompts", f"{recording.scored} scored of {recording.given}, {recording.unanswered} without a response"),
            ("target", recording.target_fingerprint or "unknown"),
        ]
    versions = [f"{name} {version}" for name, version in origin.versions.items() if version]
    return facts(
        [
            *inputs,
            ("seed", settings.seed),
            ("intervals", f"{settings.confidence:.0%}, {settings.intervals}, {settings.num_resamples} draws"),
            ("hardware", f"{card.machine}; dtype {settings.dtype}"),
            ("versions", ", ".join([f"Python {origin.python}", *versions])),
            ("commit", origin.git_commit or "unknown"),
            ("created", origin.created),
            ("command", " ".join(origin.argv)),
        ]
    )


def recorded_results(cards: Mapping[str, schema.RecordedScorecard]) -> Table:
    """Tabulate acceptance along recorded responses; without the target there are no speeds."""
    rows, coverages = [], []
    for name, card in cards.items():
        for row in card.acceptance:
            head = (name, f"{row.temperature:g}", row.rule, interval(row.accept_rate))
            for entry in row.by_k:
                figures = (entry.num_speculative_tokens, interval(entry.tau), interval(entry.utilisation))
                rows.append((*head, *figures))
                coverages.append(row.coverage)
    columns = ("draft", "T", "acceptance method", "acceptance rate", "k", "acceptance length", "accepted / drafted")
    return with_column(Table(columns, rows, "Results on recorded responses"), "vocabulary coverage", coverages)


def recorded_positions(cards: Mapping[str, schema.RecordedScorecard]) -> Table:
    rows = [
        (name, f"{row.temperature:g}", row.rule, p.position, interval(p.conditional), interval(p.joint))
        for name, card in cards.items()
        for row in card.acceptance
        for p in row.by_k[-1].positions
    ]
    columns = ("draft", "T", "acceptance method", "position", "accepted if reached", "accepted of all steps")
    return Table(columns, rows, "By position in the verification step")


def scorecard_page(card: schema.Scorecard | schema.RecordedScorecard) -> TableSection:
    """Return the result, models and acceptance by k on one screen, then the details."""
    warnings = [f"WARNING: {text}" for text in card.warnings]
    if isinstance(card, schema.RecordedScorecard):
        named = {"draft": card}
        shown, details = [*served_line(card), recorded_results(named), models(named)], [recorded_positions(named)]
    else:
        drafts, named = scored_drafts({card.primary: card}), {card.primary: card}
        shown = [decoding(drafts), models(named), lengths_by_k(card)]
        details = [
            results(drafts),
            measured(drafts),
            differences(named),
            on_stream(named),
            by_k(drafts),
            positions(drafts),
            groups(drafts),
            step_times(named),
        ]
    page = TableSection("Details", [NOTE, *(table for table in details if table is not None), setup(card)])
    return TableSection("Scorecard", [*warnings, *shown, page])


def served_line(card: schema.RecordedScorecard) -> list[str]:
    """Name the model of a server that generated the responses, and the target."""
    served = card.recording.served
    if served is None:
        return []
    where = f" at {served.url}" if served.url else ""
    target = served.target or f"the target {str(card.recording.target_fingerprint)[:12]}"
    return [f"Responses of the served model {served.name}{where}; prompts rendered as for {target}."]


def summary(card: schema.Scorecard | schema.RecordedScorecard) -> str:
    """Format the result at the first temperature, and the first warning."""
    is_recorded = isinstance(card, schema.RecordedScorecard)
    table = recorded_results({"draft": card}) if is_recorded else decoding(scored_drafts({"draft": card}), 1)
    count = len(card.warnings)
    warnings = [f"WARNING{f' 1 of {count}' if count > 1 else ''}: {text}" for text in card.warnings[:1]]
    served = served_line(card) if is_recorded else []
    return "\n".join([terminal(table), *served, *warnings])


def find_warnings(card: schema.Scorecard) -> list[str]:
    warnings, exact = [], card.settings.dtype == "float32"
    for live in card.lives:
        if not live.agreement.exact:
            agreement = live.agreement
            what = "a fault, report it" if exact else f"rounding in {card.settings.dtype}"
            p_value = "" if agreement.p_value is None else f", p = {agreement.p_value:.2g}"
            warnings.append(
                f"T={live.temperature:g}: decoding and replay differ ({what}): {agreement.same_text} of {live.prompts} "
                f"texts equal the target's, {agreement.loop.steps:g} steps decoded, {agreement.replay.steps:g} "
                f"replayed{p_value}."
            )
        took_ms, step_ms = live.plain.ms_per_token, card.latency.target.median_ms
        if took_ms > DISTURBED * step_ms + LOOP_MS:
            warnings.append(
                f"T={live.temperature:g}: the machine was busy, measure again: {took_ms:.1f} ms/token in plain "
                f"decoding, {step_ms:.1f} ms in a timed step."
            )
        if exact and live.temperature == 0:
            warnings += [
                f"{way.way}: {live.prompts - way.same_text} of {live.prompts} texts differ from the target's; "
                "`widedraft verify` shows near ties."
                for way in live.ways
                if way.same_text < live.prompts
            ]
    changed = sum(row.target_changed_tokens for row in card.acceptance)
    if changed and exact:
        warnings.append(f"The target's argmax differs from its recorded response at {changed} tokens: near ties.")
    if not card.latency.settled:
        repeats = card.latency.warm_up_repeats
        warnings.append(f"Step times had not settled after {repeats} warm-up repetitions: measure again.")
    least = least_units(card.settings.confidence)
    if card.prompts.scored < least:
        warnings.append(f"{card.prompts.scored} scored prompts give no interval; at least {least} do.")
    return warnings
