"""Named tasks as data: which rows, which of their fields, and the prompt made of them; and prompt sources of a recipe.

Figures of a task compare only with those of the same name and version. A change of what a row becomes (template,
fields, form, max_characters, pieces) raises the version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from architectures.errors import UserError
from architectures.files.section import Section
from architectures.settings.flags import Flag
from architectures.tables import Section as TitledSection
from architectures.tables import facts

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
        pieces: Of the text, from the first of these to before the second (eval.prompts.PIECE); rows with fewer
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


AS_THERE = "asked as in arXiv 2310.07177"

ONLINE_TASKS = (
    Task(
        name="finance_alpaca_osd",
        version=1,
        template=("{instruction}",),
        fields={"instruction": ("instruction",)},
        answer=("output",),
        hub=HubRows(name="gbharti/finance-alpaca", split="train"),
        licence="MIT; much of it is from Stanford Alpaca, CC BY-NC 4.0",
        source=f"Bharti 2023, on the hub; {AS_THERE}: without a row's input",
    ),
    Task(
        name="starcoder_osd",
        version=1,
        form="text",
        template=("{content}",),
        fields={"content": ("content",)},
        pieces=(100, 150),
        hub=HubRows(name="bigcode/starcoderdata", data_dir="assembly", split="train", streaming=True),
        licence="each file that of its repository; gated",
        source=f"Li et al. 2023, arXiv 2305.06161; {AS_THERE}, which counts pieces by StarCoder's tokenizer",
    ),
    Task(
        name="cnn_dailymail_osd",
        version=1,
        template=("{article}",),
        fields={"article": ("article",)},
        answer=("highlights",),
        hub=HubRows(name="abisee/cnn_dailymail", config="3.0.0", split="test"),
        licence="Apache-2.0",
        source=f"See et al. 2017, arXiv 1704.04368; {AS_THERE}: without a prefix",
    ),
    Task(
        name="xsum_osd",
        version=1,
        template=("{document}",),
        fields={"document": ("document",)},
        answer=("summary",),
        hub=HubRows(name="EdinburghNLP/xsum", split="test", revision=PARQUET),
        licence="none stated; articles of the BBC",
        source=f"Narayan et al. 2018, arXiv 1808.08745; {AS_THERE}: without a prefix",
    ),
)


ASK_FOR_SQL = (
    "Could you translate the following question into SQL. Please only generate SQL, don't include explanation in the "
    "answer."
)

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="gsm8k",
            version=1,
            template=("{question}",),
            fields={"question": ("question",)},
            answer=("answer",),
            hub=HubRows(name="openai/gsm8k", config="main", split="test"),
            licence="MIT",
            source="Cobbe et al. 2021, arXiv 2110.14168",
        ),
        Task(
            name="hellaswag",
            version=1,
            form="text",
            template=("{context}",),
            fields={"context": ("ctx", "prompt")},
            hub=HubRows(name="Rowan/hellaswag", split="validation"),
            licence="MIT",
            source="Zellers et al. 2019, arXiv 1905.07830; `prompt` as in the prompt file of arXiv 2402.01528",
        ),
        Task(
            name="spec_bench",
            version=1,
            form="turns",
            template=("{turns}",),
            fields={"turns": ("turns",)},
            category=("category",),
            hub=HubRows(
                name="json",
                data_files="https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
                split="train",
            ),
            licence="Apache-2.0; five of its six parts are drawn from data sets with licences of their own",
            source="Xia et al. 2024, arXiv 2401.07851; 480 rows, those of MT-Bench first",
        ),
        Task(
            name="mt_bench",
            version=1,
            form="turns",
            template=("{turns}",),
            fields={"turns": ("turns", "prompt")},
            category=("category",),
            hub=HubRows(name="HuggingFaceH4/mt_bench_prompts", split="train"),
            licence="Apache-2.0",
            source="Zheng et al. 2023, arXiv 2306.05685; `turns` as in FastChat, `prompt` as on the hub",
        ),
        Task(
            name="humaneval",
            version=1,
            form="text",
            template=("{prompt}",),
            fields={"prompt": ("prompt",)},
            answer=("canonical_solution",),
            hub=HubRows(name="openai/openai_humaneval", split="test"),
            licence="MIT",
            source="Chen et al. 2021, arXiv 2107.03374",
        ),
        Task(
            name="spider",
            version=1,
            template=(ASK_FOR_SQL + " {question}",),
            fields={"question": ("question",)},
            answer=("query",),
            hub=HubRows(name="xlangai/spider", split="validation"),
            licence="CC BY-SA 4.0",
            source="Yu et al. 2018, arXiv 1809.08887; asked as in arXiv 2310.07177",
        ),
        Task(
            name="piqa",
            version=1,
            template=("{goal}",),
            fields={"goal": ("goal", "query")},
            hub=HubRows(name="baber/piqa", split="validation"),
            licence="AFL-3.0",
            source="Bisk et al. 2019, arXiv 1911.11641; `query` as in llm-foundry",
        ),
        Task(
            name="csn_python",
            version=1,
            template=("Please generate code based on the following doc:\n{doc}",),
            fields={"doc": ("func_documentation_string", "docstring")},
            answer=("func_code_string", "code"),
            hub=HubRows(name="code-search-net/code_search_net", data_dir="python", split="test", revision=PARQUET),
            licence="each function that of its repository",
            source="Husain et al. 2019, arXiv 1909.09436; asked as in arXiv 2310.07177",
        ),
        Task(
            name="alpaca",
            version=1,
            template=("{instruction}", "{input}"),
            fields={"instruction": ("instruction",), "input": ("input",)},
            optional=frozenset({"input"}),
            answer=("output",),
            hub=HubRows(name="tatsu-lab/alpaca", split="train"),
            licence="CC BY-NC 4.0",
            source="Taori et al. 2023, Stanford Alpaca, on the hub",
        ),
        Task(
            name="finance_alpaca",
            version=1,
            template=("{instruction}", "{input}"),
            fields={"instruction": ("instruction",), "input": ("input",)},
            optional=frozenset({"input"}),
            answer=("output",),
            hub=HubRows(name="gbharti/finance-alpaca", split="train"),
            licence="MIT; much of it is from Stanford Alpaca, CC BY-NC 4.0",
            source="Bharti 2023, on the hub",
        ),
        Task(
            name="cnn_dailymail",
            version=1,
            template=("summarize: {article}",),
            fields={"article": ("article",)},
            answer=("highlights",),
            hub=HubRows(name="abisee/cnn_dailymail", config="3.0.0", split="test"),
            licence="Apache-2.0",
            source="See et al. 2017, arXiv 1704.04368; asked as T5 is, arXiv 1910.10683",
        ),
        Task(
            name="xsum",
            version=1,
            template=("summarize: {document}",),
            fields={"document": ("document",)},
            answer=("summary",),
            hub=HubRows(name="EdinburghNLP/xsum", split="test", revision=PARQUET),
            licence="none stated; articles of the BBC",
            source="Narayan et al. 2018, arXiv 1808.08745; asked as T5 is, arXiv 1910.10683",
        ),
        Task(
            name="c4",
            version=1,
            form="text",
            template=("{text}",),
            fields={"text": ("text",)},
            max_characters=512,
            hub=HubRows(name="allenai/c4", config="en", split="train", streaming=True),
            licence="ODC-BY; pages of the web, under Common Crawl's terms of use",
            source="Raffel et al. 2020, arXiv 1910.10683",
        ),
        Task(
            name="starcoder",
            version=1,
            form="text",
            template=("{content}",),
            fields={"content": ("content",)},
            max_characters=512,
            hub=HubRows(name="bigcode/starcoderdata", data_dir="python", split="train", streaming=True),
            licence="each file that of its repository; gated",
            source="Li et al. 2023, arXiv 2305.06161",
        ),
        Task(
            name="arena",
            version=1,
            form="conversation",
            template=("{conversation}",),
            fields={"conversation": ("conversation", "conversation_a")},
            category=("topic", "language"),
            hub=HubRows(name="lmsys/chatbot_arena_conversations", split="train"),
            licence="prompts CC BY 4.0, answers CC BY-NC 4.0; gated",
            source="Zheng et al. 2023, arXiv 2306.05685",
        ),
        Task(
            name="lmsys_chat",
            version=1,
            form="conversation",
            template=("{conversation}",),
            fields={"conversation": ("conversation",)},
            category=("language",),
            hub=HubRows(name="lmsys/lmsys-chat-1m", split="train", streaming=True),
            licence="its own agreement, on the hub; gated",
            source="Zheng et al. 2023, arXiv 2309.11998",
        ),
        *ONLINE_TASKS,
    )
}


def named_task(name: str) -> str:
    """The name itself if it is one of a task."""
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft recipes --tasks` lists them."
        raise ValueError(f"must be a named task, got {name!r}. {hint}")
    return name


TaskName = Annotated[str, AfterValidator(named_task), WithJsonSchema({"type": "string", "enum": list(TASKS)})]


class PromptSource(Section):
    """Prompts from one place. Needs one of path and name, or a task, which knows a place of its own."""

    task: TaskName | None = Field(
        default=None,
        description="A named task (`widedraft recipes --tasks`): how rows are read, and where they are.",
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        description="A file, one prompt a row: JSON lines, a JSON list (.json) or parquet (.parquet).",
    )
    name: str | None = Field(default=None, min_length=1, description="A hub id or folder that `datasets` opens.")
    config: str | None = Field(default=None, min_length=1, description="Configuration of a `datasets` name.")
    split: str | None = Field(
        default=None, min_length=1, description="Split of a data set; null is the task's own, or train of a name."
    )
    num_prompts: int | None = Field(default=None, ge=1, description="Read only the first rows; null reads all of them.")

    @field_validator("name")
    @classmethod
    def _one_of_path_and_name(cls, name: str | None, info: ValidationInfo) -> str | None:
        path = info.data.get("path")
        if name is not None and path is not None:
            raise ValueError(f"must be left out beside path, got {name!r} and {path!r}. Keep one.")
        known = {"path", "task"} <= info.data.keys()  # a wrong one is reported already
        if name is None and path is None and known and info.data["task"] is None:
            raise ValueError("must be given, or path, or task. Prompts come from a file, a data set or a named task.")
        return name

    @field_validator("config", "split")
    @classmethod
    def _only_of_a_data_set(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("path") is not None and value not in (None, "train"):
            raise ValueError(f"must be left out beside path, got {value!r}. A file has no configurations or splits.")
        return value

    @field_validator("split")
    @classmethod
    def _train_unless_a_task_knows(cls, split: str | None, info: ValidationInfo) -> str | None:
        own = info.data.get("task") is not None and info.data.get("name") is None
        return "train" if split is None and not own else split


ASKED = {
    "user": "the user says: ",
    "text": "continued as it stands: ",
    "turns": "the user says, one turn after the other: ",
    "conversation": "up to its last user turn: ",
}


def tasks_page() -> list[TitledSection]:
    """Every task: name and version, what a prompt looks like, which fields it reads, its rows, licence and source."""
    return list(map(task_section, TASKS.values()))


def task_section(task: Task) -> TitledSection:
    pairs = [
        ("prompt", ASKED[task.form] + " ¶ ".join(paragraph.replace("\n", "\\n") for paragraph in task.template)),
        ("fields", fields_words(task)),
        ("rows", hub_words(task.hub)),
        ("licence", task.licence),
        ("source", task.source),
    ]
    return TitledSection(f"{task.name}, version {task.version}", [facts(pairs)])


def fields_words(task: Task) -> str:
    """Where the parts of a prompt, its category and its answer are in a row."""
    parts = [
        in_fields(name, fields) + (" (a row may lack it)" if name in task.optional else "")
        for name, fields in task.fields.items()
    ]
    if task.max_characters is not None:
        parts[-1] += f", as many of its first lines as have {task.max_characters} characters together"
    if task.pieces is not None:
        parts[-1] += f", its pieces {task.pieces[0]} to {task.pieces[1] - 1}; rows with fewer are left out"
    others = {"category": task.category, "answer": task.answer}
    return "; ".join([*parts, *(in_fields(name, fields) for name, fields in others.items() if fields)])


def in_fields(name: str, fields: FieldNames) -> str:
    """The fields that may hold a part, of which the first counts; the name alone where it is the field's."""
    return name if fields == (name,) else f"{name} from {' or '.join(fields)}"


