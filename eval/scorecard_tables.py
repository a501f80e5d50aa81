"""Tables of scorecards, shared by scorecard.md, the summary at the end of a run, and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from architectures.console import Table, TableSection, facts, terminal
from eval.intervals import Estimate, least_units, paired_ratio_difference, sign_flip_p
from eval.scorecard_schema import AcceptanceRow, Live, Ratio, RecordedScorecard, Scorecard, ScoredModel, StepTime
from eval.speedup import predicted_interval

NOTE = (
    "Acceptance rate: expected acceptance of a drafted token. Acceptance length: tokens per verification step, bonus "
    "token included, at k speculative tokens. Speedups: over plain decoding of the target at batch 1; predicted ones "
    "exclude prefill. Intervals are in brackets."
)

# Step times above these limits cause the warnings below: threads that wait for each other, or for cores used by other
# programs, slow every step by factors that do not depend on the models.
DISTURBED, LOOP_MS = 1.2, 1.0  # a token of plain decoding relative to its timed step, plus milliseconds of Python


@dataclass(frozen=True)
class ScoredDraft:
    """A draft of a scorecard; `label` is its name among all drafts shown."""

    label: str
    card: Scorecard
    draft: str

    @property
    def is_primary(self) -> bool:
        return self.draft == self.card.primary

    def row(self, temperature: float) -> AcceptanceRow:
        return self.card.row(self.draft, temperature)

    def best_k(self, temperature: float) -> int:
        return self.card.speedup_of(self.draft, temperature).best_k

    def live(self, temperature: float) -> Live | None:
        """Return wall-clock decoding with it; baselines have none."""
        lives = self.card.lives if self.is_primary else []
        return next((live for live in lives if live.temperature == temperature), None)


def scored_drafts(cards: Mapping[str, Scorecard]) -> list[ScoredDraft]:
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


def interval(estimate: Estimate | Ratio | None, digits: int = 3, unit: str = "") -> str:
    """Format as 0.512 [0.480, 0.544]; a dash if nothing was counted."""
    return "–" if estimate is None else with_bounds(estimate.value, estimate.interval, digits, unit)


def with_bounds(
    value: float | None, bounds: tuple[float | None, float | None] | None, digits: int = 3, unit: str = ""
) -> str:
    if value is None:
        return "–"
    shown = ["–" if bound is None else f"{bound:.{digits}f}" for bound in bounds or ()]
    return f"{value:.{digits}f}{unit}" + (f" [{', '.join(shown)}]" if shown else "")


def times(estimate: Estimate | Ratio | None) -> str:
    """Format a speedup: 1.12x [1.05, 1.20]."""
    return interval(estimate, 2, "x")


def predicted(draft: ScoredDraft, temperature: float) -> str:
    """Format the predicted speedup at the best k, with its interval from prompts and step times."""
    row, forecast = draft.row(temperature), draft.card.speedup_of(draft.draft, temperature)
    bounds = predicted_interval(row, forecast.best_k, draft.card.latency, draft.card.settings.resampling)
    return with_bounds(forecast.predicted, bounds, 2, "x")


def results(drafts: Sequence[ScoredDraft], *, all_methods: bool = True) -> Table:
    """Tabulate acceptance and speedups of every draft at every temperature, by all methods or the leading one."""
    rows, coverages = [], []
    for draft, temperature in at_temperatures(drafts):
        row, k, live = draft.row(temperature), draft.best_k(temperature), draft.live(temperature)
        for method in (row, *(row.other_rules if all_methods else ())):
            length = next(entry.tau for entry in method.by_k if entry.num_speculative_tokens == k)
            speedups = (predicted(draft, temperature), times(live and live.speedup)) if method is row else ("–", "–")
            cells = (draft.label, f"{temperature:g}", method.rule, interval(method.alpha), interval(length), k)
            rows.append((*cells, *speedups))
            coverages.append(row.coverage)
    columns = ("draft", "T", "acceptance method", "acceptance rate", "acceptance length", "k", "predicted", "measured")
    return with_column(Table(columns, rows, "Results"), "vocabulary coverage", coverages)


def with_column(table: Table, name: str, estimates: Sequence[Estimate | Ratio | None]) -> Table:
    if not any(estimates):
        return table
    rows = [(*row, interval(estimate)) for row, estimate in zip(table.rows, estimates, strict=True)]
    return Table((*table.columns, name), rows, table.title)


def measured(drafts: Sequence[ScoredDraft]) -> Table | None:
    """Tabulate wall-clock decoding in interleaved runs: plain, with the draft, with prompt lookup."""
    rows = []
    for draft, temperature in at_temperatures(drafts):
        live = draft.live(temperature)
        if live is None:
            continue
        head, whole = (draft.label, f"{temperature:g}"), f"{live.agreement.same_text} of {live.prompts}"
        over = {row.way: times(row.speedup) for row in live.over_lookup}
        spent = live.speculative
        rows += [
            (*head, "plain", "–", "1x", "1x", f"{live.plain.ms_per_token:.2f}", "–", "–", "–", "–"),
            (
                *head,
                "draft",
                live.num_speculative_tokens,
                times(live.speedup),
                times(live.decoding_speedup),
                f"{spent.ms_per_token:.2f}",
                f"{spent.draft_s / spent.decode_s:.0%}",
                f"{spent.verify_s / spent.decode_s:.0%}",
                over.get("draft", "–"),
                whole,
            ),
        ]
        rows += [
            (
                *head,
                way.way,
                way.num_speculative_tokens,
                times(way.speedup),
                times(way.decoding_speedup),
                f"{way.spent.ms_per_token:.2f}",
                "–",
                "–",
                over.get(way.way, "–"),
                f"{way.same_text} of {live.prompts}",
            )
            for way in live.ways
        ]
    columns = (
        "draft",
        "T",
        "decoding",
        "k",
        "speedup",
        "without prefill",
        "ms/token",
        "time in draft",
        "in verification",
        "over prompt lookup",
        "same text as plain",
    )
    return Table(columns, rows, "Wall-clock decoding, interleaved runs") if rows else None


def by_k(drafts: Sequence[ScoredDraft]) -> Table:
    rows = []
    for draft, temperature in at_temperatures(drafts):
        forecasts = draft.card.speedup_of(draft.draft, temperature)
        for entry in draft.row(temperature).by_k:
            forecast = forecasts.at(entry.num_speculative_tokens)
            needed = forecast.break_even_alpha
            rows.append(
                (
                    draft.label,
                    f"{temperature:g}",
                    entry.num_speculative_tokens,
                    interval(entry.tau),
                    interval(entry.utilisation),
                    f"{forecast.predicted:.2f}x",
                    "none" if needed is None else f"{needed:.3f}",
                )
            )
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
    """Tabulate acceptance by task, category, output position and entropy of the target; without baselines."""
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


def step_times(cards: Mapping[str, Scorecard]) -> Table:
    rows: list[tuple[object, ...]] = []
    for name, card in cards.items():
        latency = card.latency
        steps: list[tuple[str, StepTime]] = [("target, 1 token", latency.target)]
        steps += [(f"target, {step.num_speculative_tokens + 1} tokens (verification)", step) for step in latency.verify]
        for draft in latency.drafts:
            steps += [(f"{draft.draft}, 1 token", draft.one_token), (f"{draft.draft}, 2 tokens", draft.two_tokens)]
        rows += [
            (
                *([name] if len(cards) > 1 else []),
                step_name,
                interval(step.p50_ms, 2),
                f"{step.p10_ms.value:.2f}",
                f"{step.p90_ms.value:.2f}",
                f"{step.median_ms / latency.target.median_ms:.3f}",
            )
            for step_name, step in steps
        ]
    [first, *_] = cards.values()
    columns = (*(["run"] if len(cards) > 1 else []), "step", "median ms", "p10", "p90", "of a target step")
    title = (
        f"Step times: batch 1, {first.latency.context_tokens} tokens of context, {first.latency.repeats} repetitions"
    )
    return Table(columns, rows, title)


def differences(cards: Mapping[str, Scorecard]) -> Table | None:
    """Tabulate draft minus baseline on the same responses, prompts resampled together."""
    rows = []
    for name, card in cards.items():
        for row in card.differences:
            k = card.speedup_of(row.draft, row.temperature).best_k
            draft = row.draft if len(cards) == 1 else name
            rows.append(
                (
                    f"{draft} − {row.baseline}",
                    f"{row.temperature:g}",
                    interval(row.alpha),
                    interval(row.at(k)),
                    k,
                    interval(row.greedy_match),
                    f"{row.greedy_match_p:.2g}",
                )
            )
    first, *others = cards
    for name in others:
        rows += between_runs(first, name, cards[first], cards[name])
    columns = ("difference", "T", "acceptance rate", "acceptance length", "k", "argmax agreement", "p over prompts")
    return Table(columns, rows, "Paired differences on the same prompts and responses") if rows else None


def between_runs(first: str, name: str, baseline: Scorecard, card: Scorecard) -> list[tuple[object, ...]]:
    """Return rows of a run's draft minus that of the first, at temperatures at which both have the same responses."""
    rows, resampling = [], card.settings.resampling
    for temperature in card.temperatures:
        same_prompts = card.prompts.ids_sha256 == baseline.prompts.ids_sha256
        if temperature not in baseline.temperatures or not same_prompts:
            continue
        ours, theirs = (each.row(each.primary, temperature).by_prompt for each in (card, baseline))
        if ours is None or theirs is None or card.prompts.ids_at(temperature) != baseline.prompts.ids_at(temperature):
            continue
        k = card.speedup_of(card.primary, temperature).best_k
        lengths = "–"
        if k in baseline.latency.ks:
            of_ours, of_theirs = ((each.tokens, each.rounds_at(k)) for each in (ours, theirs))
            lengths = interval(paired_ratio_difference(of_ours, of_theirs, resampling))
        rates, matches = (
            paired_ratio_difference((column(ours), ours.tokens), (column(theirs), theirs.tokens), resampling)
            for column in (lambda sums: sums.alpha, lambda sums: sums.greedy_match)
        )
        p_value = sign_flip_p(np.subtract(ours.greedy_match, theirs.greedy_match), resampling)
        head = (f"{name} − {first}", f"{temperature:g}")
        rows.append((*head, interval(rates), lengths, k, interval(matches), f"{p_value:.2g}"))
    return rows


