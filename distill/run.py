"""A run: the directory of one recipe, its target, and the artifacts of its stages. No torch.

One command at a time owns a run. It holds an flock on <run>/run.lock, which names the owner; the kernel releases the
lock when the command and the training processes it started have ended, however they ended. flock and not a library,
because a training process that outlives its parent inherits the open file and with it the lock.

With `architecture.stages` every stage but the last is a run in <run>/stage-N, with its own recipe: depth pruning of
the previous stage's draft, taught by the target on the responses in <run>/data. The last stage is the run itself.

Source of the schedule: Sreenivas et al. 2024, "LLM Pruning and Distillation in Practice" (arXiv 2408.11796): pruning
by more than half pays in several stages with distillation in between.
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
from architectures.hub import is_gguf, is_multimodal, read_config, require_whole_head, resolve_checkpoint
from architectures.manifest import (
    MANIFEST_NAME,
    Manifest,
    StageName,
    changed_inputs,
    command,
    fingerprint_value,
    flat,
    inputs_diff,
    read_manifest,
    write_manifest,
)
from architectures.requested_shape import TargetConfig
from architectures.settings import command_of
from architectures.shapes import ContextLength, Shape, context_length, model_shape
from architectures.sharing import ALONE, Share
from architectures.target_files import SETTINGS_NAME
from distill.process import OWNED_VARIABLE
from distill.recipe.recipe import RESOLVED, Recipe, dotted, save_recipe
from distill.recipe.validate import reject_unfit
from eval.layer_memory import reject_asked_cap


class Made(NamedTuple):
    """Stage of an artifact.

    Attributes:
        stage: As its manifest names it.
        command: Subcommand of `widedraft` that makes it.
        carries: Values of the run in its manifest, in addition to the inputs: "target", "source", "recipe", "seed".
    """

    stage: StageName
    command: str
    carries: tuple[str, ...]


MAX_LOST = 5  # files that are named
WRITTEN_WHOLE = ("prune", "generate", "export", "eval")  # record their files; cache has sizes and checksums of its own
CHANGED_LATER = (MANIFEST_NAME, SETTINGS_NAME)  # the best k is written into a finished draft


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every file below a directory, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in CHANGED_LATER)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


@dataclass(frozen=True)
class Artifact:
    """A directory of a run; finished once it holds a manifest."""

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
        """Recorded inputs; None if there is no manifest."""
        return (self.manifest or {}).get("inputs")

    def is_current(self, inputs: Mapping[str, Any]) -> bool:
        """Return True if it is finished and made from these inputs; print the result and any differences."""
        manifest = self.manifest
        if manifest is None:
            return False
        if manifest["inputs"] == inputs and (lost := self.lost_files()):
            print(f"   {self.path}: {', '.join(lost[:MAX_LOST])} missing or changed; written again", flush=True)
            for name in lost:
                (self.path / name).unlink(missing_ok=True)
            return False
        if manifest["inputs"] == inputs:
            print(f"   {self.path}: up to date", flush=True)
            return True
        print(f"   {self.path}: changed\n{inputs_diff(manifest, inputs)}", flush=True)
        return False

    def require_finished(self) -> None:
        if not self.is_finished:
            raise UserError(
                f"{self.path}: does not exist yet. Run {command_of(self.made.command)} first, or {command_of('run')}."
            )

    def reject_changed(self, inputs: Mapping[str, Any]) -> None:
        """Raise UserError that lists the recorded inputs that differ from these."""
        manifest: Manifest = self.manifest or {"inputs": {}}
        changed = changed_inputs(manifest, inputs)
        if changed:
            moved = " A branch on the hub moves: target.revision pins a commit." if "target" in changed else ""
            raise UserError(
                f"{self.path} was created with another {', '.join(changed)} than the recipe's (- recorded, + now):\n"
                f"{inputs_diff(manifest, inputs)}\n"
                f"Choose another run_name, or delete {self.path} and everything derived from it; "
                f"{command_of(self.made.command)} creates it again.{moved}"
            )

    def require(self, inputs: Mapping[str, Any]) -> None:
        """Raise UserError unless it is finished, made from these inputs, and has the files it was finished with."""
        self.require_finished()
        self.reject_changed(inputs)
        if lost := self.lost_files():
            raise UserError(
                f"{self.path}: {', '.join(lost[:MAX_LOST])} missing or changed since it was written. "
                f"Run {command_of(self.made.command)} again."
            )

    def lost_files(self) -> list[str]:
        """Return the files that are missing, or have another size than when it was finished."""
        recorded = (self.manifest or {}).get("file_sizes", {})
        present = file_sizes(self.path)
        return [name for name, size in recorded.items() if present.get(name) != size]


@dataclass
class InRun:
    """Attribute of a run: its artifact in the directory of this name."""

    made: Made

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, run: "Run", owner: type) -> Artifact:
        shared = run.recipe.architecture.scores if self.name == "scores" else None
        return Artifact(Path(shared or run.folder / self.name), self.made)


HOW = (  # like the device, these choose how a result is computed or stored, not the result
    ("target", "placement"),
    ("target", "device_memory_gib"),
    ("distill", "checkpoints"),
    ("distill", "shard_degree"),
    ("distill", "activation_checkpointing"),
)


def carried(recipe: Recipe, names: Iterable[str]) -> dict[str, Any]:
    """Return a recipe's values for a manifest, by name; "source" is left out if it is the target."""
    of_recipe = {"target": target_record(recipe.target), "recipe": recipe_hash(recipe), "seed": recipe.seed}
    if (source := recipe.architecture.source_at) is not None:
        of_recipe["source"] = {"path": source[0], "revision": source[1]}
    return {name: of_recipe[name] for name in names if name in of_recipe}


