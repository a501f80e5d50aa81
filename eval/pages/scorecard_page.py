"""scorecard.md: the verdict first, then the tables behind it. Pure, from the record."""

from architectures.pages.blocks import Absent, Caution, Facts, Section, Sentence, Table, Verdict
from architectures.pages.counts import number_of
from eval.pages.acceptance_page import acceptance_section
from eval.pages.tables import with_head_size
from eval.pages.verdict import (
    agreement_sentence,
    alpha_words,
    prediction,
    speedup_words,
    way_words,
    with_interval,
)
from eval.policies.policy_words import POLICY_COLUMNS, engine_words, policy_words
from eval.predictions.engine_settings import engine_settings, setting_words
from eval.records.origin import TaskRow
from eval.records.scorecard import Scorecard
from eval.records.scorecard_speeds import Live, PolicyRow, SpeedupRow, WayRow
from eval.records.steps import StepTime
from eval.records.values import HasInterval

FIGURES = Sentence("What each figure means: docs/scoring.md of widedraft. All numbers: scorecard.json.")


def scorecard_page(scorecard: Scorecard) -> Section:
    """scorecard.md: the verdict first, then the tables behind it."""
    blocks = [
        Verdict(scorecard.verdict),
        *map(Caution, scorecard.warnings),
        FIGURES,
        models_section(scorecard),
        acceptance_section(scorecard),
        speed_section(scorecard),
        *policies_section(scorecard),
        *stopping_section(scorecard),
        *live_sections(scorecard),
        method_section(scorecard),
    ]
    return Section(f"Scorecard of {scorecard.drafts[-1].path}", blocks)


def models_section(scorecard: Scorecard) -> Section:
    models = {"target": scorecard.target, **{draft.draft: draft for draft in scorecard.drafts}}
    cells = [
        (name, model.path, model.layers, model.hidden, f"{model.parameters:,}", model.fingerprint[:12])
        for name, model in models.items()
    ]
    columns = ("model", "folder", "layers", "hidden", "parameters", "fingerprint")
    table = with_head_size(Table(columns, cells), [model.head_vocab_size for model in models.values()])
    return Section("Models", [table])


def speed_section(scorecard: Scorecard) -> Section:
    """Step times and what they promise."""
    latency = scorecard.latency
    steps = [("target, 1 token", latency.target)]
    steps += [(f"target, {row.lookahead + 1} tokens (verify)", row) for row in latency.verify]
    for row in latency.drafts:
        steps += [(f"{row.draft}, 1 token", row.one_token), (f"{row.draft}, 2 tokens", row.two_tokens)]
    cells = [(name, step_words(step), f"{step.p10_ms.value:.2f}", f"{step.p90_ms.value:.2f}") for name, step in steps]
    title = (
        f"Step times at batch 1, {latency.context_tokens} tokens of context, {number_of(latency.repeats, 'repetition')}"
    )
    ours = [row for row in scorecard.speedup if row.draft == scorecard.primary]
    forecasts = [forecast_section(row, prediction(scorecard, row)) for row in ours]
    return Section(title, [Table(("step", "median ms", "p10", "p90"), cells), *forecasts])


def forecast_section(row: SpeedupRow, predicted: str) -> Section:
    """Predicted speed-up by lookahead at one temperature."""
    title = (
        f"Predicted speed-up of {row.draft} at temperature {row.temperature:g}: {predicted} at lookahead "
        f"{row.best_lookahead}"
    )
    cells = [
        (
            entry.lookahead,
            f"{entry.predicted:.3f}",
            f"{entry.iid:.3f}",
            f"{entry.leviathan:.3f}",
            speedup_words(entry.memory_bound),
            alpha_words(entry.break_even_alpha),
        )
        for entry in row.lookahead
    ]
    columns = (
        "lookahead",
        "predicted",
        "independent accepts",
        "Leviathan's formula",
        "memory-bound",
        "break-even alpha",
    )
    return Section(title, [Table(columns, cells)])


def policies_section(scorecard: Scorecard) -> list[Section]:
    """When the text proposes beside the draft, and what is predicted of that; nothing where none was tuned."""
    rows = scorecard.policies
    if not rows:
        return []
    cells = [
        (f"{row.temperature:g}", *policy_words(row.lookahead, row.policy), *promised_words(scorecard, row))
        for row in rows
    ]
    columns = ("temperature", *POLICY_COLUMNS, "predicted", "the draft alone", "n-gram lookup alone")
    engines = [
        Sentence(
            f"Nearest settings of engines at temperature {row.temperature:g}, which were not measured: "
            f"{engine_words(row.lookahead, row.policy)}."
        )
        for row in rows
    ]
    title = f"The text beside the draft, tuned on {rows[0].tuned_on} answers that nothing is scored on"
    return [Section(title, [Table(columns, cells), *engines])]


def stopping_section(scorecard: Scorecard) -> list[Section]:
    """What the draft alone promises where its own doubt ends rounds, by each rule; nothing where none was tuned."""
    rows = scorecard.stopping
    if not rows:
        return []
    cells = []
    for row in rows:
        alone = scorecard.speedup_of(scorecard.primary, row.temperature)
        cells.append(
            (
                f"{row.temperature:g}",
                row.rule,
                f"{row.least:g}" if row.least else "never",
                row.lookahead,
                f"{row.predicted:.2f}x",
                f"{row.tau:.2f}",
                f"{alone.predicted:.2f}x at {alone.best_lookahead}",
            )
        )
    columns = ("temperature", "a round ends", "below", "lookahead at most", "predicted", "tau", "rounds of one length")
    told = [
        Sentence(f"{engine} is to draft with {setting_words(engine, drafting)}.")
        for engine, drafting in engine_settings(scorecard).items()
    ]
    title = f"The draft alone, ending rounds where it doubts; thresholds tuned on {rows[0].tuned_on} other answers"
    return [Section(title, [Table(columns, cells), *told])]