def models(cards: Mapping[str, Scorecard | RecordedScorecard]) -> Table:
    named: dict[str, tuple[str, ScoredModel]] = {}
    for name, card in cards.items():
        if isinstance(card, Scorecard):
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
            ", ".join(
                [
                    model.dtype,
                    *([f"{model.bits}-bit"] if model.bits else []),
                    *([model.placement] if model.placement else []),
                ]
            ),
            model.fingerprint[:12],
        )
        for role, model in named.values()
    ]
    columns = ("model", "directory", "layers", "hidden", "parameters", "vocabulary", "dtype", "fingerprint")
    return Table(columns, rows, "Models")


def setup(card: Scorecard | RecordedScorecard) -> Table:
    settings, origin = card.settings, card.provenance
    if isinstance(card, Scorecard):
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
            ("intervals", f"{settings.confidence:.0%}, {settings.intervals}, {settings.num_resamples} resamples"),
            ("hardware", f"{card.machine}; dtype {settings.dtype}"),
            ("versions", ", ".join([f"Python {origin.python}", *versions])),
            ("commit", origin.git_commit or "unknown"),
            ("created", origin.created),
            ("command", " ".join(origin.argv)),
        ]
    )


def recorded_results(cards: Mapping[str, RecordedScorecard]) -> Table:
    """Tabulate acceptance along recorded responses; without the target there are no speeds."""
    rows, coverages = [], []
    for name, card in cards.items():
        for row in card.acceptance:
            for entry in row.by_k:
                cells = (
                    name,
                    f"{row.temperature:g}",
                    row.rule,
                    interval(row.accept_rate),
                    entry.num_speculative_tokens,
                )
                rows.append((*cells, interval(entry.tau), interval(entry.utilisation)))
                coverages.append(row.coverage)
    columns = ("draft", "T", "acceptance method", "acceptance rate", "k", "acceptance length", "accepted / drafted")
    return with_column(Table(columns, rows, "Results on recorded responses"), "vocabulary coverage", coverages)


