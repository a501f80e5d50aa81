"""Under which licence a draft may be published: its target's, since weights and responses come from there. No torch.

It is the one that the user names, or that of the target's own card. What it demands of whoever passes a model on (a
notice, words to show, how names begin) comes with it.

Sources: the licences themselves: Llama 2 Community License, 1.b.iii; Llama 3, 3.1, 3.2 and 3.3 Community Licenses,
1.b.i and 1.b.iii; Gemma Terms of Use, 3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from architectures.errors import UserError
from architectures.files.reading import read_text

LICENCE_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*")
MOST_MIB = 1  # of a card


@dataclass(frozen=True)
class Terms:
    """The licence a draft is published under.

    Attributes:
        licence: The hub's identifier; None where nobody knows it.
        files: Licence and notice files of the target, which go with the draft.
        notice: The words of a file NOTICE; "" where none are prescribed.
        shown: Words to show next to the model; "" where there are none.
        name_begins: How the name of the model must begin; "" where it is free.
    """

    licence: str | None
    files: tuple[Path, ...] = ()
    notice: str = ""
    shown: str = ""
    name_begins: str = ""


def llama_3(name: str, *, shown: str, name_begins: str) -> dict[str, str]:
    """What the licences of LLaMA 3 and its successors demand."""
    notice = f"{name} is licensed under the {name} Community License, Copyright © Meta Platforms, Inc."
    return {"notice": f"{notice} All Rights Reserved.", "shown": shown, "name_begins": name_begins}


DEMANDS: Mapping[str | None, Mapping[str, str]] = {  # by licence
    "llama2": {
        "notice": "Llama 2 is licensed under the LLAMA 2 Community License, Copyright (c) Meta Platforms, Inc. "
        "All Rights Reserved."
    },
    "llama3": llama_3("Meta Llama 3", shown="Built with Meta Llama 3", name_begins="Llama 3"),
    **{
        f"llama{version}": llama_3(f"Llama {version}", shown="Built with Llama", name_begins="Llama")
        for version in ("3.1", "3.2", "3.3")
    },
    "gemma": {
        "notice": "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
    },
}


def terms_of(target: Path, given: str | None) -> Terms:
    """The terms of a target's folder; a licence that the user names goes before that of its card."""
    licence = given or licence_of_card(target)
    files = {path for pattern in LICENCE_FILES for path in target.glob(pattern) if path.is_file()}
    return Terms(licence, tuple(sorted(files)), **DEMANDS.get(licence, {}))


def licence_of_card(target: Path) -> str | None:
    """The licence in the front matter of a folder's README.md; None where there is none."""
    from huggingface_hub import ModelCard  # imported here: half a second

    file = target / "README.md"
    if not file.is_file():
        return None
    text = read_text(file, remedy="Delete it, and name the licence with --license.", most_mib=MOST_MIB)
    try:
        licence = ModelCard(text, ignore_metadata_errors=True).data.to_dict().get("license")
    except ValueError as error:
        raise UserError(f"{file}: its front matter could not be read. Name the licence with --license.") from error
    return licence if isinstance(licence, str) and licence else None
