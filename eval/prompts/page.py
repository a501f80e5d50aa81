"""The tasks that `widedraft recipes --tasks` prints."""

from architectures.pages.blocks import Facts, Section
from eval.prompts.table import TASKS
from eval.tasks.task import FieldNames, HubRows, Task

ASKED = {
    "user": "the user says: ",
    "text": "continued as it stands: ",
    "turns": "the user says, one turn after the other: ",
    "conversation": "up to its last user turn: ",
}


def tasks_page() -> list[Section]:
    """Every task: name and version, what a prompt looks like, which fields it reads, its rows, licence and source."""
    return list(map(task_section, TASKS.values()))


def task_section(task: Task) -> Section:
    facts = [
        ("prompt", ASKED[task.form] + " ¶ ".join(paragraph.replace("\n", "\\n") for paragraph in task.template)),
        ("fields", fields_words(task)),
        ("rows", hub_words(task.hub)),
        ("licence", task.licence),
        ("source", task.source),
    ]
    return Section(f"{task.name}, version {task.version}", [Facts(facts)])


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
