"""Every field of scorecard.json that a report reads, so that a damaged file is refused by the name of its field.

docs/scoring.md explains the fields. `[]` stands for every entry of a list, `?` behind a name for what may be null.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from architectures.errors import UserError

FIELDS = {
    **dict.fromkeys(("drafts", "acceptance", "speedup", "latency.verify", "latency.drafts"), "list"),
    **dict.fromkeys(("acceptance[].lookahead", "acceptance[].lookahead[].positions", "speedup[].lookahead"), "list"),
    "prompts.sources": "list",
    "verdict": "text",
    "warnings[]": "text",
    **{f"{model}.{name}": "text" for model in ("target", "drafts[]") for name in ("path", "fingerprint", "dtype")},
    **{f"{model}.{name}": "number" for model in ("target", "drafts[]") for name in ("layers", "hidden", "parameters")},
    "drafts[].draft": "text",
    **{f"prompts.{name}": "number" for name in ("given", "taken", "too_long", "scored")},
    "prompts.sources[]": "text",
    "prompts.ids_sha256": "text",
    "prompts.answers[].temperature": "number",
    "prompts.answers[].tokens": "number",
    "prompts.answers[].ids_sha256": "text",
    **{f"settings.{name}": "number" for name in ("max_new_tokens", "confidence", "num_resamples", "seed", "threads")},
    "settings.dtype": "text",
    "settings.device": "text",
    "acceptance[].draft": "text",
    "acceptance[].rule": "text",
    "acceptance[].temperature": "number",
    "acceptance[].prompts": "number",
    "acceptance[].alpha": "measured",
    "acceptance[].alpha.tokens": "number",
    "acceptance[].greedy_match": "estimate",
    **{f"acceptance[].lookahead[].{name}": "number" for name in ("lookahead", "rounds", "fully_accepted")},
    "acceptance[].lookahead[].tau": "measured",
    **{f"acceptance[].lookahead[].positions[].{name}": "number" for name in ("position", "reached", "accepted")},
    "acceptance[].lookahead[].positions[].joint": "measured",
    "acceptance[].lookahead[].positions[].conditional": "estimate",
    "acceptance[].bins[].by": "text",
    "acceptance[].bins[].bins[].bin": "text",
    "acceptance[].bins[].bins[].prompts": "number",
    "acceptance[].bins[].bins[].alpha": "estimate",
    "acceptance[].bins[].bins[].alpha.tokens": "number",
    "acceptance[].bins[].bins[].lookahead[].lookahead": "number",
    "acceptance[].bins[].bins[].lookahead[].tau": "estimate",
    **{f"acceptance[].by_prompt?.{name}": "numbers" for name in ("tokens", "alpha", "greedy_match")},
    "acceptance[].by_prompt?.rounds[].lookahead": "number",
    "acceptance[].by_prompt?.rounds[].counts": "numbers",
    "differences[].draft": "text",
    "differences[].baseline": "text",
    "differences[].temperature": "number",
    "differences[].alpha": "estimate",
    "differences[].lookahead[].lookahead": "number",
    "differences[].lookahead[].tau": "estimate",
    "differences[].greedy_match": "estimate",
    "differences[].greedy_match.sign_flip_p": "number",
    "latency.context_tokens": "number",
    "latency.repeats": "number",
    "latency.target": "step",
    "latency.verify[]": "step",
    "latency.verify[].lookahead": "number",
    "latency.drafts[].draft": "text",
    "latency.drafts[].cost_ratio": "number",
    "latency.drafts[].one_token": "step",
    "latency.drafts[].two_tokens": "step",
    "speedup[].draft": "text",
    **{f"speedup[].{name}": "number" for name in ("temperature", "best_lookahead", "predicted")},
    "speedup[].break_even_alpha?": "number",
    **{f"speedup[].lookahead[].{name}": "number" for name in ("lookahead", "predicted", "iid", "leviathan")},
    "speedup[].lookahead[].memory_bound?": "number",
    "speedup[].lookahead[].break_even_alpha?": "number",
    "live?.draft": "text",
    **{f"live?.{name}": "number" for name in ("temperature", "lookahead", "prompts", "predicted_decoding_speedup")},
    "live?.speedup": "measured",
    "live?.decoding_speedup": "measured",
    **{
        f"live?.{how}.{name}": "number"
        for how in ("plain", "speculative")
        for name in ("tokens", "prefill_s", "decode_s", "ms_per_token")
    },
    "live?.speculative.draft_s": "number",
    "live?.speculative.verify_s": "number",
    **{f"live?.agreement.{name}": "number" for name in ("same_text", "same_as_recorded", "same_counts")},
    **{f"live?.agreement.{which}.{n}": "number" for which in ("loop", "replay") for n in ("rounds", "accepted")},
    "provenance.argv[]": "text",
    "provenance.created": "text",
    "provenance.git_commit?": "text",
    "provenance.python": "text",
    "provenance.versions": "object",
    "provenance.hardware.processor": "text",
    "provenance.hardware.cores": "number",
    "provenance.hardware.memory_gib": "number",
    "provenance.hardware.accelerators[]": "text",
}


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_numbers(value: Any) -> bool:
    """Whether it is a list of numbers."""
    return isinstance(value, list) and all(map(is_number, value))


def is_interval(value: Any) -> bool:
    """Whether it is [low, high], or null where there is none."""
    return value is None or (is_numbers(value) and len(value) == 2)


def is_estimate(value: Any) -> bool:
    """Whether it is {value, interval}; the value is null where nothing was counted."""
    if not isinstance(value, dict) or not {"value", "interval"} <= value.keys():
        return False
    return (value["value"] is None or is_number(value["value"])) and is_interval(value["interval"])


def is_measured(value: Any) -> bool:
    """Whether it is an estimate with a value."""
    return is_estimate(value) and value["value"] is not None


def is_step(value: Any) -> bool:
    """Whether it is a step: median_ms, its interval, and percentiles."""
    names = ("median_ms", "p10_ms", "p90_ms")
    return (
        isinstance(value, dict)
        and all(is_number(value.get(name)) for name in names)
        and is_interval(value.get("interval_ms"))
    )


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str), "text"),
    "number": (is_number, "a number"),
    "numbers": (is_numbers, "a list of numbers"),
    "list": (lambda value: isinstance(value, list) and value != [], "a list of at least one entry"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "estimate": (is_estimate, "{value, interval}"),
    "measured": (is_measured, "{value, interval} with a value"),
    "step": (is_step, "{median_ms, interval_ms, p10_ms, p90_ms}"),
}


def require_fields(record: dict[str, Any], path: Path) -> None:
    """Raise UserError naming the first field that a report reads and that is missing or of another kind."""
    for field, kind in FIELDS.items():
        fits, words = KINDS[kind]
        for place, value in entries(record, field.split(".")):
            if not fits(value):
                shown = "nothing" if value is None else repr(value)[:40]
                raise UserError(
                    f"{path}: {place} must be {words}, got {shown}. The file is damaged: take the original, or take "
                    "its folder away and run `widedraft eval` again."
                )


def entries(value: Any, names: list[str], place: str = "") -> Iterator[tuple[str, Any]]:
    """(place, value) of every entry that dotted names lead to; a missing one has the value None."""
    if not names:
        yield place, value
        return
    name, *rest = names
    key = name.rstrip("[]?")
    found = value.get(key) if isinstance(value, dict) else None
    here = f"{place}.{key}" if place else key
    if name.endswith("?") and found is None:
        return
    if not name.endswith("[]"):
        yield from entries(found, rest, here)
    elif isinstance(found, list):
        for number, one in enumerate(found):
            yield from entries(one, rest, f"{here}[{number}]")
    else:
        yield f"{here}[]", None
