"""A run: the folder of one recipe, its target, and the artifacts that its stages make. No torch.

One command at a time owns a run. It holds an flock on <run>/run.lock, which says who that is; the kernel gives the lock
back when the command and the trainings it started have ended, however they ended. flock and not a library, because a
training that outlives the command that started it inherits the open file and with it the lock.

With `architecture.stages` every stage but the last is a run of its own in <run>/stage-N, with a recipe of its own:
depth alone, cut from the draft of the stage before, taught by the target on the answers in <run>/data. The last stage
is the run itself.

Source of the schedule: Sreenivas et al. 2024, "LLM Pruning and Distillation in Practice" (arXiv 2408.11796); pruning by
more than half pays in several rounds with distillation between.
"""

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from architectures.errors import UserError
from architectures.files import remove_partials
from architectures.hashes import fingerprint_value
from architectures.hub import is_gguf, read_config, require_whole_head, resolve_checkpoint
from architectures.manifest import (
    Manifest,
    StageName,
    changed_inputs,
    command,
    flat,
    inputs_diff,
    read_manifest,
    write_manifest,
)
from architectures.requested_shape import ArchitectureConfig, TargetConfig
from architectures.settings import command_of
from architectures.shapes import ContextLength, Shape, context_length
from architectures.sharing import ALONE, Share
from distill.recipe.loader import dotted
from distill.recipe.recipe import RESOLVED, Recipe, save_recipe
from distill.recipe.validate import refuse_unfit
from eval.layer_memory import refuse_asked_cap


class Made(NamedTuple):
    """How a kind of artifact is made.

    Attributes:
        stage: As its manifest names it.
        command: The word after `widedraft` that makes it.
        carries: What its manifest says of the run beside its inputs: "target", "source", "recipe", "seed".
    """

    stage: StageName
    command: str
    carries: tuple[str, ...]


ARTIFACTS = {  # by the name of their folder in a run, in the order in which a run makes them
    "masks": Made("masks", "prune", ("target", "recipe", "seed")),
    "mask_checkpoints": Made("masks", "prune", ("recipe", "seed")),
    "scores": Made("scores", "prune", ("target", "source")),
    "init": Made("prune", "prune", ("target", "source", "recipe")),
    "data": Made("generate", "generate", ("target", "recipe")),
    "teacher_cache": Made("cache", "cache", ("seed", "target", "recipe")),
    "checkpoints": Made("distill", "distill", ("recipe", "seed")),
    "draft": Made("export", "distill", ("target", "source", "recipe", "seed")),
    "eval": Made("eval", "eval", ("recipe",)),
}


@dataclass(frozen=True)
class Artifact:
    """A folder of a run, finished once it holds a manifest."""

    path: Path
    made: Made

    @property
    def manifest(self) -> Manifest | None:
        return read_manifest(self.path)

    @property
    def is_finished(self) -> bool:
        return self.manifest is not None

    @property
    def inputs(self) -> Any:
        """What it was made from, as recorded; None where it is not there."""
        return (self.manifest or {}).get("inputs")

    def is_current(self, inputs: Mapping[str, Any]) -> bool:
        """Whether it is finished and made from these inputs; says so, or says what changed."""
        manifest = self.manifest
        if manifest is None:
            return False
        if manifest["inputs"] == inputs:
            print(f"   {self.path}: up to date", flush=True)
            return True
        print(f"   {self.path}: changed\n{inputs_diff(manifest, inputs)}", flush=True)
        return False

    def require_finished(self) -> None:
        """Refuse to go on without it."""
        if not self.is_finished:
            raise UserError(
                f"{self.path}: not there yet. Run {command_of(self.made.command)} first, or {command_of('run')}."
            )

    def refuse_changed(self, inputs: Mapping[str, Any]) -> None:
        """Raise UserError naming each input in which it differs from these."""
        manifest: Manifest = self.manifest or {"inputs": {}}
        changed = changed_inputs(manifest, inputs)
        if changed:
            moved = " A branch on the hub moves: target.revision pins a commit." if "target" in changed else ""
            raise UserError(
                f"{self.path} was made from another {', '.join(changed)} than the recipe names (- recorded, + now):\n"
                f"{inputs_diff(manifest, inputs)}\n"
                f"Choose another run_name, or delete {self.path} and what was made from it; "
                f"{command_of(self.made.command)} makes it again.{moved}"
            )

    def require(self, inputs: Mapping[str, Any]) -> None:
        """Refuse to go on unless it is there and made from these inputs."""
        self.require_finished()
        self.refuse_changed(inputs)


