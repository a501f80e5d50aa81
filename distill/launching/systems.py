"""The systems that start a run on several machines: the script of each, and which settings it has. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from architectures.errors import UserError
from distill.launching.launch import Launch
from distill.launching.manifests import kubernetes_job, skypilot_task
from distill.launching.shells import composer_script, slurm_script, torchrun_script


@dataclass(frozen=True)
class System:
    """What starts a run.

    Attributes:
        script: Of a launch.
        needs: Settings it cannot do without.
        takes: Others that it has.
    """

    script: Callable[[Launch], str]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ("setup",)


SYSTEMS = {
    "slurm": System(slurm_script),
    "skypilot": System(skypilot_task, needs=("gpu", "setup"), takes=("volume",)),
    "kubernetes": System(kubernetes_job, needs=("image", "volume")),
    "torchrun": System(torchrun_script),
    "composer": System(composer_script),
}
OF_SYSTEMS = ("gpu", "image", "volume", "setup")
WHY = {
    "gpu": "SkyPilot must be told which GPU, such as H100",
    "setup": "its nodes begin empty: say how they come by widedraft, such as 'pip install .'",
    "image": "pods run a container that has widedraft",
    "volume": "recipe, prompts, target and run must be where all pods read and write",
}


def refuse_unasked(name: str, given: Mapping[str, object]) -> None:
    """Raise UserError if a system lacks a setting it needs, or is given one that it has no use for."""
    system = SYSTEMS[name]
    for setting in OF_SYSTEMS:
        if given[setting] is None and setting in system.needs:
            raise UserError(f"--print {name} needs --{setting}: {WHY[setting]}.")
        if given[setting] is not None and setting not in (*system.needs, *system.takes):
            whose = " and ".join(each for each, other in SYSTEMS.items() if setting in (*other.needs, *other.takes))
            raise UserError(f"--{setting} is for {whose}; --print {name} has no use for it. Leave it out.")
