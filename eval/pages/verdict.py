"""What a scorecard says in words: verdict, warnings, and the headline a run ends with. Pure text from the record."""

from collections.abc import Iterable
from typing import Any

from eval.acceptance.intervals import least_units
from eval.acceptance.ranking import predicted_interval

Record = dict[str, Any]

DISTURBED = 1.2  # of its timed step; a token of the target alone that takes longer met other work (quiet: up to 1.04)
LOOP_MS = 1.0  # a token, of what is no step; of tiny models that is much
LOOKUP, POLICY = "n-gram lookup", "draft with its policy"  # ways of live decoding beside the draft alone


def verdict(scorecard: Record) -> str:
    """One sentence: is decoding faster with the last draft, and by how much."""
    live = scorecard["live"]
    where = f"on this {machine(scorecard)}"
    if live is None:
        forecast = main_forecast(scorecard)
        return (
            f"Not measured: the live loop decodes greedily and temperature 0 was not scored. Predicted at batch 1 and "
            f"temperature {forecast['temperature']:g}: {prediction(scorecard, forecast)} at lookahead "
            f"{forecast['best_lookahead']}, {where}."
        )
    main = main_way(live)
    how = f"lookahead {live['lookahead']}" if main is None else way_words(main)
    return measured_verdict(scorecard, live["speedup"] if main is None else main["speedup"], f"{how}, {where}")


def measured_verdict(scorecard: Record, speedup: Record, how: str) -> str:
    """What a measured speed-up decides."""
    speed, interval = with_interval(speedup, times=True), speedup["interval"]
    setting = f"at batch 1, temperature 0, {how}"
    if interval is None:
        return f"Unclear: {speed} the speed of the target alone {setting}; {too_few_live(scorecard)}."
    low, high = interval
    if low > 1:
        return f"{speed} faster {setting}."
    if high < 1:
        return f"Not faster here: {speed} the speed of the target alone {setting}."
    return f"No difference shown: {speed} the speed of the target alone {setting}; the interval holds 1."


def main_way(live: Record | None) -> Record | None:
    """The way the verdict is about: the draft with its policy; None for the draft alone, where none was tuned."""
    return next((row for row in (live or {}).get("ways", []) if row["way"] == POLICY), None)


def way_words(row: Record) -> str:
    """A way of live decoding, with how many tokens are proposed."""
    return f"{row['way']}, lookahead {row['lookahead']}"


def decision(speedup: Record, *, too_few: str) -> str:
    """What the interval of a measured speed-up decides: which way, and whether by how much.

    Args:
        speedup: With its interval.
        too_few: Why there is none, where there is none.
    """
    if speedup["interval"] is None:
        return f"Not decided, because {too_few}"
    low, high = speedup["interval"]
    if low <= 1 <= high:
        return "Not decided, because the interval holds 1"
    which_way = "Faster" if low > 1 else "Slower"
    if high - low > abs(speedup["value"] - 1):
        return f"{which_way}, but by how much is not decided, because the interval is wider than the effect"
    return which_way


def too_few_words(count: int, one: str, several: str, least: int) -> str:
    """That so few units give no interval, and how many would."""
    found = f"one {one} gives" if count == 1 else f"{count} {several} give"
    return f"{found} no interval: {least} are the least"


def too_few_live(scorecard: Record) -> str:
    """Why a live measurement has no interval."""
    least = least_units(scorecard["settings"]["confidence"])
    return too_few_words(scorecard["live"]["prompts"], "prompt", "prompts", least)