def target_record(target: TargetConfig) -> dict[str, Any]:
    """Return the target for a manifest; with quantised weights it is another model."""
    packed = {} if target.bits is None else {"bits": target.bits}
    return {"path": target.path, "revision": target.revision, **packed}


def recipe_hash(recipe: Recipe) -> str:
    return fingerprint_value(recorded_values(recipe))


def identity_values(recipe: Recipe) -> dict[str, str]:
    """Return every key of a recipe with its value, to compare processes; secrets as fingerprints."""
    values = flat(recipe.model_dump(mode="json"))
    secret = tuple(dotted(path) for path in recipe.references)
    return {
        key: fingerprint_value(value) if key.startswith(secret) else json.dumps(value, ensure_ascii=False)
        for key, value in values.items()
    }


def recorded_values(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe without the keys that do not change results."""
    values = recipe.model_dump(mode="json")
    for section, name in HOW:
        del values[section][name]
    del values["generate"]  # whichever engine decodes, it is the same model
    if recipe.distill.online is not None:  # static drafts compared after training do not change it
        del values["distill"]["online"]["baselines"]
    return values


Lengths = Mapping[str, ContextLength | None]  # by the model's directory, as the user names it


def reject_long_texts(recipe: Recipe, target: Lengths, drafts: Lengths) -> None:
    """Raise UserError if a sequence may exceed the context length of a model that reads it.

    Args:
        target: Length of the model that generates responses.
        drafts: Lengths of the other models, which read its responses.
    """
    data, scoring = recipe.data, recipe.eval

    # Read by every model: training sequences, and evaluation sequences, whose prompts come from the data by default.
    prompt = scoring.max_prompt_len or 1  # by default prompts are as long as every context allows
    prompt = prompt if scoring.tasks else min(prompt, data.max_seq_len - 1)
    read = {"data.max_seq_len": data.max_seq_len}
    if recipe.text is not None:
        read["text.max_seq_len"] = recipe.text.max_seq_len
    read["eval.max_prompt_len + eval.max_new_tokens"] = prompt + scoring.max_new_tokens

    # Read only by the target: the longest prompts of the data with their responses.
    generated = {"data.max_seq_len - 1 + data.max_new_tokens": data.max_seq_len - 1 + data.max_new_tokens}

    models = [(folder, length, {**generated, **read}) for folder, length in target.items()]
    models += [(folder, length, read) for folder, length in drafts.items() if folder not in target]
    problems = [
        f"{keys} is {tokens}, but {folder} has a context of {length.tokens} tokens ({length.origin}). Lower it."
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
    """A recipe and the directory of its artifacts.

    Attributes:
        folder: run_dir of the recipe, or where it was moved to.
        share: This process's part of the work.
        words: Recipe file and overrides of the command line; empty for those saved in the directory.
    """

    recipe: Recipe
    folder: Path
    share: Share = ALONE
    words: tuple[str, ...] = ()

    # In the order of the stages. `init` is the undistilled draft, `eval` the scorecard with its report; several runs
    # may share importance scores (architecture.scores).
    masks = InRun(Made("masks", "prune", ("target", "recipe", "seed")))
    mask_checkpoints = InRun(Made("masks", "prune", ("recipe", "seed")))
    scores = InRun(Made("scores", "prune", ("target", "source")))
    init = InRun(Made("prune", "prune", ("target", "source", "recipe")))
    data = InRun(Made("generate", "generate", ("target", "recipe")))
    teacher_cache = InRun(Made("cache", "cache", ("seed", "target", "recipe")))
    checkpoints = InRun(Made("distill", "distill", ("recipe", "seed")))
    draft = InRun(Made("export", "distill", ("target", "source", "recipe", "seed")))
    eval = InRun(Made("eval", "eval", ("recipe",)))

    @classmethod
    def of(cls, recipe: Recipe, share: Share = ALONE, words: tuple[str, ...] = ()) -> "Run":
        return cls(recipe, Path(recipe.run_dir), share, words)

    @cached_property
    def target(self) -> Path:
        """Directory of the target, downloaded or imported if necessary."""
        named = self.recipe.target
        return resolve_checkpoint(named.path, revision=named.revision, cache=self.imported_target)

    @property
    def imported_target(self) -> Path:
        """Directory that a GGUF target is imported to."""
        return self.folder / TARGET_NAME

    @property
    def recipe_file(self) -> Path:
        return self.folder / RECIPE_NAME

    @property
    def training_words(self) -> tuple[str, ...]:
        """Recipe file and overrides from which training processes load the recipe again."""
        return self.words or (str(self.recipe_file),)

    @property
    def logs(self) -> Path:
        return self.folder / LOGS_NAME

    def record(self, artifact: Artifact, inputs: Mapping[str, Any], folder: Path | None = None, **details: Any) -> None:
        """Write the manifest of an artifact, which makes it finished.

        Args:
            folder: Where it is made, if not yet in its place.
            details: Further entries of the manifest.
        """
        of_run = carried(self.recipe, artifact.made.carries)
        if artifact.made.stage in WRITTEN_WHOLE:
            of_run["file_sizes"] = file_sizes(folder or artifact.path)
        write_manifest(folder or artifact.path, stage=artifact.made.stage, inputs=inputs, **details, **of_run)

    def begin(self) -> None:
        """Save the resolved recipe, and check its target.

        Raises:
            UserError: If there is no such target, it is a draft with a reduced head, its family does not support the
                recipe, sequences may exceed its context, or device_memory_gib is too small for one of its layers.
        """
        save_recipe(self.recipe, self.recipe_file)
        require_whole_head(self.target)
        reject_unfit(self.recipe, read_config(self.target).get("model_type", ""))
        self.reject_long_texts()
        if self.recipe.target.placement != "whole":
            target = self.recipe.target
            reject_asked_cap(self.target, shape_of(self.target), target.dtype, target.holding)

    def reject_long_texts(self, *drafts: Path) -> None:
        """Raise UserError if a sequence may exceed the context length of the target or of a draft."""
        target = {self.recipe.target.path: length_of(self.target)}
        reject_long_texts(self.recipe, target, {str(folder): length_of(folder) for folder in drafts})


ARTIFACTS = {name: each.made for name, each in vars(Run).items() if isinstance(each, InRun)}


def shape_of(folder: Path) -> Shape:
    return model_shape(read_config(folder), where=str(folder / "config.json"))


def length_of(folder: Path) -> ContextLength | None:
    return context_length(read_config(folder), where=str(folder / "config.json"))


LOCK_NAME = "run.lock"
HINT = "Set another run_dir, or remove it."
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of file systems without locks

held: dict[str, int] = {}  # file descriptors of this process's locks, by directory


@contextmanager
def owned_run(run: Run, *, next_to_others: bool = False) -> Iterator[None]:
    """Own a run for the duration of the block; raise UserError if its directory may not be a run's."""
    require_run_folder(run)
    with owned(run.folder, next_to_others=next_to_others):
        yield


@contextmanager
def owned(folder: Path, *, next_to_others: bool = False) -> Iterator[None]:
    """Own a directory for the duration of the block; a no-op if this process or its parent owns it already.

    Partial files of killed owners are removed, unless other processes may be writing.

    Args:
        next_to_others: Share it, only with other processes that set this.

    Raises:
        UserError: If another process owns it.
    """
    name = str(folder.resolve())
    if name in owned_folders():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open_lock(folder) as file:
        take_lock(file, folder, fcntl.LOCK_SH if next_to_others else fcntl.LOCK_EX)
        if not next_to_others:
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
    return [folder for folder in os.environ.get(OWNED_VARIABLE, "").split(os.pathsep) if folder]


def open_lock(folder: Path) -> BinaryIO:
    """Open the lock file of a directory; create it if missing, never through a link."""
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return os.fdopen(descriptor, "r+b", buffering=0)


def take_lock(file: BinaryIO, folder: Path, kind: int = fcntl.LOCK_EX) -> None:
    """Lock an open file and write its owner into it; raise UserError if another process holds the lock."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{folder}: in use by {describe_owner(file.read())}. Wait until it has finished, or set another run_name."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        print(f"{folder}: the file system does not support locks; do not run a second command in it.", file=sys.stderr)
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join(command()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    file.truncate(0)
    file.write(json.dumps(owner).encode() + b"\n")


def describe_owner(written: bytes) -> str:
    """Describe the owner that a lock file names; it may be empty if it was locked a moment ago."""
    try:
        owner = json.loads(written)
        return f"process {owner['pid']} on {owner['host']} (`{owner['command']}`, since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"


def require_run_folder(run: Run) -> None:
    """Raise UserError unless the directory is a run's, empty, or missing."""
    recipe, where, folder = run.recipe, f"run_dir={run.recipe.run_dir}", run.folder.resolve()
    if run.folder.exists() and not run.folder.is_dir():
        raise UserError(f"{where}: is a file, not a directory. {HINT}")
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111  # Path.home() fails where there is none
    if folder in (folder.parent, home):
        raise UserError(f"{where}: is {folder}, which cannot be a run directory. {HINT}")
    for key, path in (("target.path", recipe.target.path), ("architecture.source", recipe.architecture.source)):
        if path is not None and folder.is_relative_to(Path(path).expanduser().resolve()):
            raise UserError(f"{where}: is or is inside {key}={path}, which is read-only. {HINT}")
    if folder.is_dir() and any(folder.iterdir()) and not is_run(folder):
        raise UserError(
            f"{where}: is not empty and not a run of widedraft (it contains no recipe.yaml written by a stage). {HINT}"
        )


def is_run(folder: Path) -> bool:
    recipe = folder / RECIPE_NAME
    if (folder / LOCK_NAME).is_file():
        return True
    return recipe.is_file() and recipe.read_bytes()[: len(RESOLVED)] == RESOLVED.encode()


def earlier_stages(run: Run) -> Iterator[Run]:
    source = run.recipe.architecture.source
    for layers in (run.recipe.architecture.stages or [])[:-1]:
        stage = Run.of(stage_recipe(run, layers, source), run.share)
        yield stage
        source = str(stage.draft.path)


def stage_run(run: Run, layers: int) -> Run:
    """Return the run of a stage that was begun before; its recipe is that of the whole run."""
    return Run(run.recipe, run.folder / f"stage-{layers}", run.share)


def stage_recipe(run: Run, layers: int, source: str | None) -> Recipe:
    """Return the recipe of one stage: pruning the previous draft to `layers` layers, at the target's widths."""
    recipe = run.recipe
    wanted = recipe.architecture.model_copy(
        update={
            **dict.fromkeys(("shape", "hidden", "intermediate", "heads", "kv_heads", "experts", "stages", "scores")),
            "layers": layers,
            "source": source,
        }
    )
    names = {"run_name": f"{recipe.run_name}-stage-{layers}", "run_dir": str(stage_run(run, layers).folder)}
    return with_imported_target(recipe.model_copy(update={**names, "architecture": wanted}), run)


def with_imported_target(recipe: Recipe, run: Run) -> Recipe:
    """Return a recipe whose local GGUF or multimodal target is the run's import, so that it is imported once."""
    path = recipe.target.path
    if not is_gguf(path) and not is_multimodal(Path(path)):
        return recipe
    return recipe.model_copy(update={"target": recipe.target.model_copy(update={"path": str(run.imported_target)})})


def share_responses(run: Run, stage: Run) -> None:
    """Link the responses of the whole run, and a teacher cache, into a stage."""
    shared = {stage.data: run.data}
    if run.recipe.distill.teacher.is_cache:
        shared[stage.teacher_cache] = run.teacher_cache
    for link, artifact in shared.items():
        link.path.parent.mkdir(parents=True, exist_ok=True)
        if not link.path.is_symlink() and not link.path.exists():  # the cache may be made later
            link.path.symlink_to(os.path.relpath(artifact.path, link.path.parent))


def first_init(run: Run) -> Artifact:
    """Return the init whose output head all later ones of a run keep."""
    stages = run.recipe.architecture.stages
    return (run if stages is None else stage_run(run, stages[0])).init


def cut_from(run: Run) -> Path:
    """Return the checkpoint the draft is pruned from: the target, architecture.source, or the second-to-last stage."""
    stages = run.recipe.architecture.stages
    if stages is not None:
        draft = stage_run(run, stages[-2]).draft
        if not (draft.manifest or {}).get("finished"):
            raise UserError(f"{draft.path}: not complete. Run {command_of('run')}, which runs all stages.")
        return draft.path
    return source_folder(run.recipe) or run.target


def source_folder(recipe: Recipe) -> Path | None:
    """Return the directory of architecture.source, downloaded if necessary; None if the recipe has none."""
    source = recipe.architecture.source_at
    return None if source is None else resolve_checkpoint(source[0], revision=source[1])