def recorded_positions(cards: Mapping[str, RecordedScorecard]) -> Table:
    rows = [
        (name, f"{row.temperature:g}", row.rule, p.position, interval(p.conditional), interval(p.joint))
        for name, card in cards.items()
        for row in card.acceptance
        for p in row.by_k[-1].positions
    ]
    columns = ("draft", "T", "acceptance method", "position", "accepted if reached", "accepted of all steps")
    return Table(columns, rows, "By position in the verification step")


def scorecard_page(card: Scorecard | RecordedScorecard) -> TableSection:
    warnings = [f"WARNING: {text}" for text in card.warnings]
    if isinstance(card, RecordedScorecard):
        named = {"draft": card}
        tables = [recorded_results(named), recorded_positions(named), models(named)]
        return TableSection(
            "Scorecard on recorded responses", [*warnings, *tables, TableSection("Setup", [setup(card)])]
        )
    drafts, named = scored_drafts({card.primary: card}), {card.primary: card}
    tables = [
        results(drafts),
        measured(drafts),
        differences(named),
        by_k(drafts),
        positions(drafts),
        groups(drafts),
        step_times(named),
        models(named),
    ]
    shown = [table for table in tables if table is not None]
    return TableSection("Scorecard", [*warnings, NOTE, *shown, TableSection("Setup", [setup(card)])])


