"""What a named task says of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Form = Literal["user", "text", "turns", "conversation"]
FieldNames = tuple[str, ...]  # fields of a row, of which the first that is there counts

PARQUET = "refs/convert/parquet"  # the hub's own copy of a data set, a folder for each configuration of it


@dataclass(frozen=True, kw_only=True)
class HubRows:
    """Where `datasets.load_dataset` finds rows: its arguments.

    Attributes:
        name: A hub id, a local folder, or "json" for data_files.
        split: Part of the data set.
        config: Its configuration, where it has several.
        revision: Branch or commit of a hub id; None is the newest.
        data_dir: Folder inside the data set.
        data_files: Address of a file.
        streaming: Whether rows are read one by one, as of a data set that is too large to download.
    """

    name: str
    split: str
    config: str | None = None
    revision: str | None = None
    data_dir: str | None = None
    data_files: str | None = None
    streaming: bool = False


@dataclass(frozen=True, kw_only=True)
class Task:
    """One named set of prompts.

    Attributes:
        name: What a recipe and the command line call it.
        version: Of what its rows become.
        form: What the template makes: the "user"'s words; "text" that is continued as it stands, without a chat
            template; the "turns" of a list, asked one by one; or a "conversation", up to its last user turn.
        template: Paragraphs, joined by blank lines, that name fields in braces.
        fields: Where each of these is in a row.
        optional: Those a row may lack; a paragraph that names one is then left out.
        max_characters: Of the text, as whole lines from its beginning; None takes all of it.
        pieces: Of the text, from the first of these to before the second (eval.prompts.reading.PIECE); rows with fewer
            than the second are left out. None takes all of it.
        answer: Where a reference answer is, if rows bring one.
        category: Where a row's category is, if rows have one.
        hub: The rows, where no file is named.
        licence: Of the rows.
        source: Who made them, and whose wording a template has.
    """

    name: str
    version: int
    form: Form = "user"
    template: tuple[str, ...]
    fields: Mapping[str, FieldNames]
    optional: frozenset[str] = frozenset()
    max_characters: int | None = None
    pieces: tuple[int, int] | None = None
    answer: FieldNames = ()
    category: FieldNames = ()
    hub: HubRows
    licence: str
    source: str

    @property
    def label(self) -> str:
        """Name and version, as prompts carry them: "gsm8k/1"."""
        return f"{self.name}/{self.version}"
