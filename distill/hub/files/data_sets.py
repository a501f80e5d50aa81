"""The data sets of the hub that a draft's prompts came from."""

from collections.abc import Iterable
from pathlib import Path

from eval.tasks import TASKS, PromptSource


def data_sets_of(sources: Iterable[PromptSource]) -> list[str]:
    """Hub ids, in alphabetical order, each once: a source names one itself, or its task has its rows there.

    A folder of this machine is none, and a task's rows in a file are still the task's.
    """
    names = {source.name or (TASKS[source.task].hub.name if source.task else "") for source in sources}
    return sorted(name for name in names if is_hub_id(name))


def is_hub_id(name: str) -> bool:
    """Whether a name is OWNER/NAME, and no folder here."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()
