"""Recipe section `distill.loggers`: where training logs go. No torch, no Composer."""

from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic reads the standard one only from Python 3.12 on

STRICT = ConfigDict(extra="forbid", strict=True)


# Dicts, not sections: what a recipe leaves out keeps the logger's own default.
@with_config(STRICT)
class FileLogger(TypedDict, total=False):
    """A file of JSON lines, one per batch."""

    filename: Annotated[str, Field(description="The file; <run>/logs/metrics.jsonl if left out.")]


@with_config(STRICT)
class TensorboardLogger(TypedDict, total=False):
    """TensorBoard event files."""

    log_dir: Annotated[str, Field(description="Folder of the event files; <run>/logs/tensorboard if left out.")]
    flush_interval: Annotated[int, Field(ge=1, description="Batches between writes to disk.")]
    rank_zero_only: Annotated[bool, Field(description="Whether only the first process logs.")]


@with_config(STRICT)
class WandbLogger(TypedDict, total=False):
    """Weights & Biases."""

    project: Annotated[str, Field(description="W&B project.")]
    group: Annotated[str, Field(description="W&B group.")]
    name: Annotated[str, Field(description="W&B run name.")]
    entity: Annotated[str, Field(description="W&B user or team.")]
    tags: Annotated[list[str], Field(description="W&B tags.")]
    rank_zero_only: Annotated[bool, Field(description="Whether only the first process logs.")]
    init_kwargs: Annotated[dict[str, Any], Field(description="Further arguments of wandb.init.")]


@with_config(STRICT)
class MlflowLogger(TypedDict, total=False):
    """MLflow."""

    experiment_name: Annotated[str, Field(description="MLflow experiment.")]
    run_name: Annotated[str, Field(description="MLflow run name.")]
    tags: Annotated[dict[str, Any], Field(description="MLflow tags.")]
    tracking_uri: Annotated[str, Field(description="MLflow tracking server or folder.")]
    rank_zero_only: Annotated[bool, Field(description="Whether only the first process logs.")]
    flush_interval: Annotated[int, Field(ge=1, description="Batches between writes.")]


@with_config(STRICT)
class Loggers(TypedDict, total=False):
    """Where training logs go; any number of them."""

    file: FileLogger
    tensorboard: TensorboardLogger
    wandb: WandbLogger
    mlflow: MlflowLogger


def missing_package(name: str) -> str | None:
    """What is wrong where a logger's package is not installed; None where it is, or the logger needs none."""
    if name == "file" or find_spec(name) is not None:
        return None
    return (
        f"distill.loggers.{name}: the package {name} is not installed. "
        f"Run `pip install 'widedraft[{name}]'`, or leave the logger out."
    )