HOW = (  # as the device, they say how the same is computed, or kept
    ("target", "placement"),
    ("target", "device_memory_gib"),
    ("distill", "checkpoints"),
    ("distill", "shard_degree"),
    ("distill", "activation_checkpointing"),
)


def carried(recipe: Recipe, names: Iterable[str]) -> dict[str, Any]:
    """What a manifest says of a recipe under these names; "source" is left out where that is the target."""
    of_recipe = {
        "target": target_record(recipe.target),
        "recipe": recipe_hash(recipe),
        "seed": recipe.seed,
        **source_record(recipe.architecture),
    }
    return {name: of_recipe[name] for name in names if name in of_recipe}


def target_record(target: TargetConfig) -> dict[str, Any]:
    """The target as a manifest names it; in fewer bits it is another model."""
    packed = {} if target.bits is None else {"bits": target.bits}
    return {"path": target.path, "revision": target.revision, **packed}


def source_record(wanted: ArchitectureConfig) -> dict[str, Any]:
    """What the draft is cut out of, as a manifest names it, under "source"; nothing where that is the target."""
    source = wanted.source_at
    return {} if source is None else {"source": {"path": source[0], "revision": source[1]}}


def recipe_hash(recipe: Recipe) -> str:
    """sha256 of the resolved recipe."""
    return fingerprint_value(recorded_values(recipe))


def told_apart(recipe: Recipe) -> dict[str, str]:
    """Every key of a recipe with its value, for processes that must have the same; secrets as fingerprints."""
    values = flat(recipe.model_dump(mode="json"))
    secret = tuple(dotted(path) for path in recipe.references)
    return {
        key: fingerprint_value(value) if key.startswith(secret) else json.dumps(value, ensure_ascii=False)
        for key, value in values.items()
    }


