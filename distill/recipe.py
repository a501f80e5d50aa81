"""Every key a recipe may hold, and how a file and a command line become one Recipe. No torch."""

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from architectures.config import ArchitectureConfig, Section, TargetConfig
from distill.config import DataConfig, DistillConfig, ExportConfig
from eval.config import EvalConfig


class Recipe(Section):
    """One complete run."""

    run_name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the run: letters, digits, '.', '_' and '-'."
    )
    run_dir: str = Field(default="runs/${run_name}", min_length=1, description="Folder of everything the run writes.")
    seed: int = Field(default=17, ge=0, lt=2**32, description="Seed of every random choice.")
    variables: dict[str, Any] = Field(default={}, description="Free values to name in interpolations.")
    target: TargetConfig
    architecture: ArchitectureConfig
    data: DataConfig
    distill: DistillConfig = DistillConfig()
    eval: EvalConfig = EvalConfig()
    export: ExportConfig = ExportConfig()

    @field_validator("run_dir")
    @classmethod
    def _fill_run_name(cls, run_dir: str, info: ValidationInfo) -> str:
        """The default names the run also when no recipe file is read."""
        return run_dir.replace("${run_name}", info.data.get("run_name", ""))
