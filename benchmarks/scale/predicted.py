"""A recipe on one GPU and on many, from what `widedraft check` is told of it: no estimate of our own stands here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from distill.checking.check import timed_run
from distill.checking.planned_cut import planned
from distill.estimates.expected_work import read_rows, unwritten_work
from distill.estimates.memory import memory_parts, together
from distill.estimates.traffic import Traffic, step_traffic
from distill.estimates.trainings import Training, trainings
from distill.expected_time.devices import Device
from distill.expected_time.stage_time import PlannedRun, StageTime
from distill.expected_time.stages import stage_times
from distill.recipe.recipe import load_recipe
from eval.prompts.source import PromptSource

RECIPES = Path(__file__).parents[2] / "recipes"
GPUS = (1, 2, 4, 8, 16, 64, 512)
OF_A_NODE = 8
AUTO = {"target.dtype": "bfloat16", "distill.precision": "amp_bf16", "eval.dtype": "bfloat16"}  # what it is on a GPU
MASKS, TRAINING = "mask training", "training"
TITLES = {MASKS: "mask training", TRAINING: "distillation"}  # of stages that train, as memory names them


@dataclass(frozen=True)
class Network:
    """How fast GPUs reach each other, in GB a second each way.

    Attributes:
        of_gpu: Within a node, from each GPU.
        of_node: Between nodes, from all GPUs of one together.
    """

    of_gpu: float = 450.0
    of_node: float = 400.0

    def seconds(self, traffic: Traffic) -> float:
        """Until a step's bytes are sent, where nothing is computed meanwhile."""
        return max(traffic.sent / self.of_gpu, traffic.out_of(OF_A_NODE) / self.of_node) / 1e9


@dataclass(frozen=True)
class Scaled:
    """A recipe and the times of its stages on one GPU.

    Attributes:
        name: Of its file.
        run: What times are derived from.
        times: Of all stages.
    """

    name: str
    run: PlannedRun
    times: tuple[StageTime, ...]

    @cached_property
    def trained(self) -> Mapping[str, Training]:
        """Its trainings, by title."""
        run = self.run
        return {each.title: each for each in trainings(run.recipe, run.target, run.draft, on_gpu=True)}

    def stage_s(self, time: StageTime, gpus: int, network: Network) -> float | None:
        """Seconds of a stage on so many GPUs; None where it is not known, or they cannot share it."""
        shared_s = time.on(gpus)
        if shared_s is None or not time.steps or gpus == 1:
            return shared_s
        return shared_s + time.steps * network.seconds(self.traffic(time, gpus))

    def traffic(self, time: StageTime, gpus: int) -> Traffic:
        """What a step of a training sends."""
        return step_traffic(self.trained[TITLES[MASKS if time.name == MASKS else TRAINING]], gpus)

    def seconds(self, gpus: int, network: Network) -> float | None:
        """Of all stages; None where one is not known, or cannot be shared so."""
        each = [self.stage_s(time, gpus, network) for time in self.times]
        return None if None in each else sum(one for one in each if one is not None)

    @property
    def serial_s(self) -> float:
        """Seconds that one process works, however many there are."""
        return sum(time.serial_s for time in self.times)

    @property
    def most_gpus(self) -> int:
        """How many can share the smallest step of a training."""
        return min(training.batch for training in self.trained.values())

    def memory_bytes(self, gpus: int) -> int | None:
        """What a process holds of the training that holds most; None where so many cannot share it."""
        if any(training.batch % gpus for training in self.trained.values()):
            return None
        return max(together(memory_parts(training, gpus)) for training in self.trained.values())


def scaled(path: Path, device: Device, *overrides: str) -> Scaled:
    """A recipe as it would run on a device, before anything of it was run."""
    load_recipe(path, overrides)  # a mistake in it is told as every command tells it
    recipe = load_recipe(path, [*on_gpu(path), *overrides])
    cut = planned(recipe)
    rows = [read_rows(source, recipe.data) if is_counted(path, source) else None for source in recipe.data.prompts]
    run = timed_run(recipe, cut, unwritten_work(recipe, rows), rows)
    return Scaled(path.stem, run, tuple(stage_times(run, device)))


def is_counted(path: Path, source: PromptSource) -> bool:
    """Whether prompts can be counted: of a recipe that comes with widedraft those alone that come with it.

    The others may be here or not, and the page must say the same on every machine: a recipe says how many it takes.
    """
    if path.resolve().parent == RECIPES:
        return source.path is not None and Path(source.path).is_relative_to("recipes")
    return True


def on_gpu(path: Path) -> Iterator[str]:
    """What `auto` is in a recipe on a GPU, whichever machine asks."""
    written: Any = OmegaConf.load(path)
    for key, value in AUTO.items():
        if OmegaConf.select(written, key) == "auto":
            yield f"{key}={value}"