def recorded_values(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe without keys that only say how and where the same is computed."""
    values = recipe.model_dump(mode="json")
    for section, name in HOW:
        del values[section][name]
    del values["generate"]  # whichever engine decodes, it is the same model
    if recipe.distill.online is not None:  # what is compared behind a training does not change it
        del values["distill"]["online"]["baselines"]
    return values


Lengths = Mapping[str, ContextLength | None]  # by the model's folder, as the user names it


def refuse_long_texts(recipe: Recipe, target: Lengths, drafts: Lengths) -> None:
    """Raise UserError if a text may come to more tokens than a model that reads it was made for.

    Args:
        recipe: Any.
        target: The model that answers.
        drafts: The others, which read its answers.

    Raises:
        UserError: One line for each kind of text and model.
    """
    data, scoring = recipe.data, recipe.eval

    # What every model reads: training sequences, and texts of the scorecard, whose prompts are by default of the data.
    prompt = scoring.max_prompt_len if scoring.tasks else min(scoring.max_prompt_len, data.max_seq_len - 1)
    read = {"data.max_seq_len": data.max_seq_len}
    if recipe.text is not None:
        read["text.max_seq_len"] = recipe.text.max_seq_len
    read["eval.max_prompt_len + eval.max_new_tokens"] = prompt + scoring.max_new_tokens

    # What only the target reads: the longest prompts of the data with their answers.
    generated = {"data.max_seq_len - 1 + data.max_new_tokens": data.max_seq_len - 1 + data.max_new_tokens}

    models = [(folder, length, {**generated, **read}) for folder, length in target.items()]
    models += [(folder, length, read) for folder, length in drafts.items() if folder not in target]
    problems = [
        f"{keys} is {tokens}, but {folder} was made for texts of {length.tokens} tokens ({length.origin}). Lower it."
        for folder, length, texts in models
        if length is not None
        for keys, tokens in texts.items()
        if tokens > length.tokens
    ]
    if problems:
        raise UserError("\n".join(problems))


RECIPE_NAME, LOGS_NAME, TARGET_NAME = "recipe.yaml", "logs", "target"


@dataclass(frozen=True)
class Run:
    """One recipe and the folder that everything of it goes to.

    Attributes:
        recipe: With all its values.
        folder: Its run_dir, or where that was moved to.
        share: This process's part of the work, where several work in the run.
    """

    recipe: Recipe
    folder: Path
    share: Share = ALONE

    @classmethod
    def of(cls, recipe: Recipe, share: Share = ALONE) -> "Run":
        """The run of a recipe, where the recipe says."""
        return cls(recipe, Path(recipe.run_dir), share)

    @cached_property
    def target(self) -> Path:
        """The target's folder, fetched or imported if need be.

        Raises:
            UserError: If there is no such target.
        """
        named = self.recipe.target
        return resolve_checkpoint(named.path, revision=named.revision, cache=self.imported_target)

    @property
    def imported_target(self) -> Path:
        """Where a GGUF target becomes a folder."""
        return self.folder / TARGET_NAME

    @property
    def recipe_file(self) -> Path:
        return self.folder / RECIPE_NAME

    @property
    def logs(self) -> Path:
        return self.folder / LOGS_NAME

    @property
    def masks(self) -> Artifact:
        return self.artifact("masks")

    @property
    def mask_checkpoints(self) -> Artifact:
        return self.artifact("mask_checkpoints")

    @property
    def scores(self) -> Artifact:
        """Of layers, heads, neurons and channels; several runs may share them (architecture.scores)."""
        return self.artifact("scores", self.recipe.architecture.scores)

    @property
    def init(self) -> Artifact:
        """The undistilled draft."""
        return self.artifact("init")

    @property
    def data(self) -> Artifact:
        """Prompts and answers."""
        return self.artifact("data")

    @property
    def teacher_cache(self) -> Artifact:
        return self.artifact("teacher_cache")

    @property
    def checkpoints(self) -> Artifact:
        return self.artifact("checkpoints")

    @property
    def draft(self) -> Artifact:
        return self.artifact("draft")

    @property
    def eval(self) -> Artifact:
        """The scorecard and its page."""
        return self.artifact("eval")

    def artifact(self, name: str, elsewhere: str | None = None) -> Artifact:
        """What a stage leaves, by the name of its folder."""
        return Artifact(Path(elsewhere or self.folder / name), ARTIFACTS[name])

    def record(self, artifact: Artifact, inputs: Mapping[str, Any], folder: Path | None = None, **details: Any) -> None:
        """Write the manifest of an artifact: with it, it is finished.

        Args:
            artifact: Of this run.
            inputs: Fingerprints of what it was made from.
            folder: Where it is made, if that is not yet its place.
            details: What its stage says of it.
        """
        of_run = carried(self.recipe, artifact.made.carries)
        write_manifest(folder or artifact.path, stage=artifact.made.stage, inputs=inputs, **details, **of_run)

    def begin(self) -> None:
        """Save the recipe with all its values, and check its target.

        Raises:
            UserError: If there is no such target, it is a draft with a small output head, the recipe asks for what its
                family cannot be given, the recipe's texts may be longer than it was made for, or the memory that the
                recipe leaves it holds no layer of it.
        """
        save_recipe(self.recipe, self.recipe_file)
        require_whole_head(self.target)
        refuse_unfit(self.recipe, read_config(self.target).get("model_type", ""))
        self.refuse_long_texts()
        if self.recipe.target.placement != "whole":
            target = self.recipe.target
            refuse_asked_cap(self.target, shape_of(self.target), target.dtype, target.holding)

    def refuse_long_texts(self, *drafts: Path) -> None:
        """Raise UserError if a text may come to more tokens than the target, or another model, was made for."""
        target = {self.recipe.target.path: length_of(self.target)}
        refuse_long_texts(self.recipe, target, {str(folder): length_of(folder) for folder in drafts})


def shape_of(folder: Path) -> Shape:
    """The shape of a checkpoint folder."""
    return Shape.from_config(read_config(folder), where=str(folder / "config.json"))


def length_of(folder: Path) -> ContextLength | None:
    """How long texts the model of a checkpoint folder was made for."""
    return context_length(read_config(folder), where=str(folder / "config.json"))


LOCK_NAME = "run.lock"
OWNED_VARIABLE = "WIDEDRAFT_OWNED_RUNS"  # folders that this process, or the one that started it, owns
REMEDY = "Set another run_dir, or leave it out."
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what a disk answers that keeps none

held: dict[str, int] = {}  # file descriptors of this process's locks, by folder


@contextmanager
def owned_run(run: Run, *, beside_others: bool = False) -> Iterator[None]:
    """Own a run for as long as the block lasts; see `owned`.

    Raises:
        UserError: If its folder may not be a run's, or another process owns it.
    """
    require_run_folder(run)
    with owned(run.folder, beside_others=beside_others):
        yield


@contextmanager
def owned(folder: Path, *, beside_others: bool = False) -> Iterator[None]:
    """Own a folder for as long as the block lasts; at once where this process or the one that started it does already.

    What killed owners left half-written in it is removed, unless others may be writing.

    Args:
        folder: To be owned.
        beside_others: Others that say the same may own it too, and nobody else.

    Raises:
        UserError: If another process owns it.
    """
    name = str(folder.resolve())
    if name in owned_folders():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open_lock(folder) as file:
        take_lock(file, folder, fcntl.LOCK_SH if beside_others else fcntl.LOCK_EX)
        if not beside_others:
            remove_partials(folder, mark=LOCK_NAME)
        held[name] = file.fileno()
        os.environ[OWNED_VARIABLE] = os.pathsep.join([*owned_folders(), name])
        try:
            yield
        finally:
            del held[name]
            os.environ[OWNED_VARIABLE] = os.pathsep.join(other for other in owned_folders() if other != name)
            file.truncate(0)


def owned_folders() -> list[str]:
    """The folders that need no lock of this process's own."""
    return [folder for folder in os.environ.get(OWNED_VARIABLE, "").split(os.pathsep) if folder]


def open_lock(folder: Path) -> BinaryIO:
    """The lock file of a folder; made if it is not there, never through a link."""
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "r+b", buffering=0)


