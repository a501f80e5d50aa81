"""Every field of scorecard.json that a report reads, so that a damaged file is refused by the name of its field.

docs/scoring.md explains the fields. `[]` stands for every entry of a list, `?` behind a name for what may be null or
missing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from architectures.errors import UserError
from architectures.files.entry_kinds import shown
from eval.record_checks.field_kinds import KINDS

FIELDS = {
    **dict.fromkeys(("drafts", "acceptance", "speedup", "latency.verify", "latency.drafts"), "list"),
    **dict.fromkeys(("acceptance[].lookahead", "acceptance[].lookahead[].positions", "speedup[].lookahead"), "list"),
    "prompts.sources": "list",
    "verdict": "text",
    "warnings[]": "text",
    **{f"{model}.{name}": "text" for model in ("target", "drafts[]") for name in ("path", "fingerprint", "dtype")},
    **{f"{model}.{name}": "count" for model in ("target", "drafts[]") for name in ("layers", "hidden", "parameters")},
    "drafts[].draft": "text",
    "drafts[].head_vocab_size?": "count",
    **{f"prompts.{name}": "counted" for name in ("given", "taken", "too_long", "scored")},
    "prompts.sources[]": "text",
    "prompts.ids_sha256": "text",
    "prompts.answers[].temperature": "not negative",
    "prompts.answers[].tokens": "count",
    "prompts.answers[].ids_sha256": "text",
    **{f"settings.{name}": "count" for name in ("max_new_tokens", "threads")},
    "settings.confidence": "confidence",
    "settings.num_resamples": "resamples",
    "settings.seed": "counted",
    "settings.dtype": "text",
    "settings.device": "text",
    "acceptance[].draft": "text",
    "acceptance[].rule": "text",
    "acceptance[].temperature": "not negative",
    "acceptance[].prompts": "count",
    "acceptance[].alpha": "measured rate",
    "acceptance[].alpha.tokens": "not negative",
    "acceptance[].greedy_match": "rate",
    "acceptance[].coverage?": "measured rate",
    "acceptance[].lookahead[].lookahead": "count",
    "acceptance[].lookahead[].rounds": "positive",
    "acceptance[].lookahead[].fully_accepted": "not negative",
    "acceptance[].lookahead[].tau": "measured tau",
    "acceptance[].lookahead[].positions[].position": "count",
    **{f"acceptance[].lookahead[].positions[].{name}": "not negative" for name in ("reached", "accepted")},
    "acceptance[].lookahead[].positions[].joint": "measured rate",
    "acceptance[].lookahead[].positions[].conditional": "rate",
    "acceptance[].bins[].by": "text",
    "acceptance[].bins[].bins[].bin": "text",
    "acceptance[].bins[].bins[].prompts": "counted",
    "acceptance[].bins[].bins[].alpha": "rate",
    "acceptance[].bins[].bins[].alpha.tokens": "not negative",
    "acceptance[].bins[].bins[].coverage?": "measured rate",
    "acceptance[].bins[].bins[].lookahead[].lookahead": "count",
    "acceptance[].bins[].bins[].lookahead[].tau": "tau",
    **{f"acceptance[].by_prompt?.{name}": "numbers" for name in ("tokens", "alpha", "greedy_match")},
    "acceptance[].by_prompt?.sayable?": "numbers",
    "acceptance[].by_prompt?.rounds[].lookahead": "count",
    "acceptance[].by_prompt?.rounds[].counts": "numbers",
    "differences[].draft": "text",
    "differences[].baseline": "text",
    "differences[].temperature": "not negative",
    "differences[].alpha": "gain",
    "differences[].lookahead[].lookahead": "count",
    "differences[].lookahead[].tau": "difference",
    "differences[].greedy_match": "gain",
    "differences[].greedy_match.sign_flip_p": "share",
    "latency.context_tokens": "count",
    "latency.repeats": "count",
    "latency.target": "step",
    "latency.verify[]": "step",
    "latency.verify[].lookahead": "count",
    "latency.drafts[].draft": "text",
    "latency.drafts[].cost_ratio": "positive",
    "latency.drafts[].one_token": "step",
    "latency.drafts[].two_tokens": "step",
    "speedup[].draft": "text",
    "speedup[].temperature": "not negative",
    "speedup[].best_lookahead": "count",
    "speedup[].predicted": "positive",
    "speedup[].break_even_alpha?": "share",
    "speedup[].lookahead[].lookahead": "count",
    **{f"speedup[].lookahead[].{name}": "positive" for name in ("predicted", "iid", "leviathan")},
    "speedup[].lookahead[].memory_bound?": "positive",
    "speedup[].lookahead[].break_even_alpha?": "share",
    "live?.draft": "text",
    "live?.temperature": "not negative",
    **{f"live?.{name}": "count" for name in ("lookahead", "prompts")},
    "live?.predicted_decoding_speedup": "positive",
    "live?.speedup": "speed-up",
    "live?.decoding_speedup": "speed-up",
    **{
        f"live?.{how}.{name}": "positive"
        for how in ("plain", "speculative")
        for name in ("tokens", "prefill_s", "decode_s", "ms_per_token")
    },
    "live?.speculative.draft_s": "not negative",
    "live?.speculative.verify_s": "not negative",
    **{f"live?.agreement.{name}": "counted" for name in ("same_text", "same_as_recorded", "same_counts")},
    **{f"live?.agreement.{which}.{n}": "not negative" for which in ("loop", "replay") for n in ("rounds", "accepted")},
    "live?.ways[]?.way": "text",
    **{f"live?.ways[]?.{name}": "count" for name in ("lookahead", "rounds")},
    **{f"live?.ways[]?.{name}": "counted" for name in ("looked_up_rounds", "plain_rounds", "same_text")},
    "live?.ways[]?.tau": "positive",
    **{f"live?.ways[]?.{name}": "speed-up" for name in ("speedup", "decoding_speedup")},
    **{f"live?.ways[]?.spent.{name}": "positive" for name in ("tokens", "prefill_s", "decode_s", "ms_per_token")},
    "live?.over_lookup[]?.way": "text",
    "live?.over_lookup[]?.speedup": "speed-up",
    "policies[]?.temperature": "not negative",
    **{f"policies[]?.{name}": "count" for name in ("tuned_on", "lookahead")},
    **{f"policies[]?.{name}": "positive" for name in ("predicted", "tau")},
    "policies[]?.lookup.lookahead": "count",
    **{f"policies[]?.lookup.{name}": "positive" for name in ("predicted", "tau")},
    "policies[]?.policy.lookahead": "count",
    **{f"policies[]?.policy.{name}": "not negative" for name in ("least", "weight", "confidence")},
    "policies[]?.policy.prior": "numbers",
    "provenance.argv[]": "text",
    "provenance.created": "text",
    "provenance.git_commit?": "text",
    "provenance.python": "text",
    "provenance.versions": "object",
    "provenance.hardware.processor": "text",
    "provenance.hardware.cores": "count",
    "provenance.hardware.memory_gib": "positive",
    "provenance.hardware.accelerators[]": "text",
}


def require_fields(record: dict[str, Any], path: Path) -> None:
    """Raise UserError naming the first field that a report reads and that is missing or of another kind."""
    for field, kind in FIELDS.items():
        fits, words = KINDS[kind]
        for place, value in entries(record, field.split(".")):
            if not fits(value):
                found = "nothing" if value is None else shown(value)
                raise UserError(
                    f"{path}: {place} must be {words}, got {found}. The file is damaged: take the original, or take "
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
    if "?" in name and found is None:
        return
    if "[]" not in name:
        yield from entries(found, rest, here)
    elif isinstance(found, list):
        for number, one in enumerate(found):
            yield from entries(one, rest, f"{here}[{number}]")
    else:
        yield f"{here}[]", None