def find_warnings(scorecard: Record) -> list[str]:
    """What a reader must know before believing the numbers."""
    warnings = []
    is_exact_dtype = scorecard["settings"]["dtype"] == "float32"
    live = scorecard["live"]
    if live is not None and not live["agreement"]["exact"]:
        found = agreement_sentence(live)
        warnings.append(
            f"LOOP AND REPLAY DISAGREE IN FLOAT32, WHERE THEY MUST NOT: {found} Do not trust this scorecard; report it."
            if is_exact_dtype
            else f"Loop and replay differ, as rounding in {scorecard['settings']['dtype']} makes them: {found}"
        )
    changed = sum(row["target_changed_tokens"] for row in scorecard["acceptance"])
    if changed and is_exact_dtype:
        warnings.append(
            f"In float32 the target, reading its own answers, would choose another token at {changed} places (summed "
            "over drafts): near-ties, or answers that were not written by this target."
        )
    if not scorecard["latency"]["settled"]:
        warnings.append(
            f"Step times had not settled after {scorecard['latency']['warm_up_repeats']} warm-up repetitions: the "
            "machine was doing other work. Measure again when it is quiet."
        )
    if live is not None:
        warnings += disturbed_words(live, scorecard["latency"]["target"])
    if live is not None and is_exact_dtype:
        warnings += [
            f"IN FLOAT32 {live['prompts'] - row['same_text']} TEXTS OF {row['way'].upper()} ARE NOT THOSE OF PLAIN "
            "DECODING: near-ties, or a fault. `widedraft verify` tells which."
            for row in live.get("ways", [])
            if row["same_text"] < live["prompts"]
        ]
    least = least_units(scorecard["settings"]["confidence"])
    if scorecard["prompts"]["scored"] < least:
        few = too_few_words(scorecard["prompts"]["scored"], "scored prompt", "scored prompts", least)
        warnings.append(f"{few[0].upper()}{few[1:]}.")
    return warnings


def disturbed_words(live: Record, step: Record) -> list[str]:
    """That the target alone took much longer over a token than its own step was timed: other work met live decoding."""
    took, timed = live["plain"]["ms_per_token"], step["median_ms"]
    if took <= DISTURBED * timed + LOOP_MS:
        return []
    told = (
        f"The target alone took {took:.1f} ms a token in live decoding, and its step {timed:.1f} ms when that was "
        "timed: the machine did other work meanwhile, and measured speeds are worth little. Measure again when it is "
        "quiet: delete the folder of this scorecard and run the command again."
    )
    return [told]


def headline(scorecard: Record) -> str:
    """The few lines that answer: is it faster, what did distillation change, what does a token cost."""
    latency, forecast = draft_latency(scorecard, primary(scorecard)), main_forecast(scorecard)
    break_even = alpha_words(forecast["break_even_alpha"])
    subject = "speed-up" if main_way(scorecard["live"]) is None else "the draft alone"
    return "\n".join(
        [
            scorecard["verdict"],
            *(f"WARNING: {text}" for text in scorecard["warnings"]),
            *(acceptance_line(scorecard, temperature) for temperature in temperatures(scorecard)),
            (
                f"milliseconds per token: draft {latency['one_token']['median_ms']:.2f}, target "
                f"{scorecard['latency']['target']['median_ms']:.2f} (cost ratio {latency['cost_ratio']:.3f})"
            ),
            f"{subject}: predicted {prediction(scorecard, forecast)}{measured_words(scorecard['live'])}",
            f"best lookahead {forecast['best_lookahead']}, break-even alpha there: {break_even}",
            *lookup_lines(scorecard["live"]),
        ]
    )


def acceptance_line(scorecard: Record, temperature: float) -> str:
    """Alpha of every draft at one temperature, and the paired gains of the last one."""
    rows = rows_at(scorecard["acceptance"], temperature)
    line = ", ".join(f"{row['draft']} {with_interval(row['alpha'])}" for row in rows)
    gains = [
        f"{with_interval(row['alpha'])} over {row['baseline']}"
        for row in rows_at(scorecard["differences"], temperature)
    ]
    return f"acceptance (alpha, {rows[0]['rule']}) at temperature {temperature:g}: " + "; gain ".join([line, *gains])


def measured_words(live: Record | None) -> str:
    """The measured speed-ups, for the headline."""
    if live is None:
        return ", not measured"
    decoding, whole = (with_interval(live[key], times=True) for key in ("decoding_speedup", "speedup"))
    return f", measured {decoding}; {whole} with the prompt's reading"