def take_lock(file: BinaryIO, folder: Path, kind: int = fcntl.LOCK_EX) -> None:
    """Lock an open file and write down who has it.

    Raises:
        UserError: If another process has.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{folder}: {describe_owner(file.read())} works in it. Wait until that has ended, or set another run_name."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        print(f"{folder}: its disk keeps no locks; let no second command work in it.", file=sys.stderr)
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join(command()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    file.truncate(0)
    file.write(json.dumps(owner).encode() + b"\n")


def describe_owner(written: bytes) -> str:
    """Who a lock file names; it may have been locked a moment ago, and say nothing yet."""
    try:
        owner = json.loads(written)
        return f"process {owner['pid']} on {owner['host']} (`{owner['command']}`, since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"


def require_run_folder(run: Run) -> None:
    """Raise UserError unless the folder is a run's, or empty, or not there."""
    recipe, where, folder = run.recipe, f"run_dir={run.recipe.run_dir}", run.folder.resolve()
    if run.folder.exists() and not run.folder.is_dir():
        raise UserError(f"{where}: is a file, not a folder. {REMEDY}")
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111  # Path.home() fails where there is none
    if folder in (folder.parent, home):
        raise UserError(f"{where}: is {folder}, which no run may fill. {REMEDY}")
    for key, path in (("target.path", recipe.target.path), ("architecture.source", recipe.architecture.source)):
        if path is not None and folder.is_relative_to(Path(path).expanduser().resolve()):
            raise UserError(f"{where}: is or lies inside {key}={path}, which is only read. {REMEDY}")
    if folder.is_dir() and any(folder.iterdir()) and not is_run(folder):
        raise UserError(
            f"{where}: exists, is not empty, and no run of widedraft began there (it holds no recipe.yaml that a stage "
            f"wrote). {REMEDY}"
        )


