"""`widedraft convert`: its settings, and what it prints. No torch until it runs."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from architectures.conversion.forms import Form
from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.settings.kinds import Rehash


class ConvertSettings(Section):
    """Which draft is written in which form, and where."""

    draft: Annotated[Path, Flag(metavar="DRAFT", is_word=True)] = Field(
        description="The folder of a draft with a small output head."
    )
    to: Annotated[Path, Flag(metavar="DIR")] = Field(description="The Hugging Face folder to write.")
    form: Form = Field(
        description="whole: a head of all ids, for any engine, no faster; own-tokenizer: for vLLM's "
        "use_heterogeneous_vocab."
    )
    rehash: Rehash = False


def convert(settings: ConvertSettings) -> None:
    """Write a draft in the form that an engine loads."""
    from architectures.conversion.folders import convert_draft

    convert_draft(settings.draft, settings.to, settings.form)
    print(f"{settings.to}: form {settings.form} of {settings.draft}; README.md there says which engine takes it how.")