def lookup_lines(live: Record | None) -> list[str]:
    """What looking up alone gives, and every way with a draft over it; nothing in older scorecards."""
    rows = {} if live is None else {row["way"]: row for row in live.get("ways", [])}
    if live is None or LOOKUP not in rows:
        return []
    over = ", ".join(f"{row['way']} {with_interval(row['speedup'], times=True)}" for row in live["over_lookup"])
    alone = with_interval(rows[LOOKUP]["speedup"], times=True)
    return [f"{way_words(rows[LOOKUP])}: {alone} the speed of the target alone; over it, in the same turns: {over}"]


def agreement_sentence(live: Record) -> str:
    """Whether loop, replay and plain decoding agree, in numbers."""
    found, total = live["agreement"], live["prompts"]
    loop, replay = (f"{found[k]['rounds']:g} rounds and {found[k]['accepted']:g} accepted" for k in ("loop", "replay"))
    return (
        f"Of {total} prompts, {found['same_text']} have the text of plain decoding, {found['same_as_recorded']} the "
        f"recorded answer and {found['same_counts']} the replay's counts; the loop counted {loop}, the replay "
        f"{replay}."
    )


def primary(scorecard: Record) -> str:
    """The draft the verdict is about: the last one."""
    return scorecard["drafts"][-1]["draft"]


def temperatures(scorecard: Record) -> list[float]:
    """Those that were scored, in their order."""
    return list(dict.fromkeys(row["temperature"] for row in scorecard["acceptance"]))


def rows_at(rows: Iterable[Record], temperature: float) -> list[Record]:
    """The rows of one temperature."""
    return [row for row in rows if row["temperature"] == temperature]


def speedup_of(scorecard: Record, draft: str, temperature: float) -> Record:
    """The speed-up section of one draft at one temperature."""
    [row] = [row for row in rows_at(scorecard["speedup"], temperature) if row["draft"] == draft]
    return row


def main_forecast(scorecard: Record) -> Record:
    """The speed-up section the headline is about: the last draft at temperature 0, or at the first one scored."""
    scored = temperatures(scorecard)
    return speedup_of(scorecard, primary(scorecard), 0.0 if 0.0 in scored else scored[0])


def prediction(scorecard: Record, forecast: Record) -> str:
    """The speed-up that a section of `speedup` predicts, with the interval that prompts and step times leave it."""
    return with_interval(
        {"value": forecast["predicted"], "interval": predicted_interval(scorecard, forecast)}, times=True
    )


def draft_latency(scorecard: Record, draft: str) -> Record:
    """The step times of one draft."""
    [row] = [row for row in scorecard["latency"]["drafts"] if row["draft"] == draft]
    return row


def machine(scorecard: Record) -> str:
    """What the models ran on."""
    settings = scorecard["settings"]
    return machine_words(scorecard["provenance"]["hardware"], settings["device"], settings["threads"])


def machine_words(hardware: Record, device: str, num_threads: int) -> str:
    """A GPU by its name, or a processor with its threads."""
    if device.startswith("cuda"):
        return f"GPU ({hardware['accelerators'][0]})"
    return f"CPU ({hardware['processor']}, {num_threads} thread{'s' if num_threads > 1 else ''})"


def interval_method(settings: Record) -> str:
    """How a scorecard's intervals of rates were made; those that do not say it were made before there was a choice."""
    return settings.get("intervals", "percentile bootstrap")


def with_interval(estimate: Record, *, times: bool = False) -> str:
    """A value with its interval: 0.512 [0.480, 0.544], or 1.12x [1.05, 1.20]; "none" where nothing was counted."""
    if estimate["value"] is None:
        return "none"
    digits, unit = (2, "x") if times else (3, "")
    value = f"{estimate['value']:.{digits}f}{unit}"
    if estimate["interval"] is None:
        return value
    low, high = estimate["interval"]
    return f"{value} [{low:.{digits}f}, {high:.{digits}f}]"


def speedup_words(speedup: float | None) -> str:
    """A speed-up of a formula."""
    return "unknown" if speedup is None else f"{speedup:.3f}"


def alpha_words(alpha: float | None) -> str:
    return "none: no alpha pays" if alpha is None else f"{alpha:.3f}"