def summary(card: Scorecard | RecordedScorecard) -> str:
    warnings = [f"WARNING: {text}" for text in card.warnings]
    if isinstance(card, RecordedScorecard):
        return terminal(recorded_results({"draft": card}), *warnings)
    drafts = scored_drafts({card.primary: card})
    tables = [results(drafts, all_methods=False), measured(drafts)]
    return terminal(*[table for table in tables if table is not None], *warnings)


def find_warnings(card: Scorecard) -> list[str]:
    warnings, exact = [], card.settings.dtype == "float32"
    for live in card.lives:
        if not live.agreement.exact:
            agreement = live.agreement
            what = (
                "a fault: do not trust this scorecard, and report it" if exact else f"rounding in {card.settings.dtype}"
            )
            p_value = "" if agreement.p_value is None else f", p = {agreement.p_value:.2g}"
            warnings.append(
                f"T={live.temperature:g}: decoding and replay differ ({what}): {agreement.same_text} of {live.prompts} "
                f"texts are those of plain decoding; verification steps {agreement.loop.rounds:g} decoded, "
                f"{agreement.replay.rounds:g} replayed; accepted {agreement.loop.accepted:g} decoded, "
                f"{agreement.replay.accepted:g} replayed{p_value}."
            )
        took_ms, step_ms = live.plain.ms_per_token, card.latency.target.median_ms
        if took_ms > DISTURBED * step_ms + LOOP_MS:
            warnings.append(
                f"T={live.temperature:g}: plain decoding took {took_ms:.1f} ms/token, its timed step {step_ms:.1f} ms: "
                "the machine was busy. Measure again when it is idle."
            )
        if exact and live.temperature == 0:
            warnings += [
                f"{way.way}: {live.prompts - way.same_text} of {live.prompts} texts differ from plain decoding. "
                "`widedraft verify` shows whether they are near ties."
                for way in live.ways
                if way.same_text < live.prompts
            ]
    changed = sum(row.target_changed_tokens for row in card.acceptance)
    if changed and exact:
        warnings.append(f"The target's argmax differs from its recorded response at {changed} tokens: near ties.")
    if not card.latency.settled:
        repeats = card.latency.warm_up_repeats
        warnings.append(f"Step times had not settled after {repeats} warm-up repetitions. Measure again when idle.")
    least = least_units(card.settings.confidence)
    if card.prompts.scored < least:
        warnings.append(f"{card.prompts.scored} scored prompts give no interval; at least {least} do.")
    return warnings