def is_run(folder: Path) -> bool:
    """Whether a stage has written here before."""
    recipe = folder / RECIPE_NAME
    if (folder / LOCK_NAME).is_file():
        return True
    return recipe.is_file() and recipe.read_bytes()[: len(RESOLVED)] == RESOLVED.encode()


def earlier_stages(run: Run) -> Iterator[Run]:
    """The run of every stage before the last, in order."""
    source = run.recipe.architecture.source
    for layers in (run.recipe.architecture.stages or [])[:-1]:
        stage = Run.of(stage_recipe(run, layers, source), run.share)
        yield stage
        source = str(stage.draft.path)


def stage_run(run: Run, layers: int) -> Run:
    """The run of a stage that was begun before, as far as its folders tell."""
    return Run(run.recipe, run.folder / f"stage-{layers}", run.share)


def stage_recipe(run: Run, layers: int, source: str | None) -> Recipe:
    """The recipe of one stage: so many layers of what the stage before made, at the target's widths."""
    recipe = run.recipe
    wanted = recipe.architecture.model_copy(
        update={
            **dict.fromkeys(("shape", "hidden", "intermediate", "heads", "kv_heads", "stages", "scores")),
            "layers": layers,
            "source": source,
        }
    )
    names = {"run_name": f"{recipe.run_name}-stage-{layers}", "run_dir": str(stage_run(run, layers).folder)}
    return with_imported_target(recipe.model_copy(update={**names, "architecture": wanted}), run)


def with_imported_target(recipe: Recipe, run: Run) -> Recipe:
    """A recipe whose target is the folder that a run imports its GGUF file to, so that it is imported once."""
    if not is_gguf(recipe.target.path):
        return recipe
    return recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(run.imported_target)})})


def share_answers(run: Run, stage: Run) -> None:
    """Let a stage train on the answers of the run it belongs to, and on a cached teacher's outputs for them."""
    shared = {stage.data: run.data}
    if run.recipe.distill.teacher.is_cache:
        shared[stage.teacher_cache] = run.teacher_cache
    for link, artifact in shared.items():
        link.path.parent.mkdir(parents=True, exist_ok=True)
        if not link.path.is_symlink() and not link.path.exists():  # a cache may be made later
            link.path.symlink_to(os.path.relpath(artifact.path, link.path.parent))


def first_init(run: Run) -> Artifact:
    """The init whose output head every later one of a run keeps."""
    stages = run.recipe.architecture.stages
    return (run if stages is None else stage_run(run, stages[0])).init


def cut_from(run: Run) -> Path:
    """The checkpoint whose weights become the draft's: the target, architecture.source, or the stage before the last.

    Raises:
        UserError: If that stage has not finished, or there is no such checkpoint.
    """
    stages = run.recipe.architecture.stages
    if stages is not None:
        draft = stage_run(run, stages[-2]).draft
        if not (draft.manifest or {}).get("finished"):
            raise UserError(f"{draft.path}: not finished. {command_of('run')} makes one stage after another.")
        return draft.path
    return source_folder(run.recipe) or run.target


def source_folder(recipe: Recipe) -> Path | None:
    """The folder of architecture.source at its revision, fetched if need be; None where the recipe names none."""
    source = recipe.architecture.source_at
    return None if source is None else resolve_checkpoint(source[0], revision=source[1])