def hub_words(hub: HubRows) -> str:
    """Where rows come from if no file is named."""
    details = {"config": hub.config, "folder": hub.data_dir, "split": hub.split, "revision": hub.revision}
    named = [hub.data_files or hub.name, *(f"{name} {value}" for name, value in details.items() if value)]
    return ", ".join([*named, "streamed"] if hub.streaming else named)


PromptWords = Annotated[
    tuple[str, ...],
    Field(
        strict=False,
        description="A file of prompts, a task of `widedraft recipes --tasks`, or a task and a file of its rows.",
    ),
    Flag(metavar="FILE|TASK[=FILE]", is_repeated=True),
]


def prompt_sources(words: Sequence[str]) -> list[PromptSource]:
    """The sources that some words name, in order.

    Raises:
        UserError: If a word is empty, or neither a task nor like a file's name.
    """
    return [prompt_source(word) for word in words]


def prompt_source(word: str) -> PromptSource:
    """The source that a word names; ./gsm8k is a file of that name, gsm8k the task."""
    if not word:
        raise UserError("--prompts must name a file or a task, got an empty word.")
    if word in TASKS:
        return PromptSource(task=word)
    name, separator, path = word.partition("=")
    if separator and name in TASKS:
        if not path:
            raise UserError(f"--prompts {word}: no file stands after the =. Name one, or leave the = out.")
        return PromptSource(task=name, path=path)
    if not Path(word).exists() and not Path(name).suffix and "/" not in name:
        near = get_close_matches(name, TASKS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`widedraft recipes --tasks` lists the tasks."
        raise UserError(f"--prompts {word}: {name} is no task, and there is no such file. {hint}")
    return PromptSource(path=word)
