"""What fingerprints are of: keys with their values, files with their content, so that a change can be named. No torch.

A fingerprint is of content, so what it is of can be remembered by it: whoever makes one says its parts, and the
manifest that records it records them too.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from architectures.files.masked_words import masked

Parts = dict[str, Any]  # a flat mapping; files by their name, with a sha256

FINGERPRINT = re.compile(r"[0-9a-f]{64}")
MOST_PARTS = 200  # of one fingerprint that are recorded: a data set in a folder may have thousands of files
MOST_SHOWN, MOST_CHARS = 6, 60  # differences in a message, and characters of a value
OF_THE_ENVIRONMENT = "${oc.env:"

remembered: dict[str, Parts] = {}


def with_parts(fingerprint: str, parts: Mapping[str, Any]) -> str:
    """The fingerprint, whose parts are known from here on."""
    if len(parts) <= MOST_PARTS:
        remembered[fingerprint] = dict(parts)
    return fingerprint


def parts_of(inputs: Mapping[str, str]) -> dict[str, Parts]:
    """The parts of every input that has some."""
    return {name: remembered[value] for name, value in inputs.items() if value in remembered}


def flat(values: Mapping[str, Any], prefix: str) -> Parts:
    """Dotted keys with what they hold, as command lines name them; lists of anything but sections whole."""
    parts: Parts = {}
    for key, value in values.items():
        name = f"{prefix}.{key}"
        if isinstance(value, Mapping) and value:
            parts |= flat(value, name)
        elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value):
                parts |= flat(each, f"{name}[{number}]")
        else:
            parts[name] = value
    return parts


def differences(
    changed: Sequence[str], recorded: Mapping[str, str], inputs: Mapping[str, str], parts: Mapping[str, Parts]
) -> str:
    """In what changed inputs differ, in words: "distill.optimizer.lr was 0.001, is 0.01".

    Args:
        changed: Their names.
        recorded: What a manifest says of all inputs.
        inputs: What they are today.
        parts: Of the recorded ones, where the manifest has any.
    """
    today = parts_of(inputs)
    words: list[str] = []
    for name in changed:
        old, new = recorded.get(name), inputs.get(name)
        if is_plain(old) and is_plain(new):
            words.append(f"{name} {was_and_is(old, new)}")
        elif name in parts and name in today:
            words += changed_parts(name, parts[name], today[name])
        elif name in today and old is not None:
            words.append(f"{name} (its parts were not recorded by the version that made it)")
    more = f"; and {len(words) - MOST_SHOWN} more" if len(words) > MOST_SHOWN else ""
    return "; ".join(words[:MOST_SHOWN]) + more


def changed_parts(name: str, old: Parts, new: Parts) -> Iterator[str]:
    """Each key whose value differs, and each file whose content does."""
    for part in [*old, *(part for part in new if part not in old)]:
        before, now = old.get(part), new.get(part)
        if before == now or (isinstance(before, str) and OF_THE_ENVIRONMENT in before):
            continue
        if is_plain(before) and is_plain(now):
            yield f"{part} {was_and_is(before, now)}"
        elif before is None:
            yield f"{name}: {part} is new"
        else:
            yield f"{name}: {part} {'is gone' if now is None else 'has other content'}"


def was_and_is(old: Any, new: Any) -> str:
    return f"was {shown(old)}, is {shown(new)}"


def is_plain(value: Any) -> bool:
    """Whether a value tells something by itself, which a fingerprint does not."""
    return not (isinstance(value, str) and FINGERPRINT.fullmatch(value))


def shown(value: Any) -> str:
    """A value as a recipe would have it, short and without secrets."""
    text = value if isinstance(value, str) else "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return masked(text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}...")