def promised_words(scorecard: Scorecard, row: PolicyRow) -> tuple[str, str, str]:
    """The speed-up that a policy promises on the scored answers, and those of the draft and of the text alone."""
    alone, lookup = scorecard.speedup_of(scorecard.primary, row.temperature), row.lookup
    return (
        f"{row.predicted:.2f}x",
        f"{alone.predicted:.2f}x at {alone.best_lookahead}",
        f"{lookup.predicted:.2f}x at {lookup.lookahead}",
    )


def live_sections(scorecard: Scorecard) -> list[Section]:
    """What decoding with the draft was measured to do, at each temperature."""
    if not scorecard.lives:
        told = "Not run: this scorecard is from before sampled texts were decoded live, and temperature 0 not scored."
        return [Section("Live decoding", [Absent(told)])]
    return [live_section(scorecard, live) for live in scorecard.lives]


def live_section(scorecard: Scorecard, live: Live) -> Section:
    """The same at one temperature."""
    spent = [("target alone", live.plain), (f"with {live.draft}", live.speculative)]
    spent += [(way_words(row), row.spent) for row in live.ways]
    cells = [
        (name, time.tokens, f"{time.prefill_s:.2f}", f"{time.decode_s:.2f}", f"{time.ms_per_token:.2f}")
        for name, time in spent
    ]
    whole, decoding = (with_interval(speedup, times=True) for speedup in (live.speedup, live.decoding_speedup))
    told = [
        (
            f"Speed-up {whole} with the reading of the prompt, {decoding} without it; predicted without it: "
            f"{prediction(scorecard, scorecard.speedup_of(live.draft, live.temperature))}."
        ),
        *(way_sentence(row, live.prompts) for row in live.ways),
        *over_lookup_sentences(live),
        agreement_sentence(live),
    ]
    if live is scorecard.live:
        told.append("Every round of the draft: rounds.jsonl, whose figures `widedraft rounds` prints.")
    how = scorecard.settings.sampling.words_at(live.temperature)
    title = f"Live decoding of {live.prompts} prompts at batch 1, {how}, lookahead {live.lookahead}"
    columns = ("decoding", "tokens", "prefill s", "decode s", "decode ms per token")
    return Section(title, [Table(columns, cells), *map(Sentence, told)])


def way_sentence(row: WayRow, prompts: int) -> str:
    whole, decoding = (with_interval(speedup, times=True) for speedup in (row.speedup, row.decoding_speedup))
    return (
        f"{way_words(row)[0].upper()}{way_words(row)[1:]}: {whole} with the reading of the prompt, {decoding} without "
        f"it; tau {row.tau:.2f}, {row.looked_up_rounds} of {row.rounds} rounds looked up, "
        f"{row.plain_rounds} without a proposal, {row.same_text} of {prompts} texts those of plain decoding."
    )


def over_lookup_sentences(live: Live) -> list[str]:
    """How many times as fast as looking up alone each way with a draft is; nothing in older scorecards."""
    rows = live.over_lookup
    told = ", ".join(f"{row.way} {with_interval(row.speedup, times=True)}" for row in rows)
    return [f"Over n-gram lookup alone, in the same turns: {told}."] if rows else []


def method_section(scorecard: Scorecard) -> Section:
    """Where the numbers come from."""
    prompts, settings, origin = scorecard.prompts, scorecard.settings, scorecard.provenance
    facts = [
        (
            "Prompts",
            (
                f"{prompts.given} given, {prompts.taken} taken, {prompts.too_long} of them longer than "
                f"{settings.max_prompt_len} tokens and left out, {prompts.scored} scored."
            ),
        ),
        ("Tasks", f"{', '.join(map(task_words, prompts.tasks))}."),
        (
            "Answers",
            (
                f"at most {settings.max_new_tokens} tokens, written by the target in batches of "
                f"{settings.batch_size}; seed {settings.seed}."
            ),
        ),
        ("Sampling", f"{'; '.join(map(settings.sampling.words_at, scorecard.temperatures))}."),
        (
            "Intervals",
            f"{100 * settings.confidence:g} % {settings.intervals} over prompts, {settings.num_resamples} resamples.",
        ),
        ("Machine", f"{scorecard.machine}; number type {settings.dtype}."),
        ("Versions", f"{origin.words}."),
    ]
    return Section("How it was measured", [Facts(facts)])


def task_words(task: TaskRow) -> str:
    """A task with its version, how many prompts of it were taken, and the hash of what they ask."""
    name = "prompts of no named task" if task.task is None else f"{task.task} version {task.version}"
    return f"{name}: {task.prompts} taken, sha256 {task.sha256[:12]}"


def step_words(step: StepTime) -> str:
    """A step's median with its interval."""
    return with_interval_ms(step.p50_ms)


def with_interval_ms(estimate: HasInterval) -> str:
    """A time with its interval."""
    if estimate.interval is None:
        return f"{estimate.value:.2f}"
    low, high = estimate.interval
    return f"{estimate.value:.2f} [{low:.2f}, {high:.2f}]"
