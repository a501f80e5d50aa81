"""Under which licence a draft may be published: its target's, since weights and responses come from there. No torch.

A licence is found in what the user says, in the front matter of the target's own card, or in a table of published
targets. What it asks of whoever passes a model on (a notice, words to show, how names begin) comes with it.

Sources: the licences themselves: Llama 2 Community License, 1.b.iii; Llama 3, 3.1, 3.2 and 3.3 Community Licenses,
1.b.i and 1.b.iii; Gemma Terms of Use, 3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from architectures.errors import UserError
from architectures.files.reading import read_text

LICENCE_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*", "COPYING*")
MOST_MIB = 1  # of a card or a licence


@dataclass(frozen=True)
class Demand:
    """What a licence asks of whoever passes a model made from another on.

    Attributes:
        notice: The words of a file NOTICE; "" where none are prescribed.
        shown: Words to show beside the model; "" where there are none.
        name_begins: How the name of the model must begin; "" where it is free.
    """

    notice: str = ""
    shown: str = ""
    name_begins: str = ""


def llama_3(version: str, shown: str, name_begins: str) -> Demand:
    """What the licences of LLaMA 3 and its successors ask."""
    notice = (
        f"Llama {version} is licensed under the Llama {version} Community License, "
        "Copyright © Meta Platforms, Inc. All Rights Reserved."
    )
    return Demand(notice.replace("Llama 3 ", "Meta Llama 3 "), shown, name_begins)


DEMANDS: Mapping[str, Demand] = {
    "llama2": Demand(
        "Llama 2 is licensed under the LLAMA 2 Community License, Copyright (c) Meta Platforms, Inc. "
        "All Rights Reserved."
    ),
    "llama3": llama_3("3", "Built with Meta Llama 3", "Llama 3"),
    **{f"llama{version}": llama_3(version, "Built with Llama", "Llama") for version in ("3.1", "3.2", "3.3")},
    "gemma": Demand("Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"),
}

# By how a hub id begins. Source: the models' own pages.
PUBLISHED: Mapping[str, str] = {
    "meta-llama/Llama-2-": "llama2",
    "meta-llama/Meta-Llama-3-": "llama3",
    "meta-llama/Llama-3.1-": "llama3.1",
    "meta-llama/Llama-3.2-": "llama3.2",
    "meta-llama/Llama-3.3-": "llama3.3",
    "mistralai/Mistral-7B": "apache-2.0",
    "Qwen/Qwen2.5-7B": "apache-2.0",
    "HuggingFaceTB/SmolLM2-": "apache-2.0",
    "google/gemma-": "gemma",
}


@dataclass(frozen=True)
class Terms:
    """The licence a draft is published under.

    Attributes:
        licence: The hub's identifier; None where nobody knows it.
        origin: Where it was found, in words.
        files: Licence and notice files of the target, which go with the draft.
        demand: What the licence asks besides.
    """

    licence: str | None
    origin: str
    files: tuple[Path, ...] = ()
    demand: Demand = Demand()


def terms_of(target: Path, base_model: str | None, given: str | None) -> Terms:
    """The terms of a target.

    Args:
        target: Its folder.
        base_model: Its hub id, if it has one.
        given: The licence that the user names; it goes before what the target's files hold.
    """
    if given is not None:
        licence, origin = given, "--license"
    elif (on_card := licence_of_card(target)) is not None:
        licence, origin = on_card, "the target's own card"
    else:
        licence = next((PUBLISHED[begin] for begin in PUBLISHED if (base_model or "").startswith(begin)), None)
        origin = "nowhere" if licence is None else f"what is known of {base_model}"
    return Terms(licence, origin, licence_files(target), DEMANDS.get(licence or "", Demand()))


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


def licence_files(target: Path) -> tuple[Path, ...]:
    """Files of a folder that hold its terms, in the order of their names."""
    files = {path for pattern in LICENCE_FILES for path in target.glob(pattern) if path.is_file()}
    return tuple(sorted(files))


def refuse_unlicensed(terms: Terms, name: str, *, public: bool) -> None:
    """Raise UserError where a draft may not be shown to everybody under this name.

    Args:
        terms: Of its target.
        name: Of its repository, without the organisation.
        public: Whether everybody will see it.
    """
    if not public:
        return
    if terms.licence is None:
        raise UserError(
            "--public: the target's licence is not known, and a draft is published under it. Name it with --license "
            "(an identifier of the hub, such as apache-2.0), or leave out --public."
        )
    if not name.startswith(terms.demand.name_begins):
        raise UserError(
            f"--repo-id: the licence {terms.licence} asks that the name begins with {terms.demand.name_begins!r}, got "
            f"{name!r}. Choose such a name, or leave out --public."
        )
