"""Recipe section `distill.loggers`: where training logs go. No torch, no Composer."""

from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

LoggerName = Literal["file", "tensorboard", "wandb", "mlflow"]
Loggers: TypeAlias = dict[LoggerName, dict[str, Any]]  # arguments of Composer's logger of that name


def missing_package(name: str) -> str | None:
    """What is wrong where a logger's package is not installed; None where it is, or the logger needs none."""
    if name == "file" or find_spec(name) is not None:
        return None
    return (
        f"distill.loggers.{name}: the package {name} is not installed. "
        f"Run `pip install 'widedraft[{name}]'`, or leave the logger out."
    )
